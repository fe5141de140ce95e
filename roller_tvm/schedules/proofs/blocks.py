"""The blocks of a TensorIR function before its schedule: each computes a tensor, an element an instance of its axes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ...codegen.flat import access_of, children, is_load, kind_of, memory_of, number_of, parts_of

#: Attribute around a store that names the block and the values of its axes.
INSTANCE = "roller_instance"
#: What a schedule appends to the name of a block's parts, and to that of a block of parts of a sum (``rfactor``).
_PARTS, _FACTORED = ("_init", "_update"), "_rf"
#: What it appends to the name of a tensor that it copies, or computes, in other memory.
_COPIED = re.compile(r"_(shared|local)(\.\w+)?$")
#: ``IterVar.iter_type`` of an axis that goes along an output, and of one that is summed.
_SPATIAL, _SUMMED = 0, 2


@dataclass(frozen=True)
class Block:
    """A block that writes one tensor, each element by one instance or as one sum.

    Parameters
    ----------
    number : int
        In the order of the function: what it reads is written before.
    name : str
    axes : tuple of IterVar
    store : BufferStore
    init : str or None
        The number that a sum starts with, None if it is none.
    """

    number: int
    name: str
    axes: tuple[Any, ...]
    store: Any
    init: str | None

    @property
    def space(self) -> str:
        """isl's name of its tensor."""
        return f"T{self.number}"


@dataclass
class Blocks:
    """The blocks of a function by their names and tensors, and its parameters and their positions."""

    params: tuple[Any, ...] = ()
    by_name: dict[str, Block] = field(default_factory=dict)
    by_memory: dict[int, Block] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)

    def are_of(self, func: Any) -> bool:
        """Return whether another function has parameters of the same ranks."""
        ranks = [[len(p.shape) if hasattr(p, "shape") else -1 for p in params] for params in (self.params, func.params)]
        return ranks[0] == ranks[1]

    def sizes_of(self, func: Any) -> dict[int, Any]:
        """Return what the sizes of this function are in another one of the same parameters, by hash."""
        found: dict[int, Any] = {}
        for one, other in zip(self.params, func.params, strict=True):
            pairs = zip(one.shape, other.shape, strict=True) if hasattr(one, "shape") else [(one, other)]
            for size, own in pairs:
                if kind_of(size) in ("Var", "SizeVar"):
                    found.setdefault(hash(size), own)
        return found

    def writing(self, position: int) -> Block | None:
        """Return the block that writes a parameter."""
        return next((self.by_memory.get(m) for m, n in self.positions.items() if n == position), None)

    def named(self, name: str) -> Block | None:
        """Return a block by its name, that of a part of it after a schedule, or that of its tensor's copy."""
        if name in self.by_name:
            return self.by_name[name]
        parts = (self.by_name.get(name.removesuffix(part)) for part in _PARTS if name.endswith(part))
        copied = _COPIED.sub("", name)
        copies = (b for b in self.by_name.values() if copied != name and copied in (b.name, str(b.store.buffer.name)))
        return next(parts, None) or next(copies, None)

    def of_parts(self, name: str) -> Block | None:
        """Return the sum of which a block has parts, by their name."""
        ends = (f"{_FACTORED}{part}" for part in ("", *_PARTS))
        found = (self.by_name.get(name.removesuffix(end)) for end in ends if name.endswith(end))
        return None if name in self.by_name else next(found, None)


def blocks_of(func: Any) -> Blocks | None:
    """Return the blocks of a function; None if they are of another form than those of a tensor expression."""
    tensors = [param for param in func.params if hasattr(param, "shape")]
    found = Blocks(params=tuple(func.params), positions={memory_of(tensor): n for n, tensor in enumerate(tensors)})
    for realize, extents in _realized(func.body, {}):
        if realize is None:
            return None
        block = realize.block
        if kind_of(block.body) != "BufferStore":
            if not block.iter_vars and block.init is None:  # around all others
                continue
            return None
        store, memory = block.body, memory_of(block.body.buffer)
        read = {memory_of(access_of(p)[0]) for n in (store.value, *store.indices) for p in parts_of(n) if is_load(p)}
        known = read - {memory} <= {*found.by_memory, *found.positions}
        if memory in found.by_memory or str(block.name_hint) in found.by_name or not known:
            return None  # no tensor has one value an element
        if not (_goes_along(realize, extents) and _writes_all(block)) or list(block.match_buffers):
            return None
        init = None if block.init is None else _number_of(block.init, store)
        if (block.init is None) != (memory not in read) or (block.init is not None and init is None):
            return None
        if block.init is None and any(int(axis.iter_type) == _SUMMED for axis in block.iter_vars):
            return None  # the last value counts
        made = Block(len(found.by_name), str(block.name_hint), tuple(block.iter_vars), store, init)
        found.by_name[made.name] = found.by_memory[memory] = made
    written = set(found.by_memory)
    for block in found.by_name.values():  # what is written is no input
        reads = {memory_of(access_of(p)[0]) for p in parts_of(block.store.value) if is_load(p)}
        if any(found.by_memory[m].number > block.number for m in reads & written):
            return None
    return found


def _realized(statement: Any, extents: dict[int, Any]) -> Iterator[tuple[Any, dict[int, Any]]]:
    """Yield blocks, each with the loops around it; None for any other statement."""
    kind = kind_of(statement)
    if kind == "For":
        step = getattr(statement, "step", None)
        if number_of(statement.min) == 0 and (step is None or number_of(step) == 1):
            extents = {**extents, hash(statement.loop_var): statement.extent}
    elif kind == "SBlockRealize":
        yield statement, extents
        if kind_of(statement.block.body) != "BufferStore":
            yield from _realized(statement.block.body, extents)
        return
    elif kind != "SeqStmt":
        yield None, extents
    for part in children(statement):
        yield from _realized(part, extents)


def _goes_along(realize: Any, extents: dict[int, Any]) -> bool:
    """Return whether a block has an instance for each value of its axes, once."""
    if number_of(realize.predicate) != 1:
        return False
    loops = set[int]()
    for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        if int(axis.iter_type) not in (_SPATIAL, _SUMMED) or number_of(axis.dom.min) != 0:
            return False
        if number_of(value) == 0 and number_of(axis.dom.extent) == 1:
            continue
        if hash(value) in loops or not same(extents.get(hash(value)), axis.dom.extent):
            return False
        loops.add(hash(value))
    return loops == set(extents)


def _writes_all(block: Any) -> bool:
    """Return whether the instances of a block write all elements, each by its own axes."""
    spatial = {hash(axis.var): axis for axis in block.iter_vars if int(axis.iter_type) == _SPATIAL}
    seen = set[int]()
    for index, extent in zip(block.body.indices, block.body.buffer.shape, strict=True):
        axis = spatial.get(hash(index))
        if axis is not None and hash(index) not in seen and same(axis.dom.extent, extent):
            seen.add(hash(index))
        elif not (number_of(index) == 0 and number_of(extent) == 1):
            return False
    return all(key in seen or number_of(axis.dom.extent) == 1 for key, axis in spatial.items())


def _number_of(init: Any, store: Any) -> str | None:
    own = kind_of(init) == "BufferStore" and memory_of(init.buffer) == memory_of(store.buffer)
    own = own and all(map(same, init.indices, store.indices))
    return repr(init.value.value) if own and kind_of(init.value) in ("FloatImm", "IntImm") else None


def same(a: Any, b: Any) -> bool:
    """Return whether two expressions are of the same form and the same variables."""
    names = ([hash(p) for p in parts_of(e) if kind_of(p) in ("Var", "SizeVar")] for e in (a, b))
    return a is not None and b is not None and str(a) == str(b) and next(names) == next(names)
