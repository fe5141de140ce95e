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
from functools import partial
from math import prod

from ..ir import Stage, TensorExpression
from ..micro_perf.cpu import TileCost, epilogue_cycles, tiled_times
from ..micro_perf.cpu_rates import CpuRates
from ..micro_perf.geometry import Geometry
from ..roller.candidates import Tiles
from ..roller.loops import fuse, open_parts
from ..roller.rprogram import RProgram
from ..roller.steps import ComputeAt, Inline, Parallel, Reorder, Split, Step, Unroll, Vectorize
from .cpu_tiles import Grid, register_tiles
from .kinds import Kind
from .lane_nests import LaneNest
from .recipe import Candidate, Context, CpuRecipe, Fit, Pair


class CpuLanes(CpuRecipe):
    """Reductions in lanes, merged in the same tile."""

    name = "cpu.lanes"
    says = "register tile of reductions in lanes, merged while a cache holds it, outer tiles in parallel"
    suits = {Kind.LANES: Fit.YES}
    staged = "merged in the tile"

    def construct(self, ctx: Context, top: int) -> list[Candidate]:
        nest, device = ctx.nest, ctx.device
        assert isinstance(nest, LaneNest)
        expression = ctx.geometry.expression
        ctx = ctx.over(Geometry.of(expression, nest.anchor, nest.inlined))
        g, rates = ctx.geometry, ctx.rates
        if len(g.spatial) < 2 or g.stage.uneven:
            return []
        *first, last = nest.merges
        merges = [
            *(Geometry.of(expression, name, nest.inlined) for name in first),
            Geometry.of(expression, last, nest.inlined, nest.output),
        ]
        lanes = g.spatial[-1]
        stored = expression.tensors[nest.output].bytes + merges[-1].epilogue_bytes
        tiles = register_tiles(ctx, rates)
        tiles = tiles[:, tiles[lanes] == g.extents[lanes]]
        grid = Grid.of(g, tiles, device.units)
        ctx.considered += len(grid.tile)
        cost = lanes_cost(g, merges, tiles, rates).take(grid.tile)
        times = tiled_times(g, device, grid.chunks, grid.tiles, grid.orders, cost=cost, stored=stored, rates=rates)

        def make(n: int) -> Pair:
            rtiles = (ctx.rtile("l2", grid.chunks[:, n]), ctx.rtile("register", grid.tiles[:, n]))
            choices = tuple((f"order:{g.axes[axis]}", place) for place, axis in enumerate(grid.order(n)))
            return ctx.program("cpu.lanes", rtiles, choices, nest.merges), times.row(n)

        return [
            Candidate(float(times.seconds[n]), self.kernel_of(ctx, grid.tiles[:, n]), partial(make, n))
            for n in grid.best(times.seconds, top)
        ]

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_cpu_lanes(expression, program)


def lanes_cost(geometry: Geometry, merges: Sequence[Geometry], tiles: Tiles, rates: CpuRates) -> TileCost:
    """Return the cost of register tiles together with merging their lanes.

    Every merge reads its terms from the nearest cache: in vectors as long as its result, or one by one.

    Parameters
    ----------
    geometry : Geometry
        Nest of the stage that reduces in lanes, its last spatial axis.
    merges : sequence of Geometry
        Nests of the stages that merge the lanes, in order, the epilogue with the last.
    tiles : tiles
        Register tiles of `geometry`.
    rates : CpuRates
    """
    cost = TileCost.of(geometry, tiles, rates)
    outputs, last = prod(tiles[i] for i in geometry.spatial[:-1]), merges[-1]
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
    whole = fuse(steps, output.name, parallel, "parallel")
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
