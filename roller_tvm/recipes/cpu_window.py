"""Recipe cpu.window: depthwise convolutions and pooling, which reduce nothing but sliding windows.

A register tile's windows are unrolled: what neighbours share is loaded once. The loops are those of cpu.tiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..device import DeviceSpec
from ..ir import TensorExpression
from ..micro_perf.cpu import (
    calls_of,
    chunk_times,
    epilogue_cycles,
    point_slots,
    prologue_slots,
    vectors,
)
from ..micro_perf.cpu_caches import Loops, run_length, stored_bytes
from ..micro_perf.cpu_constants import (
    CALL,
    CHECKED,
    EXPOSED,
    REBUILT,
    RESERVED,
    RUN_START,
    SPILLED,
    TILE_OVERHEAD,
    UNROLLED_LOADS,
)
from ..micro_perf.cpu_rates import CpuRates
from ..micro_perf.estimate import LevelColumn, Times
from ..micro_perf.geometry import Geometry, Operand
from ..micro_perf.neighbours import NEAR, vector_slots
from ..roller.alignment import aligned_extents
from ..roller.candidates import Column, Tiles, are_boxes, each, table
from ..roller.rprogram import RProgram
from ..roller.steps import Step
from .cpu_tiled import lower_cpu_tiled
from .cpu_tiles import ALIKE, REGISTER_TILES, Grid, row_vectors, vector_tiles
from .kinds import Kind
from .recipe import Candidate, Context, CpuRecipe, Fit, Pair

# Share of a register: vectors that fill less are not worth an unrolled tile if others fill more.
HALF = 0.5


class CpuWindow(CpuRecipe):
    """Depthwise convolutions and pooling; the loops of cpu.tiled with the windows unrolled."""

    name = "cpu.window"
    says = "register tile of vectors whose sliding windows are unrolled, outer tiles in parallel"
    suits = {Kind.SLIDES: Fit.YES}

    def construct(self, ctx: Context, top: int) -> list[Candidate]:
        g, device = ctx.geometry, ctx.device
        if not g.spatial or not g.operands:
            return []
        grid = Grid.of(g, window_tiles(ctx, ctx.rates), device.units)
        ctx.considered += len(grid.tile)
        times = window_times(g, device, grid.chunks, grid.tiles, grid.orders)
        found: list[int] = []
        for tile in np.unique(grid.tile):
            rows = np.flatnonzero(grid.tile == tile)
            own = times.seconds[rows]
            alike = own <= own.min() * (1 + ALIKE)
            others = rows[~alike]
            found.append(int(rows[alike][0]))
            found += others[np.argsort(times.seconds[others], kind="stable")][:1].tolist()
        found.sort(key=lambda n: float(times.seconds[n]))

        def make(n: int) -> Pair:
            return _program(ctx, grid, n), times.row(n)

        return [
            Candidate(float(times.seconds[n]), self.kernel_of(ctx, grid.tiles[:, n]), partial(make, n))
            for n in found[: 2 * top]
        ]

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_cpu_tiled(expression, program)


def _program(ctx: Context, grid: Grid, n: int) -> RProgram:
    g, tile = ctx.geometry, grid.tiles[:, n]
    tiles = (ctx.rtile("l2", grid.chunks[:, n]), ctx.rtile("register", tile))
    choices = tuple((f"order:{g.axes[axis]}", place) for place, axis in enumerate(grid.order(n)))
    choices += tuple((f"unroll:{g.axes[i]}", g.extents[i]) for i in reversed(g.reduce) if g.extents[i] > 1)
    return ctx.program("cpu.window", tiles, choices + row_vectors(ctx, tile))


def window_tiles(ctx: Context, rates: CpuRates) -> NDArray[np.int64]:
    """Return register tiles [A, N], tiled along overlapping windows, one vector wide, by cycles per output."""
    g = ctx.geometry
    points = prod(g.extents[i] for i in g.reduce)
    sliding = {a for op in g.operands for dim in op.dims if len(dim) > 1 for a, _ in dim}
    options: list[list[int]] = []
    for i, extent in enumerate(g.extents):
        if i in g.reduce:
            sizes = [1]
        elif i == g.vector_axis:
            sizes = vector_tiles(extent, rates.lanes, 2, HALF)
        else:
            sizes = aligned_extents(extent, 0.0, most=rates.registers // 2) if i in sliding else [1]
        options.append([e for e in sizes if g.stage.axes[i].is_box(e)] or [1])
    tiles = table(options)
    use = window_use(g, tiles, rates)
    short = use.sums * points <= UNROLLED_LOADS
    fine = (use.sums <= rates.registers // 2) & short & are_boxes(g.stage, tiles)
    ctx.considered += int(fine.sum())
    scores = sum(tile_cycles(g, tiles, use, rates)) / g.outputs(tiles)
    order = np.lexsort((*tiles[::-1], -use.sums, scores))
    return tiles[:, order[fine[order]][:REGISTER_TILES]]


@dataclass(frozen=True)
class WindowUse:
    """Vectors of N register tiles over their whole windows: a column each.

    Parameters
    ----------
    sums : column
        Vectors of outputs.
    loads : column
        Load point_slots, each element of the tile's window once.
    live : column
        Vectors that the compiler keeps: the sums, and the inputs of all windows, which overlap.
    checked : column
        Elements loaded one by one, each behind a check.
    """

    sums: Column
    loads: Column
    live: Column
    checked: Column = 0


def window_use(geometry: Geometry, tiles: Tiles, rates: CpuRates, chunks: Tiles | None = None) -> WindowUse:
    """Return the loads of register tiles and the vectors that they keep.

    Parameters
    ----------
    chunks : tiles, optional
        Extents of a parallel task, by default whole along the vector axis: a loop over a part of it cannot tell the
        lanes that are padding.
    """
    g, last = geometry, geometry.vector_axis
    wide = 1 if last is None else vectors(tiles[last], rates.lanes)
    told: Column = rates.edge_vectors and last is not None
    if told and last is not None and chunks is not None:
        told = np.equal(chunks[last], g.extents[last])
    whole = g.reducing(tiles)
    sums = prod(wide if i == last else tiles[i] for i in g.spatial)
    loads: Column = 0 * sums
    kept = checked = loads
    for op in g.operands:
        number = _vectors_of(op, g, op.boxes(whole), wide)
        if any(len(dim) > 1 for dim in op.dims):
            kept = np.maximum(kept, number)
        elements = number if last is None else number * tiles[last] // wide
        step = op.stride_of(last) if last is not None and last in op.axes and not op.constant else 1
        near = 1 <= step <= NEAR
        if step == 1 or rates.edge_vectors and near:
            taken: Column = number * each(lambda lanes, step=step: vector_slots(step, lanes), elements // number)
        else:
            taken = elements
        if last in op.guard_axes:
            alone = np.logical_not(told) if near else True
            checked, taken = checked + np.where(alone, elements, 0), np.where(alone, 0, taken)
        loads = loads + taken
    return WindowUse(sums, loads, sums + kept, checked)


def _vectors_of(op: Operand, g: Geometry, box: list[Column], wide: Column) -> Column:
    """Return the distinct vectors of an operand: every shift of a window along the vector axis is another vector."""
    number: Column = 1
    for dim, extent in zip(op.dims, box, strict=True):
        if any(a == g.vector_axis for a, _ in dim):
            extent = wide * prod(g.extents[a] for a, _ in dim if a not in g.spatial_set)
        number = number * extent
    return number


def tile_cycles(geometry: Geometry, tiles: Tiles, use: WindowUse, rates: CpuRates) -> tuple[Column, Column]:
    """Return the cycles of register tiles' arithmetic and of their loads; both add up, as checks are branches."""
    g, outputs = geometry, geometry.outputs(tiles)
    points = prod(g.extents[i] for i in g.reduce)
    per_point = point_slots(g)
    arithmetic = use.sums * (points * per_point + 1) / rates.fma + epilogue_cycles(g, use.sums, outputs, rates)
    arithmetic = arithmetic + CALL * points * calls_of(g.stage.ops) * outputs
    whole = g.reducing(tiles)
    for op in g.operands:  # what windows that overlap read is computed once
        elements = prod(op.boxes(whole))
        arithmetic = arithmetic + prologue_slots(op) * elements / rates.lanes / rates.fma
        arithmetic = arithmetic + CALL * calls_of(op.functions) * elements
    loads = use.loads / rates.loads + SPILLED * np.maximum(0, use.live - rates.registers)
    rebuilt = np.maximum(0, use.live - (rates.registers - RESERVED)) / use.live
    return arithmetic, loads + use.checked * (CHECKED + REBUILT * rebuilt)


def window_times(
    geometry: Geometry, device: DeviceSpec, chunks: NDArray[np.int64], tiles: NDArray[np.int64],
    orders: NDArray[np.int64],
) -> Times:  # fmt: skip
    """Return the predicted times of N candidates of recipe cpu.window.

    Parameters
    ----------
    chunks, tiles : array [A, N]
        Extents of a parallel task and of a register tile.
    orders : array [L, N]
        Axis positions of the loops over register tiles inside a chunk, outermost first; -1 where there is no loop.
    """
    g = geometry
    rates = CpuRates.of(device, g)
    use = window_use(g, tiles, rates, chunks)
    arithmetic, loads = tile_cycles(g, tiles, use, rates)
    count, number = g.covering(tiles, chunks), g.covering(chunks)
    core = count * (arithmetic + loads) + TILE_OVERHEAD
    worst, bound = core, np.where(arithmetic >= loads, 0, 1)
    stored = g.outputs(chunks) * g.output_bytes
    run = run_length(g, chunks, tiles, orders) * g.output_bytes
    levels: list[LevelColumn] = []
    exposed: Column = 0.0
    loops = Loops(g, rates, chunks, orders, units=device.units, after=stored_bytes(g))
    for at, (name, _, rate) in enumerate(rates.caches):
        if at == 0:
            moved = (count * use.loads * device.vector_bytes).astype(float)
        else:
            _, capacity, _ = rates.caches[at - 1]
            # A core finds its own share of what the kernel before has computed.
            moved = (1 - loops.staying(capacity) / device.units) * (loops.through(capacity, tiles) + stored)
            cycles = moved * (run + RUN_START) / run / rate
            exposed = exposed + EXPOSED * cycles
            bound = np.where(cycles > worst, 2 + at, bound)
            worst = np.maximum(worst, cycles)
        levels.append(LevelColumn(name, moved * number, moved * number / device.units / rate * rates.cycle))
    chunk = np.maximum(worst + EXPOSED * core * (worst > core), core + exposed)
    registers = np.minimum(use.live, rates.registers)
    return chunk_times(g, device, rates, tiles, number, core, chunk, bound, levels, registers)
