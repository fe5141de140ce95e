"""One loop nest as matrices: boxes, elements and runs of N tiles at once.

A table of tiles is an array of shape (axes, N): row `a` holds the extents along axis `a`, one column a tile. Their
boxes are an array of shape (operands, dimensions, N). An operand of fewer dimensions than another has some of extent 1
before its own.
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
    return np.array(tiles, dtype=np.int64).reshape(len(tiles), axes).T.copy()


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


def names(*tables: Array) -> list[bytes]:
    """Return a name for each column of tables of integers: the same for the same numbers."""
    rows = np.ascontiguousarray(np.concatenate(tables).T)
    return rows.view(f"V{rows.dtype.itemsize * rows.shape[1]}").ravel().tolist()


def distinct_columns(*tables: Array) -> tuple[Array, Array]:
    """Return the number of the first of each kind of columns, and the kind of each column.

    Examples
    --------
    >>> first, kind = distinct_columns(np.array([[7, 8, 7]]), np.array([[0, 0, 0]]))
    >>> first.tolist(), kind.tolist()
    ([0, 1], [0, 1, 0])
    """
    kinds: dict[bytes, int] = {}
    kind = np.array([kinds.setdefault(name, len(kinds)) for name in names(*tables)], np.int64)
    return np.unique(kind, return_index=True)[1], kind


def distinct(values: Array) -> Array:
    """Return the number of distinct values along the last axis."""
    ordered = ascending(values)
    return np.add.reduce(ordered[..., 1:] != ordered[..., :-1], axis=-1, dtype=np.int64) + 1


def ascending(values: Array) -> Array:
    """Return values in ascending order along the last axis: addresses of neighbouring lanes often are as they come."""
    return np.sort(values, axis=-1) if (values[..., 1:] < values[..., :-1]).any() else values


class GpuNest:
    """A nest's accesses as matrices.

    Parameters
    ----------
    geometry : Geometry

    Examples
    --------
    >>> from roller_tvm.ir.operators import matmul
    >>> nest = GpuNest.of(Geometry.of(matmul(m=1024, n=1024, k=1024), "matmul"))
    >>> nest.boxes(columns([(64, 32, 8)], axes=3))[:, :, 0].tolist()
    [[64, 8], [8, 32]]
    """

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.spatial, self.reduce = list(geometry.spatial), list(geometry.reduce)
        self.outer, self.inner = _rows(self.spatial), _rows(self.reduce)
        self.extents = np.array(geometry.extents, np.int64)[:, None]
        operands = geometry.operands
        self.rank = max((len(op.dims) for op in operands), default=0) or 1
        #: Dimensions of each operand before its own.
        self.before = [self.rank - len(op.dims) for op in operands]
        self.shape = self._by_dimension([op.shape for op in operands], 1)
        self.element_bytes = self._by_operand([op.element_bytes for op in operands])
        # Products of floats are exact up to 2**53, and much faster than those of integers.
        self._matrix = np.zeros((len(operands) * self.rank, len(geometry.extents)))
        self._least, self._most = np.ones((len(self._matrix), 1)), self.shape.ravel()[:, None].astype(float)
        self._divided: list[tuple[int, int, Operand]] = []
        for n, (op, before) in enumerate(zip(operands, self.before, strict=True)):
            for d, (dim, opaque) in enumerate(zip(op.dims, op.opaque, strict=True), before):
                row = n * self.rank + d
                if d - before in op.divided:
                    self._divided.append((n, d, op))
                elif opaque:
                    self._least[row] = self._most[row]
                else:
                    for a, c in dim:
                        self._matrix[row, a] += c

    def _by_operand(self, values: Sequence[float]) -> Array:
        """Return a value of each operand as an array (operands, 1)."""
        return np.array(values)[:, None]

    def _by_dimension(self, values: Sequence[Sequence[int]], other: int) -> Array:
        """Return a value of each operand's own dimensions, and one for those before, (operands, dimensions, 1)."""
        rows = [[other] * before + list(row) for before, row in zip(self.before, values, strict=True)]
        return np.array(rows).reshape(len(rows), self.rank, 1)

    @cached_property
    def guarded(self) -> Array:
        return self._by_operand([op.guarded for op in self.geometry.operands])

    @cached_property
    def arithmetic(self) -> Array:
        return self._by_operand([op.arithmetic for op in self.geometry.operands])

    @cached_property
    def source_bytes(self) -> Array:
        return self._by_operand([op.source_bytes for op in self.geometry.operands])

    @cached_property
    def stored_share(self) -> Array:
        return self._by_operand([op.stored_share for op in self.geometry.operands])

    @cached_property
    def uses(self) -> Array:
        """True for the spatial axes of each operand, (operands, spatial axes, 1)."""
        rows = [[i in op.axes for i in self.spatial] for op in self.geometry.operands]
        return np.array(rows, bool).reshape(len(rows), len(self.spatial), 1)

    @cached_property
    def own_dims(self) -> Array:
        """True for the dimensions that an operand has, (operands, dimensions, 1)."""
        return self._by_dimension([[True] * len(op.dims) for op in self.geometry.operands], False)

    @cached_property
    def first_dim(self) -> Array:
        """True for the first of them."""
        return self._by_dimension([[d == 0 for d in range(len(op.dims))] for op in self.geometry.operands], False)

    @cached_property
    def indexed(self) -> Array:
        """True for the dimensions whose index depends on axes, (operands, dimensions, 1)."""
        return self._by_dimension([[bool(dim) for dim in op.dims] for op in self.geometry.operands], False)

    @cached_property
    def offsets(self) -> Array:
        """Offsets of the indices, (operands, dimensions, 1)."""
        return self._by_dimension([[index.const for index in op.access.indices] for op in self.geometry.operands], 0)

    @cached_property
    def _along(self) -> tuple[Array, Array]:
        """Axes along each dimension, and their |coefficients|: (operands, dimensions, axes of one).

        Dimensions of fewer axes have one beyond the last, and coefficients of 0.
        """
        operands, none = self.geometry.operands, len(self.geometry.extents)
        width = max((len(dim) for op in operands for dim in op.dims), default=0) or 1
        pairs = np.array([
            [[*dim, *[(none, 0)] * (width - len(dim))] for dim in ((),) * before + op.dims]
            for op, before in zip(operands, self.before, strict=True)
        ], np.int64).reshape(len(operands), self.rank, width, 2)  # fmt: skip
        return pairs[..., 0], pairs[..., 1]

    @property
    def coefficients(self) -> Array:
        """|Coefficients| of the axes along each dimension, (operands, dimensions, axes of one, 1)."""
        return self._along[1][..., None]

    @cached_property
    def slopes(self) -> Array:
        """|Coefficients| of the spatial axes, (operands, dimensions, spatial axes)."""
        axes, coefficients = self._along
        return np.stack([np.add.reduce((axes == i) * coefficients, axis=2) for i in self.spatial], axis=-1)

    @classmethod
    def of(cls, geometry: Geometry) -> GpuNest:
        """Return the matrices of a nest, made once."""
        known = geometry.prepared.get(cls)
        if known is None:
            known = geometry.prepared[cls] = cls(geometry)
        return known

    def boxes(self, tiles: Array) -> Array:
        """Return the bounding extents of the operands' tiles (see ``Operand.box``), (operands, dimensions, N)."""
        return self._extents(tiles).astype(np.int64)

    def _extents(self, tiles: Array) -> Array:
        """Return the boxes as floats."""
        extents = self._matrix @ (tiles - 1)
        extents += self._least
        found = np.minimum(extents, self._most, out=extents).reshape(len(self.shape), self.rank, -1)
        for n, d, op in self._divided:
            own = _quotients(op, d - self.before[n], tiles.astype(np.int64))
            np.minimum(own, self.shape[n, d], out=found[n, d], casting="unsafe")
        return found

    def elements(self, boxes: Array) -> Array:
        """Return the number of elements of boxes, (operands, N)."""
        return np.multiply.reduce(boxes, axis=1)

    def along(self, columns: Array, other: int) -> Array:
        """Return the columns of the axes that each dimension's index depends on, (operands, dimensions, axes, N).

        Dimensions of fewer axes have `other` for the rest.
        """
        return np.concatenate([columns, np.full((1, columns.shape[1]), other, columns.dtype)])[self._along[0]]

    def points_along(self, tiles: Array) -> Array:
        """Return the points of the axes that each dimension's index depends on, (operands, dimensions, N)."""
        return np.multiply.reduce(self.along(tiles, 1), axis=2)

    def neighbours_along(self, block: Array, part: Array) -> Array:
        """Return the points of a part along each dimension, if they are neighbours there; else 1.

        They are, along an axis of coefficient 1 that is the only one of a dimension to have several points in a block.
        """
        long = self.along(block > 1, False)
        alone = np.add.reduce(long, axis=2, keepdims=True, dtype=np.int64) == 1
        return np.multiply.reduce(np.where(long & alone & (self.coefficients == 1), self.along(part, 1), 1), axis=2)

    def over_own_axes(self, columns: Array) -> Array:
        """Return products of columns of the spatial axes over each operand's own, (operands, N)."""
        return np.multiply.reduce(np.where(self.uses, columns, 1), axis=1)

    def runs(self, boxes: Array) -> Array:
        """Return the length, in elements, of the contiguous runs in memory that make up boxes, (operands, N)."""
        length = boxes[:, -1]
        if self.rank > 1:
            inner = boxes[:, :0:-1]  # from the last dimension to the second
            whole = np.logical_and.accumulate(inner == self.shape[:, :0:-1], axis=1)
            length = length * np.multiply.reduce(np.where(whole, boxes[:, -2::-1], 1), axis=1)
        return length

    def read_once(self, boxes: Array, own: Array) -> Array:
        """Return the number of elements that a thread reads in its part of a step, each once, (operands, N).

        Parameters
        ----------
        boxes : array of (operands, dimensions, N)
            Bounding extents of the part.
        own : array of (axes, N)
            Points of the part. Of a window that no neighbour overlaps (stride as wide as the tile) only the needed
            elements are read.
        """
        return np.multiply.reduce(np.minimum(boxes, self.points_along(own)), axis=1)

    def input_bytes(self, tiles: Array) -> Array:
        """Return the bytes of all operands' boxes."""
        return self.element_bytes[:, 0] @ self.elements(self._extents(tiles))

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
