"""rTasks (Rammer, OSDI'20, section 3.1), and the tile of a tensor that each one writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, prod
from typing import Any, NamedTuple

#: First and last index along each dimension, both counted.
Box = tuple[tuple[int, int], ...]


class RTask(NamedTuple):
    """One rTask of an operator: on a GPU a thread block of its kernel."""

    operator: str
    phase: int
    number: int

    def __str__(self) -> str:
        return f"{self.operator}.{self.phase}[{self.number}]" if self.phase else f"{self.operator}[{self.number}]"


@dataclass(frozen=True)
class Tiling:
    """How the rTasks of an rKernel share a tensor: task 0 has the first tile, the last dimension is fastest.

    Parameters
    ----------
    tile : tuple of int
        Extents of a tile; empty if tasks write runs instead.
    run : int
        Elements of a task that writes neighbours in memory, whatever dimensions they are in; 0 for tiles.

    Examples
    --------
    >>> tiles = Tiling((4, 6), (2, 3))
    >>> tiles.tasks, tiles.box(3), list(tiles.tasks_of(((0, 0), (2, 3))))
    (4, ((2, 3), (3, 5)), [0, 1])
    >>> list(Tiling((4, 6), run=8).tasks_of(((1, 1), (0, 5))))
    [0, 1]
    >>> list(Tiling((4, 64), run=32).tasks_of(((0, 3), (40, 50))))
    [1, 3, 5, 7]
    """

    shape: tuple[int, ...]
    tile: tuple[int, ...] = ()
    run: int = 0

    def __post_init__(self) -> None:
        if self.run < 0 or (self.run == 0) != (len(self.tile) == len(self.shape) and bool(self.shape)):
            raise ValueError(f"a tiling of {self.shape} needs a tile of as many extents or a run, not "
                             f"{self.tile} and {self.run}")
        if any(e < 1 for e in (*self.shape, *self.tile)):
            raise ValueError(f"extents must be positive: {self.tile} of {self.shape}")

    @property
    def grid(self) -> tuple[int, ...]:
        """Tiles along each dimension."""
        return tuple(ceil(e / t) for e, t in zip(self.shape, self.tile, strict=True))

    @property
    def tasks(self) -> int:
        return ceil(prod(self.shape) / self.run) if self.run else prod(self.grid)

    def box(self, task: int) -> Box:
        """Return the box that a task writes; for a run, its bounding box."""
        if self.run:
            last = min((task + 1) * self.run, prod(self.shape)) - 1
            return unflatten(task * self.run, last, self.shape)
        at = []
        for count in reversed(self.grid):
            task, place = divmod(task, count)
            at.append(place)
        return tuple((p * t, min((p + 1) * t, e) - 1)
                     for p, t, e in zip(reversed(at), self.tile, self.shape, strict=True))

    def tasks_of(self, box: Box) -> Iterator[int]:
        """Yield the tasks that write any element of a region, in order."""
        if self.run:
            yield from self._runs_of(box)
            return
        strides, below = [], 1
        for count in reversed(self.grid):
            strides.append(below)
            below *= count
        ranges = [range(lo // t * s, (hi // t + 1) * s, s)
                  for (lo, hi), t, s in zip(box, self.tile, reversed(strides), strict=True)]
        for places in product(*ranges):
            yield sum(places)

    def _runs_of(self, box: Box) -> Iterator[int]:
        """Yield tasks row by row of neighbours in memory; all from first to last if there are more rows than rTasks."""
        inner = len(self.shape)  # dimensions that are rows' own: what is behind them is whole
        while inner > 1 and box[inner - 1] == (0, self.shape[inner - 1] - 1):
            inner -= 1
        outer = box[: inner - 1]
        if prod(hi - lo + 1 for lo, hi in outer) > self.tasks:
            first, last = flatten(box, self.shape)
            yield from range(first // self.run, last // self.run + 1)
            return
        told = -1
        for row in product(*(range(lo, hi + 1) for lo, hi in outer)):
            first, last = flatten((*((at, at) for at in row), *box[inner - 1 :]), self.shape)
            yield from range(max(told + 1, first // self.run), last // self.run + 1)
            told = max(told, last // self.run)

    def to_json(self) -> list[Any]:
        return [list(self.shape), list(self.tile), self.run]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> Tiling:
        return cls(tuple(data[0]), tuple(data[1]), data[2])


def flatten(box: Box, shape: Sequence[int]) -> tuple[int, int]:
    """Return the first and the last element of a region in memory.

    Examples
    --------
    >>> flatten(((1, 2), (0, 1)), (4, 6))
    (6, 13)
    """
    first = last = 0
    for (lo, hi), extent in zip(box, shape, strict=True):
        first, last = first * extent + lo, last * extent + hi
    return first, last


def unflatten(first: int, last: int, shape: Sequence[int]) -> Box:
    """Return the bounding box of the elements from `first` to `last`.

    Examples
    --------
    >>> unflatten(7, 9, (4, 6)), unflatten(5, 6, (4, 6))
    (((1, 1), (1, 3)), ((0, 1), (0, 5)))
    """
    low, high = [], []
    for extent in reversed(shape):
        first, a = divmod(first, extent)
        last, b = divmod(last, extent)
        low.append(a)
        high.append(b)
    box, differs = [], False
    for a, b, extent in zip(reversed(low), reversed(high), shape, strict=True):
        box.append((0, extent - 1) if differs else (a, b))
        differs = differs or a != b
    return tuple(box)


def reshaped(box: Box, shape: Sequence[int], other: Sequence[int]) -> Box:
    """Return a region's elements as a region of the tensor reshaped: exact if dimensions agree, else larger.

    Examples
    --------
    >>> reshaped(((2, 3), (8, 15)), (4, 64), (4, 8, 8))
    ((2, 3), (1, 1), (0, 7))
    """
    if tuple(shape) == tuple(other):
        return box
    if prod(shape) != prod(other):
        raise ValueError(f"{tuple(shape)} and {tuple(other)} do not have the same elements")
    result: list[tuple[int, int]] = []
    i = j = 0
    while i < len(shape) or j < len(other):  # groups of dimensions that hold the same elements
        a, b = i, j
        left, right = 1, 1
        while left != right or (a == i and b == j):
            if (left <= right and a < len(shape)) or b == len(other):
                left *= shape[a]
                a += 1
            else:
                right *= other[b]
                b += 1
        while a < len(shape) and shape[a] == 1:
            a += 1
        while b < len(other) and other[b] == 1:
            b += 1
        if shape[i:a] == other[j:b]:
            result += box[i:a]
        else:
            result += unflatten(*flatten(box[i:a], shape[i:a]), other[j:b])
        i, j = a, b
    return tuple(result)
