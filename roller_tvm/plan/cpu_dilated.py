"""Construction of recipe cpu.dilated: transposed convolutions, as products over an operand dilated with zeros.

If a tile is as long as the distance of the elements, and the window is unrolled with it, every product with a zero is
known when the kernel is compiled and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from ..expr import Index, Stage, TensorExpression
from ..model.cpu import CpuRates
from ..model.cpu_dilated import dilated_estimate, strides
from ..model.estimate import ProgramEstimate
from ..model.geometry import Geometry, Tile, in_memory
from .align import aligned_extents
from .cpu import REGISTER_TILES, UNROLLED_LOADS, chunks_of, single_vectors
from .partition import NestShape
from .program import RProgram
from .search import Search


def divides(expression: TensorExpression) -> bool:
    """Return whether some index is a quotient, as a dilated operand's is."""
    return any(i.divisor > 1 for s in expression.stages for a in s.reads for i in a.indices)


@dataclass(frozen=True)
class TurnedNest(NestShape):
    """A nest whose output has the anchor's axes in another order."""


def turned(expression: TensorExpression, nests: tuple[NestShape, ...]) -> tuple[NestShape, ...] | None:
    """Return the nests with the last fused into a dilated product before it; None unless it only turns its result."""
    if len(nests) < 2:
        return None
    *before, product_, last = nests
    anchor, output = expression.stage(product_.anchor), expression.stage(last.output)
    if product_.output != anchor.name or output.reduce or last.anchor != last.output or not anchor.reduce:
        return None
    reads = expression.resolve(output, last.inlined)
    mine = [a for a in reads if a.tensor == anchor.name]
    extents, own = output.extents, anchor.write().indices
    if len(mine) != 1 or any(expression.is_stage(a.tensor) and a.tensor != anchor.name for a in reads):
        return None
    axes = []
    for index, dim in zip(mine[0].indices, own, strict=True):
        if not index.terms and not index.const and anchor.extents[dim.axes[0]] == 1:
            continue  # an axis of one element that the output does not have
        if len(index.terms) != 1 or index != Index.axis(index.axes[0]) or len(dim.terms) != 1:
            return None
        if extents[index.axes[0]] != anchor.extents[dim.axes[0]]:
            return None
        axes.append(index.axes[0])
    whole = prod(extents[a] for a in set(axes)) == output.output_elements
    if not whole or len(set(axes)) < len(axes):
        return None
    order = [s.name for s in expression.stages]
    inlined = tuple(sorted({*product_.inlined, *last.inlined}, key=order.index))
    return (*before, TurnedNest(anchor.name, output.name, inlined))


def output_axes(
    expression: TensorExpression, anchor: Stage, output: Stage, inlined: Sequence[str]
) -> dict[str, str]:
    """Return the axis of the output that each axis of the anchor becomes.

    Examples
    --------
    >>> from roller_tvm.expr.operators import operator
    >>> conv = operator("conv2d_nchw", n=1, c=8, h=8, w=8, f=8, k=3)
    >>> output_axes(conv, conv.anchor, conv.anchor, ())["oh"]
    'oh'
    """
    if anchor is output:
        return {a.name: a.name for a in anchor.spatial}
    reads = [a for a in expression.resolve(output, inlined) if a.tensor == anchor.name]
    return {
        own.terms[0][0]: read.terms[0][0]
        for own, read in zip(anchor.write().indices, reads[0].indices, strict=True)
        if read.terms
    }


def dilated(geometry: Geometry, inlined: Sequence[str]) -> bool:
    """Return whether a nest reduces over an operand dilated with zeros, in steps that divide its axes."""
    geometry = in_memory(geometry, inlined)
    steps = strides(geometry)
    spatial = [i for i in steps if i in geometry.spatial_set]
    return bool(spatial) and bool(geometry.reduce) and all(geometry.extents[i] % steps[i] == 0 for i in spatial)


def construct_dilated(search: Search, top: int) -> list[tuple[RProgram, ProgramEstimate]]:
    """Return ranked candidates of recipe cpu.dilated: vectors along an undilated last axis, or columns left to LLVM."""
    nest = search.nest
    if nest.output != nest.anchor and not isinstance(nest, TurnedNest):
        return []
    search.geometry = in_memory(search.geometry, nest.inlined)
    g, device = search.geometry, search.device
    steps = strides(g)
    rates = CpuRates.of(device, g)
    vector = g.vector_axis is not None and g.vector_axis not in steps
    found: list[tuple[float, RProgram, ProgramEstimate]] = []
    for tile in _tiles(search, rates, vector):
        candidates = []
        for chunk in dict.fromkeys([*_rows(g, tile), *chunks_of(search, tile, device.units)]):
            if vector or all(chunk[i] == g.extents[i] for i in g.spatial if i == g.vector_axis):
                search.considered += 1
                candidates.append((dilated_estimate(g, device, chunk, tile, vector), chunk))
        for estimate, chunk in sorted(candidates, key=lambda c: c[0].seconds)[:2]:
            found.append((estimate.seconds, _program(search, chunk, tile, vector), estimate))
    found.sort(key=lambda c: c[0])
    return [(program, estimate) for _, program, estimate in found[: 2 * top]]


def _rows(g: Geometry, tile: Tile) -> list[Tile]:
    """Return chunks of a few rows of steps, all else whole: their sums stay in cache until the output is written."""
    first = next(i for i in g.spatial if i in strides(g))
    lengths = aligned_extents(g.extents[first], 0.0, step=tile[first])
    return [tuple(length if i == first else e for i, e in enumerate(g.extents)) for length in lengths]


def _tiles(search: Search, rates: CpuRates, vector: bool) -> list[Tile]:
    """Return register tiles of whole steps; for a reduction, its unrolled extents (windows whole)."""
    g = search.geometry
    steps = strides(g)
    options: list[list[int]] = []
    for i, extent in enumerate(g.extents):
        if i in steps:
            whole = i in g.reduce
            sizes = [extent] if whole else aligned_extents(extent, 0.0, step=steps[i], most=rates.registers // 2)
            if not vector and not whole:  # the compiler's vectors run over the steps
                sizes = [steps[i]]
        elif i == g.vector_axis and vector:
            sizes = single_vectors(extent, rates.lanes, 2)
            sizes = [v for v in sizes if v % rates.lanes == 0] or sizes[:1]
        elif i in g.reduce and not vector:
            sizes = aligned_extents(extent, 0.0, most=rates.lanes)
        else:
            sizes = [1]
        options.append([e for e in sizes if g.stage.axes[i].is_box(e)] or [1])
    scored: list[tuple[float, Tile]] = []
    for tile in product(*options):
        outputs = prod(tile[i] for i in g.spatial)
        unrolled = prod(tile) // (tile[g.vector_axis] if vector and g.vector_axis is not None else 1)
        if unrolled > UNROLLED_LOADS or not g.stage.is_box(tile):
            continue
        search.considered += 1
        chunk = tuple(e if i in g.reduce else tile[i] for i, e in enumerate(g.extents))
        scored.append((dilated_estimate(g, search.device, chunk, tile, vector).compute_seconds / outputs, tile))
    scored.sort()
    return [t for _, t in scored[:REGISTER_TILES]]


def _program(search: Search, chunk: Tile, tile: Tile, vector: bool) -> RProgram:
    g = search.geometry
    register = tuple(1 if i in g.reduce else e for i, e in enumerate(tile))
    tiles = (search.rtile("l2", chunk), search.rtile("register", register))
    output = g.expression.stage(search.nest.output)
    rates = CpuRates.of(search.device, g)
    stored = next((a for a in reversed(output.spatial) if a.extent > 1), output.spatial[-1])
    of = output_axes(g.expression, g.stage, output, search.nest.inlined)
    lengths = {of[name]: length for name, length in zip(g.axes, chunk, strict=True) if name in of}
    wide = single_vectors(lengths.get(stored.name, stored.extent), rates.lanes, 1)[0]
    choices = tuple((f"unroll:{g.axes[i]}", tile[i]) for i in reversed(g.reduce) if tile[i] > 1)
    return search.program("cpu.dilated", tiles, (*choices, ("columns", int(not vector)), ("vector", wide)))
