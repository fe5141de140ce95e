"""Construction of recipe cpu.window: depthwise convolutions and pooling, which reduce nothing but windows.

Micro-performance model of recipe cpu.window: a register tile whose sliding windows are unrolled.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from ..device import DeviceSpec
from ..ir import TensorExpression
from ..micro_perf.cpu import (
    CALL,
    EXPOSED,
    TILE_OVERHEAD,
    CpuRates,
    calls_of,
    epilogue_cycles,
    instructions,
    launch_seconds,
    prologue_slots,
    through,
    vectors,
)
from ..micro_perf.estimate import LevelTime, ProgramEstimate
from ..micro_perf.geometry import Geometry, Operand, Tile
from ..micro_perf.neighbours import NEAR, vector_slots
from ..roller.alignment import aligned_extents
from ..roller.rprogram import RProgram
from ..roller.steps import Step
from .cpu_nests import CpuRecipe, Kind, slides_only
from .cpu_tiled import ALIKE, REGISTER_TILES, UNROLLED_LOADS, chunks_of, orders_of, row_vectors, vector_tiles
from .cpu_tiled_loops import lower_cpu_tiled
from .recipe import Context, Fit, Ranked

# Share of a register: vectors that fill less are not worth an unrolled tile if others fill more.
HALF = 0.5


def window_tiles(ctx: Context, rates: CpuRates) -> list[Tile]:
    """Return register tiles, tiled along overlapping windows, one vector wide, by cycles per output."""
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
    scored: list[tuple[float, int, Tile]] = []
    for tile in product(*options):
        use = window_use(g, tile, rates)
        if use.sums > rates.registers // 2 or use.sums * points > UNROLLED_LOADS or not g.stage.is_box(tile):
            continue
        ctx.considered += 1
        outputs = prod(tile[i] for i in g.spatial)
        scored.append((sum(tile_cycles(g, tile, use, rates)) / outputs, -use.sums, tile))
    scored.sort()
    return [t for _, _, t in scored[:REGISTER_TILES]]


def construct_window(ctx: Context, top: int) -> Ranked:
    """Return ranked candidates of recipe cpu.window."""
    g, device = ctx.geometry, ctx.device
    if not g.spatial or not g.operands or not slides_only(g):
        return []
    rates = CpuRates.of(device, g)
    found: list[tuple[float, RProgram, ProgramEstimate]] = []
    for tile in window_tiles(ctx, rates):
        of_tile = []
        for chunk in chunks_of(ctx, tile, device.units):
            for order in orders_of(g, chunk, tile):
                ctx.considered += 1
                of_tile.append((window_estimate(g, device, chunk, tile, order), chunk, order))
        if not of_tile:
            continue
        least = min(e.seconds for e, _, _ in of_tile)
        alike = [c for c in of_tile if c[0].seconds <= least * (1 + ALIKE)]
        rest = sorted((c for c in of_tile if c not in alike), key=lambda c: c[0].seconds)
        for estimate, chunk, order in [*alike[:1], *rest[:1]]:
            found.append((estimate.seconds, _program(ctx, chunk, tile, order), estimate))
    found.sort(key=lambda c: c[0])
    return [(program, estimate) for _, program, estimate in found[: 2 * top]]


def _program(ctx: Context, chunk: Tile, tile: Tile, order: tuple[int, ...]) -> RProgram:
    g = ctx.geometry
    tiles = (ctx.rtile("l2", chunk), ctx.rtile("register", tile))
    choices = tuple((f"order:{g.axes[axis]}", n) for n, axis in enumerate(order))
    choices += tuple((f"unroll:{g.axes[i]}", g.extents[i]) for i in reversed(g.reduce) if g.extents[i] > 1)
    return ctx.program("cpu.window", tiles, choices + row_vectors(ctx, tile))


# Cycles of each vector beyond the registers: stored and loaded again, beside other work (measured on Zen 3, LLVM
# 10 and 22: 3x3 depthwise tiles of 1x7, 2x2, 2x4, 4x2 vectors, with 34, 20, 32, 32 where 16 fit, take 6.5 to 8.2 cycles
# a vector).
SPILLED = 0.3
# CHECKED: cycles of an element loaded on its own behind a check of bounds. REBUILT: cycles more if the vectors
# assembled from such elements do not all stay in registers. RESERVED: registers for masks and addresses beside them.
# (Measured on Zen 3: pooling and depthwise convolutions, NCHW, 4 to 8 lanes, strides 1 and 2, tiles of 9 to 51 such
# vectors; the smallest take 0.8 to 1.2 cycles with LLVM 10, 0.6 to 1.3 with LLVM 22, the largest 2.1 to 3.7 and 1.0 to
# 2.1.)
CHECKED, REBUILT, RESERVED = 1.0, 2.0, 6
# Extra cost of starting a contiguous run, in bytes: prefetchers have to find it (measured on 40 tiles each
# of 23 convolutions).
RUN_START = 192


@dataclass(frozen=True)
class WindowUse:
    """Vectors of one register tile over its whole window.

    Parameters
    ----------
    sums : int
        Vectors of outputs.
    loads : int
        Load instructions, each element of the tile's window once.
    live : int
        Vectors that the compiler keeps: the sums, and the inputs of all windows, which overlap.
    checked : int
        Elements loaded one by one, each behind a check.
    """

    sums: int
    loads: int
    live: int
    checked: int = 0


def window_use(geometry: Geometry, tile: Tile, rates: CpuRates, chunk: Tile | None = None) -> WindowUse:
    """Return the loads of a register tile and the vectors that it keeps.

    Parameters
    ----------
    chunk : tuple of int, optional
        Extents of a parallel task, by default whole along the vector axis: a loop over a part of it cannot tell the
        lanes that are padding.
    """
    g, last = geometry, geometry.vector_axis
    wide = 1 if last is None else vectors(tile[last], rates.lanes)
    told = rates.edge_vectors and last is not None and (chunk is None or chunk[last] == g.extents[last])
    whole = tuple(e if i in g.reduce else tile[i] for i, e in enumerate(g.extents))
    sums = prod(wide if i == last else tile[i] for i in g.spatial)
    loads, kept, checked = 0, 0, 0
    for op in g.operands:
        number = _vectors_of(op, g, whole, wide)
        sliding = any(len(dim) > 1 for dim in op.dims)
        kept = max(kept, number if sliding else 0)
        elements = number if last is None else number * tile[last] // wide
        step = op.stride_of(last) if last is not None and last in op.axes and not op.constant else 1
        if last in op.guard_axes and not (told and 1 <= step <= NEAR):
            checked += elements
        elif step == 1 or rates.edge_vectors and 1 <= step <= NEAR:
            loads += number * vector_slots(step, elements // number)
        else:
            loads += elements
    return WindowUse(sums, loads, sums + kept, checked)


def _vectors_of(op: Operand, g: Geometry, whole: Tile, wide: int) -> int:
    """Return the distinct vectors of an operand: every shift of a window along the vector axis is another vector."""
    number = 1
    for dim, extent in zip(op.dims, op.box(whole), strict=True):
        if any(a == g.vector_axis for a, _ in dim):
            extent = wide * prod(g.extents[a] for a, _ in dim if a not in g.spatial_set)
        number *= extent
    return number


def tile_cycles(geometry: Geometry, tile: Tile, use: WindowUse, rates: CpuRates) -> tuple[float, float]:
    """Return the cycles of a register tile's arithmetic and of its loads; both add up, as checks are branches."""
    g, outputs = geometry, prod(tile[i] for i in geometry.spatial)
    points = prod(g.extents[i] for i in g.reduce)
    per_point = instructions(g.stage.ops) or 1.0
    arithmetic = use.sums * (points * per_point + 1) / rates.fma + epilogue_cycles(g, use.sums, outputs, rates)
    arithmetic += CALL * points * calls_of(g.stage.ops) * outputs
    whole = tuple(e if i in g.reduce else tile[i] for i, e in enumerate(g.extents))
    for op in g.operands:  # what windows that overlap read is computed once
        elements = op.elements(whole)
        arithmetic += prologue_slots(op) * elements / rates.lanes / rates.fma
        arithmetic += CALL * calls_of(op.functions) * elements
    loads = use.loads / rates.loads + SPILLED * max(0, use.live - rates.registers)
    rebuilt = max(0, use.live - (rates.registers - RESERVED)) / use.live
    return arithmetic, loads + use.checked * (CHECKED + REBUILT * rebuilt)


def window_estimate(
    geometry: Geometry, device: DeviceSpec, chunk: Tile, tile: Tile, order: tuple[int, ...]
) -> ProgramEstimate:
    """Return the predicted time of recipe cpu.window.

    Parameters
    ----------
    chunk, tile : tuple of int
        Extents of a parallel task and of a register tile.
    order : tuple of int
        Axis positions of the loops over register tiles inside a chunk, outermost first.
    """
    g = geometry
    rates = CpuRates.of(device, g)
    use = window_use(g, tile, rates, chunk)
    arithmetic, loads = tile_cycles(g, tile, use, rates)
    tiles = prod(ceil(chunk[i] / tile[i]) for i in g.spatial)
    chunks = prod(ceil(g.extents[i] / chunk[i]) for i in g.spatial)
    core = tiles * (arithmetic + loads) + TILE_OVERHEAD
    bound = "compute" if arithmetic >= loads else "load"
    whole = tuple(e if i in g.reduce else tile[i] for i, e in enumerate(g.extents))
    busiest = ceil(chunks / device.units)
    stored = prod(chunk[i] for i in g.spatial) * g.output_bytes
    run = run_length(g, chunk, tile, order) * g.output_bytes
    levels: list[LevelTime] = []
    worst, exposed, below = core, 0.0, ""
    for name, _, rate in rates.caches:
        if below:
            moved = through(g, below, whole, chunk, order, rates) + stored
            cycles = moved * (run + RUN_START) / run / rate
            exposed += EXPOSED * cycles
            if cycles > worst:
                worst, bound = cycles, name
        else:
            moved = float(tiles * use.loads * device.vector_bytes)
        levels.append(LevelTime(name, moved * chunks, moved * chunks / device.units / rate * rates.cycle))
        below = name
    launch = launch_seconds(device, chunks)
    seconds = busiest * max(worst, core + exposed) * rates.cycle + launch
    outputs = prod(g.extents[i] for i in g.spatial)
    everything = sum(op.source_bytes for op in g.operands) + outputs * g.output_bytes + g.epilogue_bytes
    if everything > rates.caches[-1][1] * device.units:
        streamed = everything / (rates.far * device.units) * rates.cycle
        levels.append(LevelTime(device.far.name, everything, streamed))
        if streamed + launch > seconds:
            seconds, bound = streamed + launch, device.far.name
    levels.reverse()
    return ProgramEstimate(
        seconds, core * chunks / device.units * rates.cycle, tuple(levels), bound,
        g.stage.flops + g.epilogue_flops * outputs, chunks, busiest, registers=min(use.live, rates.registers),
        shared_bytes=g.input_bytes(whole), utilisation=chunks / (busiest * device.units),
    )  # fmt: skip


def run_length(geometry: Geometry, chunk: Tile, tile: Tile, order: tuple[int, ...]) -> int:
    """Return how many consecutive elements are stored in order: along the vector axis, and the next if it is whole."""
    g, last = geometry, geometry.vector_axis
    if last is None:
        return 1
    run = chunk[last] if order and order[-1] == last else tile[last]
    before = max((i for i in g.spatial if i < last), default=None)
    if run == g.extents[last] and before is not None:
        left = [axis for axis in order if axis != last]
        run *= chunk[before] if left and left[-1] == before else tile[before]
    return run


class CpuWindow(CpuRecipe):
    """Depthwise convolutions and pooling; the loops of cpu.tiled with the windows unrolled."""

    name = "cpu.window"
    says = "register tile of vectors whose sliding windows are unrolled, outer tiles in parallel"
    suits = {Kind.SLIDES: Fit.YES}

    def construct(self, ctx: Context, top: int) -> Ranked:
        return construct_window(ctx, top)

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_cpu_tiled(expression, program)
