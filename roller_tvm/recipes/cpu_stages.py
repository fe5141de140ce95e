"""Recipe cpu.stages: stages that read windows of one another, tile by tile of the last one.

Shape of the loops::

    cpu.stages   tiles -> parallel   rest of the tile   v -> vector        output
                 rest of the tile, with its halo   v -> vector             every kept stage, at the tile

As in Welder (OSDI'23), stages are connected by their tiles: what lies between them stays in a core's cache. The model
says which stages are kept so, computed in place or stored (`planner.stage_groups`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product

import numpy as np

from ..device import DeviceSpec
from ..ir import Stage, TensorExpression
from ..micro_perf.estimate import Times
from ..micro_perf.stage_tiles import Point, rates_of, stage_times
from ..roller.loops import fuse
from ..roller.rprogram import RProgram
from ..roller.rtile import RTile
from ..roller.steps import ComputeAt, Inline, Parallel, Reorder, Split, Step, Unroll, Vectorize
from .kinds import Kind
from .recipe import Candidate, Context, CpuRecipe, Fit, Pair
from .stage_nests import StageNest, in_place, row_period, shares

Tile = tuple[int, ...]


def points_of(expression: TensorExpression, nest: StageNest) -> list[Point] | None:
    """Return the stages of a nest with what they read and compute; None if one computes too much in place."""
    stages = (expression.stage(name) for name in (*nest.kept, nest.output))
    found = [in_place(expression, stage, nest.inlined) for stage in stages]
    return None if None in found else [point for point in found if point is not None]


def tiles_of(stage: Stage, lanes: int) -> list[Tile]:
    """Return the tiles of a stage that are tried.

    Rows of whole vectors that divide the last axis, or all of it; powers of two and all of the axis before it; of
    others one or all.

    Examples
    --------
    >>> from roller_tvm.ir.operators import operator
    >>> tiles_of(operator("relu", shape=(3, 40, 64)).output, 16)[-1]
    (3, 40, 64)
    """
    *before, last = [axis.extent for axis in stage.spatial]
    rows = [n for n in range(lanes, last, lanes) if last % n == 0]
    choices = [sorted({1, extent}) for extent in before[:-1]]
    choices += [sorted({*(1 << n for n in range(extent.bit_length())), extent}) for extent in before[-1:]]
    return list(product(*choices, [*rows, last]))


def tile_times(expression: TensorExpression, device: DeviceSpec, points: Sequence[Point]) -> tuple[list[Tile], Times]:
    """Return the tiles of a nest that are tried, and their times."""
    tiles = tiles_of(points[-1].stage, rates_of(device, points).lanes)
    return tiles, stage_times(expression, device, points, list(np.array(tiles).T))


def lower_cpu_stages(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe cpu.stages."""
    steps: list[Step] = [Inline(name) for name in program.inlined]
    output = expression.stage(program.output)
    tile, outer, inner = program.tiles[0].shape, list[str](), list[str]()
    for axis in output.spatial:
        if tile[axis.name] == axis.extent:
            inner.append(axis.name)
        elif tile[axis.name] == 1 and axis is not output.spatial[-1]:
            outer.append(axis.name)
        else:
            parts = (f"{axis.name}.o", f"{axis.name}.i")
            steps.append(Split(output.name, axis.name, (tile[axis.name],), parts))
            outer.append(parts[0])
            inner.append(parts[1])
    steps += _loops(expression, program, output, outer, inner)
    at = fuse(steps, output.name, outer, "tile") if outer else ""
    if at:
        steps.append(Parallel(output.name, at))
    for name in reversed(program.staged):
        stage = expression.stage(name)
        if at:
            steps.append(ComputeAt(name, output.name, at))
        steps += _loops(expression, program, stage, [], [axis.name for axis in stage.spatial])
    return steps


def _loops(
    expression: TensorExpression, program: RProgram, stage: Stage, outer: Sequence[str], inner: Sequence[str]
) -> list[Step]:  # fmt: skip
    """Return the steps of a stage's loops in a tile: rows in vectors, and unrolled around them what shares values.

    These are the terms of a sum, and short axes along which some values stay the same. Where values stay the same for
    neighbours in a row, as in a picture of half the size, LLVM makes the vectors: it can turn two of them into one.
    """
    point = in_place(expression, stage, program.inlined)
    lanes, last = program.choice("lanes"), inner[-1] if inner else ""
    reduce = [axis.name for axis in stage.reduce]
    if point is None or not inner:
        return [Reorder(stage.name, (*outer, *inner, *reduce))] if reduce else []
    shared = [axis.name for axis in stage.spatial[:-1] if axis.name in inner and shares(point.reads, axis)]
    rows = [name for name in inner[:-1] if name not in shared]
    steps: list[Step] = []
    around, vector = [*reduce, *shared], [last]
    own = stage.spatial[-1]
    if (period := row_period(point.reads, own.name)) > 1:
        parts = (f"{last}.n", f"{last}.p")
        steps.append(Split(stage.name, last, (period,), parts))
        around, vector = [*around, parts[1]], [parts[0]]
        steps.append(Reorder(stage.name, (*outer, *rows, parts[0], *around)))
        return [*steps, *(Unroll(stage.name, name) for name in around)]
    if own.extent >= lanes:
        parts = (f"{last}.n", f"{last}.v")
        steps.append(Split(stage.name, last, (lanes,), parts))
        rows, vector = [*rows, parts[0]], [parts[1]]
    steps.append(Reorder(stage.name, (*outer, *rows, *around, *vector)))
    steps += [Unroll(stage.name, name) for name in around]
    return [*steps, Vectorize(stage.name, vector[0])] if own.extent >= lanes else steps


class CpuStages(CpuRecipe):
    """Stages connected by tiles."""

    name = "cpu.stages"
    says = "tiles of the last stage in parallel, the stages before it computed for each tile"
    suits = {Kind.STAGES: Fit.YES}
    staged = "kept for a tile"
    covers = True

    def construct(self, ctx: Context, top: int) -> list[Candidate]:
        nest, expression = ctx.nest, ctx.geometry.expression
        assert isinstance(nest, StageNest)
        points = points_of(expression, nest)
        if points is None:
            return []
        tiles, times = tile_times(expression, ctx.device, points)
        stage, lanes = points[-1].stage, rates_of(ctx.device, points).lanes
        ctx.considered += len(tiles)
        reduce = [(axis.name, axis.extent) for axis in stage.reduce]

        def make(n: int) -> Pair:
            names = [axis.name for axis in stage.spatial]
            whole = RTile("l2", (*zip(names, tiles[n], strict=True), *reduce))
            vector = [*[1] * (len(names) - 1), min(lanes, tiles[n][-1])]
            small = RTile("register", (*zip(names, vector, strict=True), *reduce))
            return ctx.program("cpu.stages", (whole, small), (("lanes", lanes),), nest.kept), times.row(n)

        best = np.argsort(times.seconds, kind="stable")[: 2 * top].tolist()
        return [Candidate(float(times.seconds[n]), ("cpu.stages", tiles[n][-1]), partial(make, n)) for n in best]

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_cpu_stages(expression, program)
