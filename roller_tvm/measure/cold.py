"""Weights timed as a network finds them: not in the caches, where the run before has left them, but further out.

A kernel that is run again and again on the same weights has them in its nearest cache; in a network all other
layers' weights have been read in between. Plans differ in how well they bear it (7x7x512 to 512, 3x3: 445 us and
872 us, where another plan takes 497 us and 622 us). So a candidate is given another copy of its weights each time, as
many copies as there are bytes of weights in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # workers need nothing of it
    from roller_tvm.device import DeviceSpec

#: Copies come to this many times the last cache, unless the model has fewer bytes of weights.
OF_CACHE = 2
#: Weights are rotated if reading them takes this share of a run.
SHARE = 0.02


def footprint_of(weight_bytes: int, device: DeviceSpec) -> int:
    """Bytes that are read between two uses of one weight, of a model with so many bytes of weights."""
    return min(weight_bytes, OF_CACHE * max(level.capacity_bytes for level in device.levels[1:]))


def read_s_per_byte(device: DeviceSpec) -> float:
    """From memory."""
    return 1e-9 / device.far.bandwidth_gbps


@dataclass
class Rotation:
    """Argument lists of a kernel that differ in their copies of some operands, used in turns.

    Parameters
    ----------
    where : tuple of int
        Positions of those operands.
    footprint_bytes : int
        What the copies should come to, of all of them.
    make : function of array
        A tensor of these values.
    """

    where: tuple[int, ...]
    footprint_bytes: int
    make: Callable[[Any], Any]
    _copies: dict[tuple[tuple[int, ...], ...], list[list[Any]]] = field(default_factory=dict)
    _next: int = 0

    def lists(self, arguments: Sequence[Any]) -> Iterator[list[Any]]:
        """The arguments over and over; where a call begins, the one before has ended."""
        own = [arguments[n] for n in self.where]
        shapes = tuple(tuple(int(e) for e in a.shape) for a in own)
        if shapes not in self._copies:
            values = [a.numpy() for a in own]
            count = ceil(self.footprint_bytes / max(1, sum(v.nbytes for v in values)))
            self._copies[shapes] = [[self.make(v) for v in values] for _ in range(max(2, count))]
        copies = self._copies[shapes]
        while True:
            chosen = list(arguments)
            for n, copy in zip(self.where, copies[self._next % len(copies)], strict=True):
                chosen[n] = copy
            self._next += 1
            yield chosen
