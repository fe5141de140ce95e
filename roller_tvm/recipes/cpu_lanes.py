"""Construction of recipe cpu.lanes: register tiles that reduce in lanes and merge the lanes in the same tile.

Micro-performance model of recipe cpu.lanes: register tiles whose lanes are merged in the nearest cache.

Recipe cpu.lanes: an rProgram as schedule steps.

Shape of the loops (``p`` parallel chunks, ``m`` register tiles of a chunk, ``i`` inside a register tile)::

    cpu.lanes    p.. -> parallel   m.. in the plan's order   i.. (vectors)           output
                   reduction   i.. unrolled   lanes -> vector                        anchor, at the last m
                   i..   terms unrolled   the remaining lanes -> vector              merges, at the last m
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ..ir import Stage, TensorExpression
from ..micro_perf.cpu import CpuRates, TileCost, epilogue_cycles, tiled_estimate
from ..micro_perf.geometry import Geometry, Tile
from ..roller.loops import open_parts
from ..roller.rprogram import RProgram
from ..roller.steps import ComputeAt, Fuse, Inline, Parallel, Reorder, Split, Step, Unroll, Vectorize
from .cpu_nests import CpuRecipe, Kind
from .cpu_tiled import ALIKE, chunks_of, orders_of, register_tiles
from .lane_nests import LaneNest
from .recipe import Context, Fit, Ranked


def construct_lanes(ctx: Context, top: int) -> Ranked:
    """Return ranked candidates of recipe cpu.lanes: register tile and chunks of the outputs, all lanes in the tile."""
    nest, device = ctx.nest, ctx.device
    assert isinstance(nest, LaneNest)
    expression = ctx.geometry.expression
    ctx = ctx.over(Geometry.of(expression, nest.anchor, nest.inlined))
    g = ctx.geometry
    if len(g.spatial) < 2 or g.stage.uneven:
        return []
    *first, last = nest.merges
    merges = [
        *(Geometry.of(expression, name, nest.inlined) for name in first),
        Geometry.of(expression, last, nest.inlined, nest.output),
    ]
    rates = CpuRates.of(device, g)
    lanes = g.spatial[-1]
    stored = expression.tensors[nest.output].bytes + merges[-1].epilogue_bytes
    found = []
    for tile in register_tiles(ctx, rates):
        if tile[lanes] < g.extents[lanes]:
            continue
        cost, of_tile = lanes_cost(g, merges, tile, rates), []
        for chunk in chunks_of(ctx, tile, device.units):
            estimates = []
            for order in orders_of(g, chunk, tile):
                ctx.considered += 1
                estimates.append((tiled_estimate(g, device, chunk, tile, order, cost=cost, stored=stored), order))
            least = min(e.seconds for e, _ in estimates)
            estimate, order = next(e for e in estimates if e[0].seconds <= least * (1 + ALIKE))
            of_tile.append((estimate.seconds, chunk, tile, order, estimate))
        found += sorted(of_tile, key=lambda c: c[0])[: max(2, top // 3)]
    found.sort(key=lambda c: c[0])
    programs = []
    for _, chunk, tile, order, estimate in found[: 2 * top]:
        tiles = (ctx.rtile("l2", chunk), ctx.rtile("register", tile))
        choices = tuple((f"order:{g.axes[axis]}", n) for n, axis in enumerate(order))
        programs.append((ctx.program("cpu.lanes", tiles, choices, nest.merges), estimate))
    return programs


def lanes_cost(geometry: Geometry, merges: Sequence[Geometry], tile: Tile, rates: CpuRates) -> TileCost:
    """Return the cost of a register tile together with merging its lanes.

    Every merge reads its terms from the nearest cache: in vectors as long as its result, or one by one.

    Parameters
    ----------
    geometry : Geometry
        Nest of the stage that reduces in lanes, its last spatial axis.
    merges : sequence of Geometry
        Nests of the stages that merge the lanes, in order, the epilogue with the last.
    tile : tuple of int
        Register tile of `geometry`.
    rates : CpuRates
    """
    cost = TileCost.of(geometry, tile, rates)
    outputs, last = prod(tile[i] for i in geometry.spatial[:-1]), merges[-1]
    terms = sum(prod(g.extents[i] for i in g.reduce) for g in merges)
    cycles = terms / min(rates.fma, rates.loads) + epilogue_cycles(last, 1, 1, rates)
    return replace(cost, other=cost.other + outputs * cycles)


def lower_cpu_lanes(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe cpu.lanes."""
    anchor, output = expression.stage(program.anchor), expression.stage(program.output)
    *partial, last = program.staged
    steps: list[Step] = [Inline(name) for name in program.inlined]
    inside, opened = _outer_loops(anchor, output, program)
    steps += opened
    if last == output.name:
        steps += [Unroll(last, loop) for loop in open_parts(last, output.reduce)[1]]
    else:
        neighbours = program.tile("register")[anchor.spatial[-2].name]
        if neighbours > 1:
            steps.append(Vectorize(output.name, f"{open_parts(last, output.spatial)[1][-1]}.i"))
        steps += _merge(expression.stage(last), output, inside, vector=False)
    for name in reversed(partial):
        steps += _merge(expression.stage(name), output, inside, vector=True)
    opened, spatial = open_parts(anchor.name, anchor.spatial)
    more, reduce = open_parts(anchor.name, anchor.reduce)
    steps += [ComputeAt(anchor.name, output.name, inside), *opened, *more]
    steps.append(Reorder(anchor.name, (*reduce, *spatial)))
    tile = program.tile("register")
    for axis, loop in zip(anchor.spatial[:-1], spatial, strict=False):
        if tile[axis.name] > 1:
            steps.append(Unroll(anchor.name, loop))
    steps.append(Vectorize(anchor.name, spatial[-1]))
    return steps


def _outer_loops(anchor: Stage, output: Stage, program: RProgram) -> tuple[str, list[Step]]:
    """Return the loop in which a register tile is computed, and the steps of the output's loops."""
    chunk, tile, order = program.tile("l2"), program.tile("register"), program.choices_of("order")
    axes = [a.name for a in anchor.spatial[:-1]]  # the output has no lanes
    steps, loops = open_parts(output.name, output.spatial)
    opened, reduce = open_parts(output.name, output.reduce)
    steps += opened
    for name, loop in zip(axes, loops, strict=True):
        lengths = (chunk[name] // tile[name], tile[name])
        steps.append(Split(output.name, loop, lengths, tuple(f"{loop}.{c}" for c in "pmi")))
    ranked = sorted(zip(axes, loops, strict=True), key=lambda pair: order.get(pair[0], -1))
    parallel, middle = tuple(f"{loop}.p" for loop in loops), tuple(f"{loop}.m" for _, loop in ranked)
    steps.append(Reorder(output.name, (*parallel, *middle, *(f"{loop}.i" for loop in loops), *reduce)))
    whole = parallel[0]
    if len(parallel) > 1:
        whole = "parallel"
        steps.append(Fuse(output.name, parallel, whole))
    steps.append(Parallel(output.name, whole))
    return middle[-1], steps


def _merge(stage: Stage, output: Stage, inside: str, vector: bool) -> list[Step]:
    """Return the steps of a stage that merges lanes in the tile: unrolled terms around vectors of remaining lanes."""
    opened, spatial = open_parts(stage.name, stage.spatial)
    more, reduce = open_parts(stage.name, stage.reduce)
    steps: list[Step] = [ComputeAt(stage.name, output.name, inside), *opened, *more]
    own = spatial[:-1] if vector else spatial
    steps.append(Reorder(stage.name, (*own, *reduce, *spatial[len(own) :])))
    steps += [Unroll(stage.name, loop) for loop in reduce]
    if vector:
        steps.append(Vectorize(stage.name, spatial[-1]))
    return steps


class CpuLanes(CpuRecipe):
    """Reductions in lanes, merged in the same tile."""

    name = "cpu.lanes"
    says = "register tile of reductions in lanes, merged while a cache holds it, outer tiles in parallel"
    suits = {Kind.LANES: Fit.YES}
    staged = "merged in the tile"

    def construct(self, ctx: Context, top: int) -> Ranked:
        return construct_lanes(ctx, top)

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_cpu_lanes(expression, program)
