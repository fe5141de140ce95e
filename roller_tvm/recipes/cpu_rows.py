"""Construction of recipe cpu.rows: one parallel loop over rows, every stage inside it.

Micro-performance model of recipe cpu.rows: every stage of a row while the row is in the nearest cache.

Recipe cpu.rows: an rProgram as schedule steps.

Shape of the loops::

    cpu.rows     row -> parallel   rest   v -> vector                          output
                   rest   reduction   v -> vector                              every kept stage, at row
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from ..device import DeviceSpec
from ..ir import Stage, TensorExpression
from ..micro_perf.cpu import calls_of
from ..micro_perf.cpu_rates import CpuRates
from ..micro_perf.estimate import ProgramEstimate
from ..micro_perf.geometry import Geometry
from ..roller.loops import fuse, open_parts
from ..roller.rprogram import RProgram
from ..roller.steps import ComputeAt, Inline, Parallel, Reorder, Split, Step, Unroll, Vectorize
from .cpu_direct import stage_cycles, streamed
from .kinds import Kind
from .lane_nests import CHAINS
from .recipe import Context, CpuRecipe, Fit, Ranked
from .row_nests import RowNest


def construct_rows(ctx: Context, top: int) -> Ranked:
    """Return candidates of recipe cpu.rows: the rows in parallel, or one after the other on the calling thread."""
    nest, g = ctx.nest, ctx.geometry
    assert isinstance(nest, RowNest)
    expression = g.expression
    stages = [*nest.kept, nest.output]
    vectors = {name: row_vector(expression.stage(name), nest, ctx.device, g) for name in stages}
    rows = prod(a.extent for a in expression.stage(nest.output).spatial[: nest.rows])
    row = tuple(1 if n < nest.rows else e for n, e in enumerate(g.extents))
    own = vectors[nest.anchor] or 1
    own = row[g.vector_axis] if g.vector_axis is not None and side_by_side(g.stage, row[g.vector_axis], own) else own
    inner = tuple(own if i == g.vector_axis else 1 if i in g.spatial_set else e for i, e in enumerate(row))
    tiles = (ctx.rtile("l2", row), ctx.rtile("register", inner))
    found = []
    for parallel in (True, False)[rows == 1 :]:
        ctx.considered += 1
        estimate = rows_estimate(expression, ctx.device, stages, nest.inlined, vectors, rows, parallel)
        wide = tuple((f"vector:{name}", v) for name, v in vectors.items() if v)
        choices = (("rows", nest.rows), ("parallel", int(parallel)), *wide)
        found.append((ctx.program("cpu.rows", tiles, choices, nest.kept), estimate))
    return sorted(found, key=lambda c: c[1].seconds)


def row_vector(stage: Stage, nest: RowNest, device: DeviceSpec, geometry: Geometry) -> int:
    """Return the length of a stage's vectors: the most lanes, by halves, that divide its last axis; 0 for none.

    If vectors may stand over an edge: all lanes, provided that a row fills them once.

    A stage that calls a function for every element gains nothing from vectors: the calls take them apart.
    Exp and the like are computed in vectors.
    """
    own = Geometry.of(geometry.expression, stage.name, nest.inlined)
    last = own.vector_axis
    calls = calls_of(stage.ops, *(op.functions for op in own.operands if last in op.axes))
    if last is None or last < nest.rows or calls or any(op.stride_of(last) > 1 for op in own.operands):
        return 0
    rates = CpuRates.of(device, own)
    lanes, guarded = rates.lanes, any(op.guarded for op in own.operands)
    if rates.edge_vectors and own.extents[last] >= lanes and not guarded and not own.stage.axes[last].part_of:
        return lanes
    while lanes > 2 and own.extents[last] % lanes:
        lanes //= 2
    return lanes if own.extents[last] % lanes == 0 and lanes > 2 else 0


def side_by_side(stage: Stage, extent: int, vector: int) -> bool:
    """Return whether a row's sums are several vectors, but few enough to grow side by side in registers."""
    return bool(stage.reduce) and vector < extent <= CHAINS[0] * vector


def rows_estimate(
    expression: TensorExpression, device: DeviceSpec, stages: Sequence[str], inlined: Sequence[str],
    vectors: Mapping[str, int], rows: int, parallel: bool,
) -> ProgramEstimate:  # fmt: skip
    """Return the predicted time of recipe cpu.rows.

    Parameters
    ----------
    stages : sequence of str
        Stages computed for each row, in order; the last one is the output.
    vectors : mapping of str to int
        Stage -> neighbours computed at a time.
    rows : int
        Trips of the loop over rows.
    """
    output = expression.tensors[stages[-1]]
    nests = [Geometry.of(expression, name, inlined) for name in stages]
    rates = CpuRates.of(device, nests[-1])
    cycles = [stage_cycles(g, CpuRates.of(device, g), vectors[g.stage.name]) for g in nests]
    outside = {a.tensor for g in nests for op in g.operands for a in op.sources if a.tensor not in stages}
    moved = sum(expression.tensors[t].bytes for t in outside) + output.bytes
    held = sum(expression.tensors[t].bytes for t in {*stages, *outside}) / rows
    flops = sum(g.stage.flops for g in nests)
    if held > rates.caches[-1][1]:  # a row that no cache holds comes again for every stage
        moved += sum(2 * expression.tensors[name].bytes for name in stages[:-1])
    weights = sum(expression.tensors[t].bytes for t in outside if expression.tensors[t].constant)
    computed = sum(expression.tensors[t].bytes for t in outside) - weights
    chunks = rows if parallel else 1
    estimate = streamed(
        device, rates, cycles, moved, chunks, flops, rows, written=output.bytes, computed=computed, weights=weights,
    )  # fmt: skip
    return replace(estimate.row(0), shared_bytes=int(held))


def lower_cpu_rows(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe cpu.rows."""
    steps: list[Step] = [Inline(name) for name in program.inlined]
    output, rows = expression.stage(program.output), program.choice("rows")
    steps += _in_vectors(output, program)
    loops = [a.name for a in output.spatial[:rows]]
    row = fuse(steps, output.name, loops, "row") if rows else ""
    if program.choice("parallel"):
        steps.append(Parallel(output.name, row))
    for name in reversed(program.staged):
        if rows:  # a single row needs no loop to be computed in
            steps.append(ComputeAt(name, output.name, row))
        steps += _in_vectors(expression.stage(name), program)
    return steps


def _in_vectors(stage: Stage, program: RProgram) -> list[Step]:
    """Return the steps of one stage's loops: axes in order, the reduction, and vectors of the last axis innermost."""
    steps, spatial = open_parts(stage.name, stage.spatial)
    opened, reduce = open_parts(stage.name, stage.reduce)
    steps += opened
    vector = program.choice(f"vector:{stage.name}")
    if not vector:
        return steps
    at = next(n for n in reversed(range(len(spatial))) if stage.spatial[n].extent > 1)
    last = spatial[at]
    inner = last
    if vector < stage.spatial[at].extent:
        inner = f"{last}.v"
        steps.append(Split(stage.name, last, (vector,), (f"{last}.o", inner)))
        spatial[at] = f"{last}.o"
    else:
        del spatial[at]
    if side_by_side(stage, stage.spatial[at].extent, vector):
        several = spatial.pop(at)
        reduce = [*reduce, several]
        steps.append(Unroll(stage.name, several))
    steps.append(Reorder(stage.name, (*spatial, *reduce, inner)))
    steps.append(Vectorize(stage.name, inner))
    return steps


class CpuRows(CpuRecipe):
    """Rows that go through every stage."""

    name = "cpu.rows"
    says = "each row goes through every stage while a cache holds it, rows in parallel"
    suits = {Kind.ROWS: Fit.YES}
    staged = "kept for a row"

    def construct(self, ctx: Context, top: int) -> Ranked:
        return construct_rows(ctx, top)

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_cpu_rows(expression, program)
