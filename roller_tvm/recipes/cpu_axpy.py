"""Construction of recipe cpu.axpy: products whose rows no vectors divide, 521 elements long for instance.

A register tile has to divide its axes; along a prime axis it is one element wide. Recipe cpu.axpy keeps a whole row of
sums in the nearest cache instead. LLVM, which may leave a remainder, vectorises the loop along it.

Micro-performance model of recipe cpu.axpy: rows of sums in the nearest cache, a scaled row added at a time.

Recipe cpu.axpy: an rProgram as schedule steps.

Shape of the loops::

    cpu.axpy   outer.. -> parallel   rest   row          output
               reduction   row                           sums of a row, in the nearest cache; LLVM vectorises
"""

from __future__ import annotations

from math import ceil, prod

import numpy as np

from ..ir import TensorExpression
from ..micro_perf.cpu import (
    RegisterUse,
    TileCost,
    calls_of,
    combined,
    epilogue_cycles,
    left_over,
    point_slots,
    prologues,
    tiled_times,
)
from ..micro_perf.cpu_constants import CALL, LONG_LOOP, ROW_OVERHEAD, SIDE_BY_SIDE, TILE_OVERHEAD
from ..micro_perf.cpu_rates import CpuRates
from ..micro_perf.geometry import Geometry, Tile
from ..roller.alignment import Rejection, capacity
from ..roller.loops import fuse, open_parts, vector_last
from ..roller.rprogram import RProgram
from ..roller.steps import CacheWrite, ComputeAt, Inline, Parallel, Reorder, Step
from .kinds import Kind
from .recipe import Context, CpuRecipe, Fit, Ranked


def construct_axpy(ctx: Context, top: int) -> Ranked:
    """Return ranked candidates of recipe cpu.axpy: how many outer axes run in parallel."""
    g, device = ctx.geometry, ctx.device
    last = g.vector_axis
    if last is None or not g.operands:
        return []
    rates = ctx.rates
    row = g.extents[last] * g.output_bytes * sum(last in op.axes for op in g.operands)
    if ctx.reject(_even(g, rates)) or ctx.reject(
        capacity(device.levels[-2].name, row, int(rates.caches[0][1]), "split the axis")
    ):
        return []
    rest = [i for i in g.spatial if i != last]
    tile = tuple(e if i == last else 1 for i, e in enumerate(g.extents))
    whole = tuple(e if i in g.reduce else t for i, (e, t) in enumerate(zip(g.extents, tile, strict=True)))
    outers = [n for n in range(1, len(rest) + 1) if g.extents[rest[n - 1]] > 1]
    if not outers:
        return []
    ctx.considered += len(outers)
    chunks = np.array([_share(g, rest[:outer], device.units) for outer in outers]).T
    orders = np.array([np.where(chunks[i] > 1, i, -1) for i in rest]).reshape(len(rest), -1)
    tiles = np.array([tile] * len(outers)).T
    times = tiled_times(g, device, chunks, tiles, orders, cost=axpy_cost(g, rates), rates=rates)
    found: Ranked = []
    for n in np.argsort(times.seconds, kind="stable")[:top].tolist():
        rtiles = (ctx.rtile("l2", chunks[:, n]), ctx.rtile("register", whole))
        found.append((ctx.program("cpu.axpy", rtiles, (("parallel", outers[n]),)), times.row(n)))
    return found


def _even(g: Geometry, rates: CpuRates) -> Rejection | None:
    """Return a rejection if a register tile serves as well or a row cannot be vectorised, else None."""
    last = g.vector_axis
    assert last is not None
    told = ("execution unit", f"rows of '{g.axes[last]}' that vectors do not divide")
    if g.extents[last] <= rates.lanes:
        return Rejection(*told, f"{g.extents[last]} elements", "a row that short is a vector")
    if g.extents[last] % rates.lanes == 0:
        return Rejection(*told, str(g.extents[last]), "take recipe cpu.tiled")
    if any(last in op.axes and op.stride_of(last) != 1 or last in op.guard_axes for op in g.operands):
        return Rejection(*told, "elements apart, or checked one by one", "store the operand in another layout")
    return None


def _share(g: Geometry, leading: list[int], units: int) -> Tile:
    """Return one core's share of the parallel loops: neighbouring iterations."""
    share, left = list(g.extents), units
    for i in leading:
        share[i] = ceil(g.extents[i] / left)
        left = ceil(left / g.extents[i])
    return tuple(share)


def axpy_cost(geometry: Geometry, rates: CpuRates) -> TileCost:
    """Return the cost of one row of sums over the whole reduction."""
    g, last = geometry, geometry.vector_axis
    assert last is not None
    points, row = prod(g.extents[i] for i in g.reduce), g.extents[last]
    alone = left_over(row, rates.lanes)
    vectors = (row - alone) // rates.lanes
    per_point = point_slots(g)
    rows = sum(last in op.axes for op in g.operands)
    others = len(g.operands) - rows
    # A sum is read, added to and stored; what is left over does the same for a single element.
    busy = max((vectors + alone) * per_point / rates.fma, (vectors + alone) / rates.stores)
    loads = ((vectors + alone) * (rows + 1) + others) / rates.loads
    vectors_stored = row / rates.lanes
    epilogue = 2 * vectors_stored / rates.fma + epilogue_cycles(g, vectors_stored, row, rates) + TILE_OVERHEAD
    before, calls = prologues(g, tuple(row if i == last else 1 for i in range(len(g.extents))), rates)
    calls += calls_of(g.stage.ops) * row
    busy += before
    use = RegisterUse(SIDE_BY_SIDE, vectors * rows, others, 0)
    entered = ROW_OVERHEAD if row >= LONG_LOOP else 0  # a shorter one LLVM writes out
    other = points * (entered + CALL * calls) + epilogue
    together = combined(points * busy, points * loads, rates.ports)
    return TileCost(use, points * busy, points * loads, together, frozenset(), 0.0, other)


def lower_cpu_axpy(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe cpu.axpy."""
    anchor, out = expression.stage(program.anchor), program.output
    steps: list[Step] = [Inline(name) for name in program.inlined]
    inner = anchor.name
    if anchor.name == out:
        inner = f"{anchor.name}.local"
        steps.append(CacheWrite(anchor.name, "local", inner))
    opened, loops = open_parts(out, expression.stage(out).spatial)
    loops = vector_last(loops, anchor)
    steps += [*opened, Reorder(out, tuple(loops))]
    outer, rest = program.choice("parallel"), loops[:-1]
    whole = fuse(steps, out, rest[:outer], "outer")
    steps += [Parallel(out, whole), ComputeAt(inner, out, whole if outer == len(rest) else rest[-1])]
    opened, own = open_parts(inner, anchor.spatial)
    opened_reduce, reduce = open_parts(inner, anchor.reduce)
    own = vector_last(own, anchor)
    return [*steps, *opened, *opened_reduce, Reorder(inner, (*own[:-1], *reduce, own[-1]))]


class CpuAxpy(CpuRecipe):
    """Rows of sums in the nearest cache, for rows that no vectors divide."""

    name = "cpu.axpy"
    says = "rows of sums in the nearest cache, a scaled row added at a time, outer rows in parallel"
    suits = {Kind.PRODUCT: Fit.YES}

    def construct(self, ctx: Context, top: int) -> Ranked:
        return construct_axpy(ctx, top)

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_cpu_axpy(expression, program)
