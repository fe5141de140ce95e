"""Weights timed as a network finds them: not in the caches, where the run before has left them, but further out.

A kernel that is run again and again on the same weights has them in its nearest cache; in a network all other
layers' weights have been read in between. Plans differ in how well they bear it (7x7x512 to 512, 3x3: 445 us and
872 us, where another plan takes 497 us and 622 us). So a candidate is given another copy of its weights each time, as
many copies as there are bytes of weights in the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # workers need nothing of it
    from roller_tvm.device import DeviceSpec

#: Copies come to this many times the last cache, unless the model has fewer bytes of weights.
OF_CACHE = 2
#: Weights are rotated if reading them takes this share of a run.
SHARE = 0.02


@dataclass(frozen=True)
class ColdWeights:
    """Which operands of a model's tasks are weights, and how far out they lie.

    Parameters
    ----------
    sizes : frozenset of int
        Numbers of elements of the model's constants.
    footprint_bytes : int
        Bytes that are read between two uses of one weight.
    read_s_per_byte : float
        From memory.
    """

    sizes: frozenset[int]
    footprint_bytes: int
    read_s_per_byte: float

    @staticmethod
    def of_model(mod: Any, params: Any, device: DeviceSpec) -> ColdWeights:
        """Those of a module: what it holds as constants, and what its parameters will be bound to."""
        from tvm import relay

        arrays: list[Any] = list((params or {}).values())

        def visit(node: Any) -> None:
            if isinstance(node, relay.Constant):
                arrays.append(node.data)

        relay.analysis.post_order_visit(mod["main"], visit)
        shapes = [(prod(int(e) for e in a.shape), np.dtype(str(a.dtype)).itemsize) for a in arrays]
        caches = [level.capacity_bytes for level in device.levels[1:]]
        footprint = min(sum(n * size for n, size in shapes), OF_CACHE * max(caches))
        return ColdWeights(frozenset(n for n, _ in shapes), footprint, 1e-9 / device.far.bandwidth_gbps)

    def options(self, tensors: Sequence[Any]) -> dict[str, Any]:
        """What a worker is told of a task of these tensors.

        An operand counts as a constant by its number of elements, which repacking does not change; never the first,
        which is what an earlier layer computed.
        """
        from tvm import te

        inputs = [t for t in tensors if isinstance(t.op, te.PlaceholderOp)]
        names = tuple(t.op.name for t in inputs[1:] if prod(int(e) for e in t.shape) in self.sizes)
        return {"weights": names, "footprint_bytes": self.footprint_bytes, "read_s_per_byte": self.read_s_per_byte}


@dataclass
class Rotation:
    """Argument lists of a kernel that differ in their copies of some operands, used in turns.

    Parameters
    ----------
    where : tuple of int
        Positions of those operands.
    footprint_bytes : int
        What the copies should come to, of all of them.
    """

    where: tuple[int, ...]
    footprint_bytes: int
    _copies: dict[tuple[tuple[int, ...], ...], list[list[Any]]] = field(default_factory=dict)
    _next: int = 0

    def lists(self, arguments: Sequence[Any]) -> Iterator[list[Any]]:
        """The arguments over and over; where a call begins, the one before has ended."""
        import tvm

        own = [arguments[n] for n in self.where]
        shapes = tuple(tuple(int(e) for e in a.shape) for a in own)
        if shapes not in self._copies:
            values = [a.numpy() for a in own]
            count = ceil(self.footprint_bytes / max(1, sum(v.nbytes for v in values)))
            self._copies[shapes] = [[tvm.nd.array(v) for v in values] for _ in range(max(2, count))]
        copies = self._copies[shapes]
        while True:
            chosen = list(arguments)
            for n, copy in zip(self.where, copies[self._next % len(copies)], strict=True):
                chosen[n] = copy
            self._next += 1
            yield chosen
