"""The accesses of one loop nest, prepared so that a tile's boxes and traffic are a few multiplications.

Construction evaluates hundreds of candidate tiles an operator; a tile here is a tuple of extents in the
order of the anchor's axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, prod
from typing import Any

import numpy as np

from ..ir import Access, Stage, TensorExpression, dtype_bytes
from ..ir.stage import Ops, total_of
from ..roller.candidates import Column, Tiles

Tile = tuple[int, ...]


@dataclass(frozen=True)
class Operand:
    """One tensor that the nest reads at its anchor.

    Parameters
    ----------
    access : Access
        Access of the anchor (after a prologue such as padding).
    shape : tuple of int
        Shape of the accessed tensor.
    element_bytes : int
    dims : per dimension, tuple of (axis position, |coefficient|)
    sources : tuple of Access
        Actual reads from memory, with prologues composed away.
    constant : bool
    """

    access: Access
    shape: tuple[int, ...]
    element_bytes: int
    dims: tuple[tuple[tuple[int, int], ...], ...]
    opaque: tuple[bool, ...]
    sources: tuple[Access, ...]
    source_bytes: int
    guarded: bool
    constant: bool
    arithmetic: int  # operations a prologue spends on one element
    guard_axes: frozenset[int] = frozenset()  # axes that its bounds check depends on
    as_stored: bool = True  # in memory element for element: no prologue rearranges what is read
    functions: Ops = ()  # special functions (exp, tanh) that a prologue spends on one element
    told: bool = False  # a tile's place tells which lanes of its vectors its bounds check keeps from memory

    @property
    def name(self) -> str:
        return self.access.tensor

    def checked_along(self, axis: int | None) -> bool:
        """Return whether each of neighbours along an axis is loaded alone, behind its bounds check."""
        return axis in self.guard_axes and not self.told

    @property
    def computed(self) -> bool:
        """True if its values follow from their indices alone: a constant matrix, which is not read from memory."""
        return not self.sources

    @cached_property
    def axes(self) -> frozenset[int]:
        return frozenset(a for dim in self.dims for a, _ in dim)

    @cached_property
    def plain(self) -> bool:
        """True if memory holds its elements exactly as they are read, so that vectors can move them."""
        computed = self.guarded or self.arithmetic or any(self.opaque)
        return not computed and self.as_stored and len(self.shape) > 1

    @cached_property
    def elements_whole(self) -> int:
        return prod(self.shape)

    @cached_property
    def stored_share(self) -> float:
        """Share of the tensor that is in memory; a guarded prologue (padding) makes up the rest."""
        whole = self.elements_whole * self.element_bytes
        return min(1.0, self.source_bytes / whole) if self.guarded and whole else 1.0

    def box(self, tile: Tile) -> list[int]:
        """Return the bounding extents of this operand's tile (see ``expr.box``). Cached: do not change the list."""
        known = self._boxes.get(tile)
        if known is None:
            known = []
            for d, (dim, full, opaque) in enumerate(zip(self.dims, self.shape, self.opaque, strict=True)):
                extent = 1
                for a, c in dim:
                    extent += c * (tile[a] - 1)
                if d in self.divided:
                    extent = self._quotient_extent(d, tile)
                known.append(full if opaque or extent > full else extent)
            self._boxes[tile] = known
        return known

    @cached_property
    def _boxes(self) -> dict[Tile, list[int]]:
        return {}

    @cached_property
    def divided(self) -> frozenset[int]:
        """Dimensions whose index is a floor quotient: neighbours along an axis share elements there."""
        return frozenset(d for d, index in enumerate(self.access.indices) if index.divisor > 1)

    def boxes(
        self, tiles: Tiles | Sequence[Column], before: Sequence[Column] = (), moved: frozenset[int] = frozenset()
    ) -> list[Column]:
        """Return the extents of N tiles of this operand, a column a dimension: places met, gaps between them left out.

        Parameters
        ----------
        before : sequence of column
            Extents of tiles that differ in the axes `moved` alone.
        """
        found: list[Column] = []
        for d, (dim, full, opaque) in enumerate(zip(self.dims, self.shape, self.opaque, strict=True)):
            if before and not any(a in moved for a, _ in dim):
                found.append(before[d])
                continue
            if opaque:
                found.append(full)
                continue
            if d in self.divided:
                extent = self._quotient_extents(d, tiles)
            else:
                extent, places = 1, 1
                for a, c in dim:
                    extent, places = extent + c * (tiles[a] - 1), places * tiles[a]
                extent = min(extent, places) if isinstance(extent, int) else np.minimum(extent, places)
            found.append(min(extent, full) if isinstance(extent, int) else np.minimum(extent, full))
        return found

    def _quotient_extents(self, d: int, tiles: Tiles | Sequence[Column]) -> Column:
        """Return the extents of N tiles along a dimension whose index is a quotient."""
        own = np.array(np.broadcast_arrays(*(tiles[a] for a, _ in self.dims[d])))
        if own.ndim == 1:
            return self._quotient_extent(d, tuple(int(e) for e in tiles))
        distinct, where = np.unique(own, axis=1, return_inverse=True)
        index = self.access.indices[d]
        extents = [index.extent(dict(zip(index.axes, tile, strict=True))) for tile in distinct.T.tolist()]
        return np.array(extents)[where.ravel()]

    def runs(self, boxes: Sequence[Column]) -> Column:
        """Return the lengths, in elements, of the contiguous runs in memory that make up N boxes."""
        length: Column = 1
        going: Column = True
        for extent, full in zip(reversed(boxes), reversed(self.shape), strict=True):
            length = length * np.where(going, extent, 1)
            going = np.logical_and(going, np.equal(extent, full))
        return length

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each dimension of the tensor."""
        return tuple(prod(self.shape[d + 1 :]) for d in range(len(self.shape)))

    def _quotient_extent(self, d: int, tile: Tile) -> int:
        index = self.access.indices[d]
        return index.extent({n: tile[a] for n, (a, _) in zip(index.axes, self.dims[d], strict=True)})

    def elements(self, tile: Tile) -> int:
        """Return the number of elements in the bounding box of a tile."""
        return prod(self.box(tile))

    def run(self, box: Sequence[int]) -> int:
        """Return the length, in elements, of the contiguous runs in memory that make up a box."""
        length = 1
        for extent, full in zip(reversed(box), reversed(self.shape), strict=True):
            length *= extent
            if extent < full:
                break
        return length

    def stride_of(self, axis: int | None) -> int:
        """Return the elements between neighbours along an axis, in the row-major tensor; 0 if the axis is absent.

        Above 1 along a quotient: its neighbours are no run, even if they share elements.
        """
        return self._strides_of.get(axis, 0)

    @cached_property
    def _strides_of(self) -> dict[int | None, int]:
        return {axis: self._stride_of(axis) for axis in self.axes}

    def _stride_of(self, axis: int) -> int:
        stride, total = 1, 0
        for d, full in zip(range(len(self.dims) - 1, -1, -1), reversed(self.shape), strict=True):
            step = sum(c for a, c in self.dims[d] if a == axis)
            if step and d in self.divided:
                step = max(2, ceil(step / self.access.indices[d].divisor))
            total += stride * step
            stride *= full
        return total


@dataclass(frozen=True)
class Geometry:
    """One stage with its operands, its axes by position, and the epilogue fused into it."""

    expression: TensorExpression
    stage: Stage
    operands: tuple[Operand, ...]
    epilogue_bytes: int  # read by the epilogue, whole tensors
    epilogue_flops: int  # per output element
    output_bytes: int  # per output element
    epilogue_functions: Ops = ()  # special functions per output element

    @classmethod
    def of(
        cls,
        expression: TensorExpression,
        stage_name: str,
        inlined: Sequence[str] = (),
        output: str | None = None,
    ) -> Geometry:
        """Prepare one nest and return its geometry.

        Parameters
        ----------
        expression, stage_name
            Expression, and name of the nest's anchor.
        inlined : sequence of str
            Stages computed in place: prologues are composed into the operands' sources, epilogues into the store.
        output : str, optional
            Stage that is stored; the anchor by default.
        """
        stage = expression.stage(stage_name)
        position = {a.name: i for i, a in enumerate(stage.axes)}
        operands: dict[str, Operand] = {}
        for access in stage.reads:
            if access.tensor in operands and operands[access.tensor].access == access:
                continue
            key = access.tensor if access.tensor not in operands else f"{access.tensor}#{len(operands)}"
            operands[key] = operand_of(expression, access, position, inlined)
        end = output or stage_name
        after: list[Stage] = []
        computed = {stage_name}
        for later in expression.stages if end != stage_name else ():
            if (later.name in inlined or later.name == end) and any(a.tensor in computed for a in later.reads):
                after.append(later)
                computed.add(later.name)
        read_after = {a.tensor for s in after for a in s.reads if a.tensor not in computed}
        points = stage.output_elements
        return cls(
            expression, stage, tuple(operands.values()),
            sum(expression.tensors[t].bytes for t in read_after),
            sum(s.flops for s in after) // points,
            dtype_bytes(expression.tensors[end].dtype),
            total_of(*(s.functions for s in after)),
        )  # fmt: skip

    @cached_property
    def axes(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.stage.axes)

    @cached_property
    def extents(self) -> Tile:
        return tuple(a.extent for a in self.stage.axes)

    @cached_property
    def spatial(self) -> tuple[int, ...]:
        return tuple(i for i, a in enumerate(self.stage.axes) if not a.is_reduce)

    @cached_property
    def reduce(self) -> tuple[int, ...]:
        return tuple(i for i, a in enumerate(self.stage.axes) if a.is_reduce)

    @cached_property
    def weights(self) -> tuple[Operand, ...]:
        """Operands that are constant, though a reading of them as stored tells otherwise."""
        return tuple(op for op in self.operands if self.expression.tensors[op.name].constant)

    @cached_property
    def spatial_set(self) -> frozenset[int]:
        return frozenset(self.spatial)

    @cached_property
    def window(self) -> frozenset[int]:
        """Reduction axes of sliding windows: windows of neighbouring outputs overlap along them."""
        return frozenset(
            a for op in self.operands for dim in op.dims for a, c in dim
            if a not in self.spatial_set
            and any(b in self.spatial_set and step < c * self.extents[a] for b, step in dim)
        )

    @cached_property
    def window_axes(self) -> tuple[int, ...]:
        """Reduction axes that share a dimension of an operand with another axis, whether windows overlap or not."""
        shared = {a for op in self.operands for dim in op.dims if len(dim) > 1 for a, _ in dim}
        return tuple(i for i in self.reduce if i in shared)

    @cached_property
    def accumulator_bytes(self) -> int:
        """Bytes of one output of the anchor, before the epilogue."""
        return dtype_bytes(self.stage.dtype)

    @cached_property
    def widest_bytes(self) -> int:
        """Bytes of the widest element along the vector axis: an operand's, a sum's or an output's."""
        along = [op.element_bytes for op in self.operands if self.vector_axis in op.axes]
        return max(self.accumulator_bytes, self.output_bytes, *along)

    @cached_property
    def prepared(self) -> dict[type, Any]:
        """Forms of this nest that a model prepares once for all tiles, by type."""
        return {}

    def input_bytes(self, tile: Tile) -> int:
        """Return the bytes of all operands' boxes for one tile."""
        return sum(op.elements(tile) * op.element_bytes for op in self.operands)

    def is_contraction(self) -> bool:
        """Return whether two operands are each reused along an axis of their own, as in a matrix product."""
        lacking = [
            {i for i in self.spatial if i not in op.axes and self.extents[i] > 1}
            for op in self.operands
            if op.axes
        ]
        return len(lacking) > 1 and sum(1 for axes in lacking if axes) > 1

    @cached_property
    def vector_axis(self) -> int | None:
        """Position of the axis that a CPU vectorises: the last spatial one of more than one iteration; else None."""
        return next((i for i in reversed(self.spatial) if self.extents[i] > 1), None)

    def tiles(self, tile: Tile, positions: Sequence[int]) -> int:
        """Return the number of tiles that cover the given axes."""
        return prod(ceil(self.extents[i] / tile[i]) for i in positions)

    def outputs(self, tiles: Tiles) -> Column:
        """Return the number of outputs of each of N tiles."""
        return prod(tiles[i] for i in self.spatial)

    def covering(self, tiles: Tiles, whole: Tiles | None = None) -> Column:
        """Return the number of tiles that cover the spatial axes of the nest, or of the larger tiles `whole`."""
        whole = self.extents if whole is None else whole
        return prod(-(-whole[i] // tiles[i]) for i in self.spatial)

    def reducing(self, tiles: Tiles) -> list[Column]:
        """Return tiles with the reductions whole, by axis."""
        return [e if i in self.reduce else tiles[i] for i, e in enumerate(self.extents)]

    def reuse(self, axis: int) -> bool:
        """Return whether some operand is reused along a spatial axis: it lacks it, or a window slides along it."""
        return any(
            axis not in op.axes or any(len(dim) > 1 and any(a == axis for a, _ in dim) for dim in op.dims)
            for op in self.operands
        )


def in_memory(geometry: Geometry, inlined: Sequence[str]) -> Geometry:
    """Return a nest without reduction with its operands in memory: in-place stages are replaced by their reads."""
    expression, position = geometry.expression, {a: i for i, a in enumerate(geometry.axes)}
    operands = [operand_of(expression, a, position, ()) for a in expression.resolve(geometry.stage, inlined)]
    if not operands:
        return geometry
    work = sum(op.arithmetic for op in geometry.operands)
    functions = total_of(*(op.functions for op in geometry.operands))
    operands[0] = replace(operands[0], arithmetic=work, functions=functions)
    return replace(geometry, operands=tuple(operands))


def operand_of(
    expression: TensorExpression, access: Access, position: dict[str, int], inlined: Sequence[str]
) -> Operand:
    tensor = expression.tensors[access.tensor]
    sources: tuple[Access, ...] = (access,)
    arithmetic = 0
    as_stored = True
    guarded = access.guarded
    # Dimensions that are shifted, or longer than what they are read from, are what the check is about.
    checked = [d for d, index in enumerate(access.indices) if index.const or index.opaque] if guarded else []
    if expression.is_stage(access.tensor) and access.tensor in inlined:
        producer = expression.stage(access.tensor)
        sources = expression.resolve(producer, inlined)
        guarded = guarded or any(s.guarded for s in sources)
        arithmetic = producer.flops_per_point
        as_stored = [s.indices for s in sources] == [producer.write().indices]
        as_stored = as_stored and expression.tensors[sources[0].tensor].shape == tensor.shape
        dimension = {a: d for d, index in enumerate(producer.write().indices) for a in index.axes}
        for source in sources:
            if source.guarded:
                shifted = [index for index in source.indices if index.const or index.opaque]
                checked += [dimension[a] for index in shifted for a in index.axes]
                if any(index.opaque for index in shifted):
                    checked = list(range(len(tensor.shape)))
    guard_axes = frozenset(position[n] for d in checked for n in access.indices[d].axes)
    return Operand(
        access, tensor.shape, dtype_bytes(tensor.dtype),
        tuple(tuple((position[n], abs(c)) for n, c in index.terms) for index in access.indices),
        tuple(index.opaque for index in access.indices),
        sources,
        sum(expression.tensors[s.tensor].bytes for s in sources),
        guarded, tensor.constant, arithmetic, guard_axes, as_stored,
        _functions(expression, access.tensor, inlined),
    )  # fmt: skip


def _functions(expression: TensorExpression, name: str, inlined: Sequence[str]) -> Ops:
    """Return the special functions that one element of a tensor costs if it is computed in place."""
    if not expression.is_stage(name) or name not in inlined:
        return ()
    stage = expression.stage(name)
    return total_of(stage.functions, *(_functions(expression, a.tensor, inlined) for a in stage.reads))
