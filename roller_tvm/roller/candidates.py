"""Candidates as columns: N rTiles in one array, rules as masks, rejections as sentences made on demand.

A table of tiles is an int64 array [A, N]: row a holds the extents of N tiles along axis a. Functions over tiles index
their first dimension, so that a tuple of A extents is a table of one tile to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from ..ir import Stage
from .alignment import Rejection

#: Whole numbers, one a tile; a number stands for a column of one.
Column = Any
#: Tiles by axis: a tuple of A extents, or an array [A, N].
Tiles = Sequence[int] | NDArray[np.int64]
T = TypeVar("T", int, float, bool)
# Entries of a column up to here are looked up in an array.
SMALL = 1 << 14


def table(options: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return every choice of one extent an axis as a table [A, N], the last axis fastest.

    Examples
    --------
    >>> table([[1, 2], [4, 8, 16]]).tolist()
    [[1, 1, 1, 2, 2, 2], [4, 8, 16, 4, 8, 16]]
    """
    count = prod(len(sizes) for sizes in options)
    found = np.empty((len(options), count), np.int64)
    inner = count
    for row, sizes in zip(found, options, strict=True):
        if not count:
            break
        inner //= len(sizes)
        row.reshape(-1, len(sizes), inner)[:] = np.asarray(sizes, np.int64)[:, None]
    return found


def each(function: Callable[[int], T] | Callable[[float], T], column: Column) -> Column:
    """Return a function of every entry of a column, called once a distinct entry.

    Examples
    --------
    >>> each(lambda n: n * n, np.array([3, 2, 3])).tolist(), each(lambda n: n * n, 3)
    ([9, 4, 9], 9)
    """
    values = np.asarray(column)
    if values.ndim == 0:
        return function(values.item())
    if values.dtype.kind == "i" and values.size and values.min() >= 0 and values.max() < SMALL:
        distinct = np.flatnonzero(np.bincount(values))  # without sorting
        known = np.array([function(v) for v in distinct.tolist()])
        found = np.empty(distinct[-1] + 1, known.dtype)
        found[distinct] = known
        return found[values]
    distinct, where = np.unique(values, return_inverse=True)
    return np.array([function(v) for v in distinct.tolist()])[where]


def are_boxes(stage: Stage, tiles: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which tiles are boxes of the source's loops (``Stage.is_box``)."""
    fine = np.ones(tiles.shape[1], bool)
    if any(axis.part_of or axis.fused_of for axis in stage.axes):
        distinct, where = np.unique(tiles, axis=1, return_inverse=True)
        fine = np.array([stage.is_box(tile) for tile in distinct.T.tolist()], bool)[where.ravel()]
    return fine


class Candidates:
    """N candidates of which rules leave some alive.

    Parameters
    ----------
    count : int
        N.
    """

    def __init__(self, count: int) -> None:
        self._broken = np.full(count, -1)
        self._sentences: list[Callable[[int], Rejection] | None] = []

    @property
    def alive(self) -> NDArray[np.bool_]:
        return self._broken < 0

    def keep(self, mask: NDArray[np.bool_], rule: Callable[[int], Rejection] | None = None) -> None:
        """Keep the candidates of a mask; `rule` returns the rejection of one of the others, None leaves them untold."""
        if not mask.all():
            self._broken[self.alive & ~mask] = len(self._sentences)
            self._sentences.append(rule)

    def rows(self) -> NDArray[np.intp]:
        """Return the numbers of the candidates that are alive."""
        return np.flatnonzero(self.alive)

    def rejected(self) -> Batch:
        """Return the rejections, in the order of the candidates."""
        told = np.array([*(rule is not None for rule in self._sentences), False])  # the last for those alive: -1
        return Batch(self._sentences, self._broken, np.flatnonzero(told[self._broken]))


class Batch:
    """Rejections of one table, each made when it is asked for."""

    def __init__(
        self, rules: Sequence[Callable[[int], Rejection] | None], broken: NDArray[np.int_], rows: NDArray[np.intp]
    ) -> None:
        self._rules, self._broken, self._rows = rules, broken, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Rejection]:
        for row in self._rows.tolist():
            rule = self._rules[self._broken[row]]
            assert rule is not None
            yield rule(row)


class Rejections(Sequence[Rejection]):
    """Rejected candidates of a construction, in order; those of tables become sentences when they are read."""

    def __init__(self) -> None:
        self._parts: list[Rejection | Batch] = []
        self._read: list[Rejection] | None = None

    def append(self, rejection: Rejection) -> None:
        self._parts.append(rejection)
        self._read = None

    def add(self, batch: Batch) -> None:
        """Append the rejections of a table."""
        if len(batch):
            self._parts.append(batch)
            self._read = None

    def _all(self) -> list[Rejection]:
        if self._read is None:
            self._read = [r for part in self._parts for r in ((part,) if isinstance(part, Rejection) else part)]
        return self._read

    def __len__(self) -> int:
        return sum(1 if isinstance(part, Rejection) else len(part) for part in self._parts)

    @overload
    def __getitem__(self, at: int) -> Rejection: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Rejection]: ...
    def __getitem__(self, at: int | slice) -> Rejection | Sequence[Rejection]:
        return self._all()[at]

    def __iter__(self) -> Iterator[Rejection]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self._all(),)
