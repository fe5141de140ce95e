"""One loop nest as matrices: boxes, elements and runs of N tiles at once.

A table of tiles is an array of shape (axes, N): row `a` holds the extents along axis `a`, one column a tile. A box is
an array of shape (dimensions, N), over the dimensions of one operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod

import numpy as np

from .geometry import Geometry, Operand

Array = np.ndarray


def columns(tiles: Sequence[Sequence[int]], axes: int) -> Array:
    """Return tiles as a table, one column each.

    Examples
    --------
    >>> columns([(8, 4), (16, 2)], axes=2).tolist()
    [[8, 16], [4, 2]]
    """
    return np.array(tiles, dtype=np.int64).reshape(-1, axes).T.copy()


def ceil_div(a: Array | int, b: Array | int) -> Array:
    """Return quotients of integers, rounded up."""
    return np.asarray(-(-a // b))


def round_up(a: Array, multiple: Array | int) -> Array:
    """Return integers rounded up to a multiple."""
    return -(-a // multiple) * multiple


def product(rows: Sequence[Array] | Array, count: int) -> Array:
    """Return the product of each column; ones for no rows."""
    if not len(rows):
        return np.ones(count, np.int64)
    total = rows[0]
    for row in rows[1:]:
        total = total * row
    return total


def looked_up(function: Callable[..., int], *arguments: Array) -> Array:
    """Return a function of small integers for each column, computed once for each distinct combination.

    Examples
    --------
    >>> looked_up(lambda n: n * n, np.array([3, 4, 3])).tolist()
    [9, 16, 9]
    """
    rows = list(zip(*[a.tolist() for a in arguments], strict=True))
    known = {row: function(*row) for row in set(rows)}
    return np.array([known[row] for row in rows], np.int64)


def distinct(values: Array) -> Array:
    """Return the number of distinct values along the last axis."""
    ordered = np.sort(values, axis=-1)
    return np.count_nonzero(ordered[..., 1:] != ordered[..., :-1], axis=-1) + 1


class GpuNest:
    """A nest's accesses as matrices.

    Parameters
    ----------
    geometry : Geometry

    Examples
    --------
    >>> from roller_tvm.ir.operators import matmul
    >>> nest = GpuNest.of(Geometry.of(matmul(m=1024, n=1024, k=1024), "matmul"))
    >>> [box.tolist() for box in nest.boxes(columns([(64, 32, 8)], axes=3))]
    [[[64], [8]], [[8], [32]]]
    """

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.spatial, self.reduce = list(geometry.spatial), list(geometry.reduce)
        self.outer, self.inner = _rows(self.spatial), _rows(self.reduce)
        self.extents = np.array(geometry.extents, np.int64)[:, None]
        rows: list[list[int]] = []
        most: list[int] = []
        least: list[int] = []
        self.parts: list[slice] = []
        self._divided: list[tuple[int, Operand, int]] = []
        for op in geometry.operands:
            start = len(rows)
            for d, (dim, full, opaque) in enumerate(zip(op.dims, op.shape, op.opaque, strict=True)):
                row = [0] * len(geometry.extents)
                if d in op.divided:
                    self._divided.append((len(rows), op, d))
                elif not opaque:
                    for a, c in dim:
                        row[a] += c
                rows.append(row)
                most.append(full)
                least.append(full if opaque else 1)
            self.parts.append(slice(start, len(rows)))
        parts = zip(geometry.operands, self.parts, strict=True)
        dims = [(op.element_bytes, part.start) for op, part in parts if op.dims]
        self._starts, self._element_bytes = [start for _, start in dims], np.array([n for n, _ in dims], float)
        self._scalar_bytes = sum(op.element_bytes for op in geometry.operands if not op.dims)
        # Products of floats are exact up to 2**53, and much faster than those of integers.
        self._matrix = np.array(rows, float).reshape(len(rows), len(geometry.extents))
        self._most, self._least = np.array(most, float)[:, None], np.array(least, float)[:, None]

    @classmethod
    def of(cls, geometry: Geometry) -> GpuNest:
        """Return the matrices of a nest, made once."""
        known = geometry.prepared.get(cls)
        if known is None:
            known = geometry.prepared[cls] = cls(geometry)
        return known

    def boxes(self, tiles: Array) -> list[Array]:
        """Return the bounding extents of each operand's tiles (see ``Operand.box``)."""
        extents = self._extents(tiles).astype(np.int64)
        return [extents[part] for part in self.parts]

    def _extents(self, tiles: Array) -> Array:
        """Return the boxes of all operands, one below the other, as floats."""
        extents = self._matrix @ (tiles - 1)
        extents += self._least
        for row, op, d in self._divided:
            extents[row] = _quotients(op, d, tiles.astype(np.int64))
        return np.minimum(extents, self._most, out=extents)

    def elements(self, boxes: Sequence[Array], count: int) -> list[Array]:
        """Return the number of elements of each operand's boxes."""
        return [product(box, count) for box in boxes]

    def input_bytes(self, tiles: Array) -> Array:
        """Return the bytes of all operands' boxes."""
        if not self._starts:
            return np.full(tiles.shape[1], float(self._scalar_bytes))
        elements = np.multiply.reduceat(self._extents(tiles), self._starts, axis=0)
        return self._element_bytes @ elements + self._scalar_bytes

    def traffic_and_footprint(self, tiles: Array) -> tuple[Array, Array, Array]:
        """Return three byte counts: moved into a level by the whole operator, inputs of a tile, all that it holds.

        The operator is cut into exact fractions of tiles. Tiles may be floats.
        """
        inputs = self.input_bytes(tiles)
        moved = inputs * np.multiply.reduce(self.extents / tiles, axis=0)
        return moved, inputs, inputs + self.outputs(tiles) * self.geometry.output_bytes

    def outputs(self, tiles: Array) -> Array:
        """Return the number of outputs of each tile."""
        return product(tiles[self.outer], tiles.shape[1])

    def depth(self, tiles: Array) -> Array:
        """Return the points of the reduction of each tile."""
        return product(tiles[self.inner], tiles.shape[1])

    def grid(self, block: Array) -> Array:
        """Return the number of blocks along each spatial axis."""
        return ceil_div(self.extents[self.outer], block[self.outer])

    def overhangs(self, tiles: Array) -> Array:
        """Return, for each axis, whether a tile does not divide it; False along reductions."""
        over = self.extents % tiles != 0
        over[self.inner] = False
        return over

    @cached_property
    def fragment_axes(self) -> list[list[int]]:
        """Spatial axes of each operand."""
        return [sorted(op.axes & self.geometry.spatial_set) for op in self.geometry.operands]

    def among(self, axes: frozenset[int]) -> list[int]:
        """Return the positions, among the spatial axes, of those in a set."""
        return [n for n, i in enumerate(self.spatial) if i in axes]

    @cached_property
    def outputs_whole(self) -> int:
        return prod(self.geometry.extents[i] for i in self.spatial)


def _rows(positions: list[int]) -> slice | list[int]:
    """Return positions as a slice if they are neighbours: indexing with one copies nothing."""
    if positions and positions == list(range(positions[0], positions[-1] + 1)):
        return slice(positions[0], positions[-1] + 1)
    return positions


def _quotients(op: Operand, d: int, tiles: Array) -> Array:
    """Return extents along a dimension whose index is a floor quotient (see ``Index.extent``)."""
    index, axes = op.access.indices[d], [a for a, _ in op.dims[d]]
    own = [(tiles[a], c) for a, (_, c) in zip(axes, index.terms, strict=True)]
    count = tiles.shape[1]
    step = np.full(count, index.divisor, np.int64)
    first, span = np.full(count, index.const, np.int64), np.zeros(count, np.int64)
    for tile, c in own:
        step = np.gcd(step, c * tile)
        span += abs(c) * (tile - 1)
        if c < 0:
            first += c * (tile - 1)
    phase = first % step
    last = phase + (index.divisor - 1 - phase) // step * step
    return 1 + (span + last) // index.divisor


def runs(op: Operand, box: Array) -> Array:
    """Return the length, in elements, of the contiguous runs in memory that make up each box."""
    if not len(box):
        return np.ones(box.shape[1], np.int64)
    length, whole = box[-1], box[-1] == op.shape[-1]
    for d in range(len(box) - 2, -1, -1):
        length = np.where(whole, length * box[d], length)
        whole = whole & (box[d] == op.shape[d])
    return length


def read_once(op: Operand, box: Array, own: Array) -> Array:
    """Return the number of elements that a thread reads in its part of a step, each once.

    Parameters
    ----------
    box : array of (dimensions, N)
        Bounding extents of the part.
    own : array of (axes, N)
        Points of the part. Of a window that no neighbour overlaps (stride as wide as the tile) only the needed
        elements are read.
    """
    total = np.ones(own.shape[1], np.int64)
    for dim, extent, full in zip(op.dims, box, op.shape, strict=True):
        points = product([own[a] for a, _ in dim], own.shape[1])
        total = total * np.minimum(np.minimum(extent, points), full)
    return total
