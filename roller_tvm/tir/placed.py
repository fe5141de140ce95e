"""Blocks of a scheduled function with the loops around them, and how a loop's trips move a block's axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from .nodes import REDUCTION, buffer_of, key

#: ``For.kind`` of TensorIR.
_KINDS = {0: "serial", 1: "parallel", 2: "vectorized", 3: "unrolled", 4: "bound"}


@dataclass(frozen=True, eq=False)
class PlacedLoop:
    """A loop of a scheduled function.

    Parameters
    ----------
    key : int
        Key of its variable.
    extent : int
    kind : str
        'serial', 'parallel', 'vectorized', 'unrolled', or the thread that it is bound to ('threadIdx.x', 'vthread.x').
    annotations : dict
    """

    key: int
    extent: int
    kind: str
    annotations: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class PlacedBlock:
    """A block and the loops around it, outermost first."""

    block: Any
    values: tuple[Any, ...]
    loops: tuple[PlacedLoop, ...]

    @property
    def name(self) -> str:
        return str(self.block.name_hint)

    @cached_property
    def reduces(self) -> bool:
        return any(int(iv.iter_type) == REDUCTION for iv in self.block.iter_vars)

    @cached_property
    def read(self) -> list[Any]:
        """Buffers that it reads, without those that it writes."""
        own = {key(buffer_of(r)) for r in self.block.writes}
        return [b for b in (buffer_of(r) for r in self.block.reads) if key(b) not in own]

    @cached_property
    def written(self) -> list[Any]:
        return [buffer_of(r) for r in self.block.writes]

    @cached_property
    def extents(self) -> list[int]:
        """Extents of its axes."""
        return [int(iv.dom.extent) for iv in self.block.iter_vars]

    def moves(self, loops: Sequence[PlacedLoop]) -> list[np.ndarray]:
        """Return the axes' coordinates over all trips of these loops, with every other loop in its first trip."""
        count = prod(loop.extent for loop in loops)
        grid = np.indices([loop.extent for loop in loops]).reshape(len(loops), count)
        known = dict(zip((loop.key for loop in loops), grid, strict=True))
        return [np.broadcast_to(evaluate(value, known), (count,)) for value in self.values]


def placed_blocks(statement: Any, loops: tuple[PlacedLoop, ...] = ()) -> Iterator[PlacedBlock]:
    """Yield every block under a statement, in the order of the text.

    Raises
    ------
    ValueError
        If the length of a loop is not constant.
    """
    kind = type(statement).__name__
    if kind == "For":
        loop = statement
        how = _KINDS.get(int(loop.kind), "serial")
        if loop.thread_binding is not None:
            how = str(loop.thread_binding.thread_tag)
        extent = getattr(loop.extent, "value", loop.extent)
        if not isinstance(extent, int):
            raise ValueError(f"loop '{loop.loop_var.name}' runs {extent} times, which is no constant")
        placed = PlacedLoop(key(loop.loop_var), extent, how, dict(loop.annotations))
        yield from placed_blocks(loop.body, (*loops, placed))
    elif kind in ("SBlockRealize", "BlockRealize"):
        yield PlacedBlock(statement.block, tuple(statement.iter_values), loops)
        yield from placed_blocks(statement.block.body, loops)
    else:
        inner = [*getattr(statement, "seq", ())]
        inner += [s for n in ("body", "then_case", "else_case") if (s := getattr(statement, n, None)) is not None]
        for part in inner:
            yield from placed_blocks(part, loops)


_BINARY: dict[str, Any] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "FloorDiv": np.floor_divide, "FloorMod": np.mod,
    "Min": np.minimum, "Max": np.maximum,
}  # fmt: skip


def evaluate(node: Any, known: Mapping[int, np.ndarray]) -> np.ndarray:
    """Return the value of an index, with values for some of its variables and 0 for the others.

    Raises
    ------
    ValueError
        If it is no integer arithmetic.
    """
    kind = type(node).__name__
    if kind in ("Var", "SizeVar"):
        return known.get(key(node), np.zeros(1, dtype=np.int64))
    if kind == "IntImm":
        return np.full(1, int(node.value), dtype=np.int64)
    if kind == "Cast":
        return evaluate(node.value, known)
    if kind in _BINARY:
        return np.asarray(_BINARY[kind](evaluate(node.a, known), evaluate(node.b, known)))
    raise ValueError(f"a block's axis is a {kind}")
