"""Vectors of elements at equal distances: picked out of vectors of neighbours if the elements are near each other.

TVM and LLVM assemble such a vector element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...micro_perf.neighbours import NEAR, SHORTEST, covering
from ...te.numbering import dtype_of_node
from ..dialect import Dialect
from ..flat import access_of, kind_of, number_of


@dataclass(frozen=True)
class Strided:
    """Elements of memory as the lanes of a vector."""

    tir: Any  # ``tvm.tir`` or ``tvm.tirx``
    step: int  # elements from one lane to the next
    lanes: int
    #: First lane that may be read, and one after the last. Lanes outside get the value of the nearest inside.
    within: tuple[int, int]

    def vector(self, load: Callable[[int, int, int], Any]) -> Any:
        """Return the lanes; `load` makes a load of (elements from lane 0's, elements apart, number)."""
        near = 1 <= self.step <= NEAR
        if self.within[0] >= self.within[1]:  # nothing comes of any
            return self.tir.Broadcast(self.tir.const(0, dtype_of_node(load(0, 1, 1))), self.lanes)
        if self.within == (0, self.lanes) and (self.step == 1 or not near or self.lanes < SHORTEST):
            return load(0, self.step, self.lanes)
        first, last = self.within
        # In vectors of neighbours, leaving out those between; or in shorter vectors, if the elements are far apart.
        apart = 1 if near else self.step
        every = self.step // apart
        run = every * (last - first - 1) + 1
        parts: list[Any] = []
        joined, places = 0, [0] * self.lanes
        for begin, width in covering(run, self.lanes) if near else pieces(run):
            for lane in range(self.lanes):
                offset = every * (min(max(lane, first), last - 1) - first) - begin
                places[lane] = joined + min(offset, width - 1) if offset >= 0 else places[lane]
            part = load(first * self.step + begin * apart, apart, width)
            parts.append(part if width > 1 else self.tir.Broadcast(part, self.lanes))
            joined += width if width > 1 else self.lanes
        if joined < self.lanes:  # TVM makes no longer vectors of shorter ones
            none = self.tir.const(0, dtype_of_node(parts[0]).split("x")[0])
            parts.append(self.tir.Broadcast(none, self.lanes))
        return self.tir.Shuffle(parts, [self.tir.const(n, "int32") for n in places])


def with_strided_vectors(body: Any, dialect: Dialect) -> Any | None:
    """Return a flattened statement that replaces loads of every second to fourth element by loads of neighbours.

    None if it has none. The elements between two lanes are in memory as the lanes are.
    """
    found, tir = [], dialect.tir

    def one(node: Any) -> Any | None:
        buffer, indices = access_of(node)
        at = indices[0]
        if len(indices) != 1 or kind_of(at) != "Ramp":
            return None
        step, lanes = number_of(at.stride), number_of(at.lanes)
        if step is None or lanes is None or not 1 < step <= NEAR or lanes < SHORTEST:
            return None
        if getattr(node, "predicate", None) is not None:
            return None

        def load(offset: int, apart: int, width: int) -> Any:
            begin = at.base + tir.const(offset, dtype_of_node(at.base)) if offset else at.base
            return tir.BufferLoad(buffer, [tir.Ramp(begin, tir.const(apart, dtype_of_node(begin)), width)])

        found.append(node)
        return Strided(tir, step, lanes, (0, lanes)).vector(load)

    made = dialect.with_loads(body, one)
    return made if found else None


def pieces(number: int) -> Iterator[tuple[int, int]]:
    """Yield begin and length of the vectors that make up a number of lanes; the lengths are powers of two.

    LLVM takes vectors of other lengths apart element by element.

    Examples
    --------
    >>> list(pieces(16)), list(pieces(9)), list(pieces(0))
    ([(0, 16)], [(0, 8), (8, 1)], [])
    """
    first = 0
    while first < number:
        width = 1 << ((number - first).bit_length() - 1)
        yield first, width
        first += width
