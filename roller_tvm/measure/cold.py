"""Time weights as a network finds them: not in the near caches, where the kernel's previous run left them.

A kernel run repeatedly on the same weights has them in its nearest cache; in a network all other layers' weights are
read in between. Plans suffer differently from cold weights (7x7x512 to 512, 3x3: one plan takes 445 us warm and 872 us
cold, another 497 us and 622 us). So each run of a candidate gets another copy of its weights, with as many copies as
make up the model's bytes of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # workers need nothing of it
    from roller_tvm.device import DeviceSpec

#: Size of all copies as a multiple of the last cache, unless the model has fewer bytes of weights.
OF_CACHE = 2
#: Least share of a run spent on reading weights for which they are rotated.
SHARE = 0.02


def footprint_of(weight_bytes: int, device: DeviceSpec) -> int:
    """Return the bytes read between two uses of one weight, in a model with `weight_bytes` bytes of weights."""
    return min(weight_bytes, OF_CACHE * max(level.capacity_bytes for level in device.levels[1:]))


def read_s_per_byte(device: DeviceSpec) -> float:
    """Return the seconds per byte of reading from memory."""
    return 1e-9 / device.far.bandwidth_gbps


@dataclass
class Rotation:
    """Argument lists of a kernel with different copies of some operands, used in turns.

    Parameters
    ----------
    where : tuple of int
        Positions of the operands.
    footprint_bytes : int
        Least bytes of all copies together.
    make : function of array
        Returns a tensor of these values.
    """

    where: tuple[int, ...]
    footprint_bytes: int
    make: Callable[[Any], Any]
    _copies: dict[tuple[tuple[int, ...], ...], list[list[Any]]] = field(default_factory=dict)
    _next: int = 0

    def lists(self, arguments: Sequence[Any]) -> Iterator[list[Any]]:
        """Yield the arguments with the next copies, without end; each call has ended before the next begins."""
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
