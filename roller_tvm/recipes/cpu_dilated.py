"""Construction of recipe cpu.dilated: transposed convolutions, as products over an operand dilated with zeros.

If a tile is as long as the distance of the elements, and the window is unrolled with it, every product with a zero is
known when the kernel is compiled and is left out.

Micro-performance model of recipe cpu.dilated: counts the products with stored elements, not with zeros.

Recipe cpu.dilated: an rProgram as schedule steps.

Shape of the loops (``p`` parallel chunks, ``o`` register tiles of a chunk, ``u`` unrolled)::

    cpu.dilated  p.. -> parallel   i..  v -> vector                        output, in the order of its axes
                   o..  reduction  reduction's u..  u..  v -> vector       anchor, at p: with a last axis for vectors
                   reduction  o..  reduction's u..  u..                    without: LLVM's vectors run over the last o

Unrolling lets the compiler see which products meet a zero.
"""

from __future__ import annotations

from itertools import product
from math import ceil, prod

from ..device import DeviceSpec
from ..ir import TensorExpression
from ..micro_perf.cpu import (
    CALL,
    EXPOSED,
    TILE_OVERHEAD,
    CpuRates,
    epilogue_cycles,
    instructions,
    launch_seconds,
    prologues,
    vectors,
)
from ..micro_perf.estimate import LevelTime, ProgramEstimate
from ..micro_perf.geometry import Geometry, Operand, Tile, in_memory
from ..roller.alignment import aligned_extents
from ..roller.loops import open_parts
from ..roller.rprogram import RProgram
from ..roller.steps import CacheWrite, ComputeAt, Fuse, Inline, Parallel, Reorder, Split, Step, Unroll, Vectorize
from .cpu_nests import CpuRecipe, Kind
from .cpu_tiled import REGISTER_TILES, UNROLLED_LOADS, chunks_of, single_vectors
from .cpu_tiled_loops import vector_last, vector_name
from .cpu_window import SPILLED
from .dilated_nests import TurnedNest, output_axes, strides
from .recipe import Context, Fit, Ranked


def construct_dilated(ctx: Context, top: int) -> Ranked:
    """Return ranked candidates of recipe cpu.dilated: vectors along an undilated last axis, or columns left to LLVM."""
    nest = ctx.nest
    if nest.output != nest.anchor and not isinstance(nest, TurnedNest):
        return []
    ctx = ctx.over(in_memory(ctx.geometry, nest.inlined))
    g, device = ctx.geometry, ctx.device
    steps = strides(g)
    rates = CpuRates.of(device, g)
    vector = g.vector_axis is not None and g.vector_axis not in steps
    found: list[tuple[float, RProgram, ProgramEstimate]] = []
    for tile in _tiles(ctx, rates, vector):
        candidates = []
        for chunk in dict.fromkeys([*_rows(g, tile), *chunks_of(ctx, tile, device.units)]):
            if vector or all(chunk[i] == g.extents[i] for i in g.spatial if i == g.vector_axis):
                ctx.considered += 1
                candidates.append((dilated_estimate(g, device, chunk, tile, vector), chunk))
        for estimate, chunk in sorted(candidates, key=lambda c: c[0].seconds)[:2]:
            found.append((estimate.seconds, _program(ctx, chunk, tile, vector), estimate))
    found.sort(key=lambda c: c[0])
    return [(program, estimate) for _, program, estimate in found[: 2 * top]]


def _rows(g: Geometry, tile: Tile) -> list[Tile]:
    """Return chunks of a few rows of steps, all else whole: their sums stay in cache until the output is written."""
    first = next(i for i in g.spatial if i in strides(g))
    lengths = aligned_extents(g.extents[first], 0.0, step=tile[first])
    return [tuple(length if i == first else e for i, e in enumerate(g.extents)) for length in lengths]


def _tiles(ctx: Context, rates: CpuRates, vector: bool) -> list[Tile]:
    """Return register tiles of whole steps; for a reduction, its unrolled extents (windows whole)."""
    g = ctx.geometry
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
        ctx.considered += 1
        chunk = tuple(e if i in g.reduce else tile[i] for i, e in enumerate(g.extents))
        scored.append((dilated_estimate(g, ctx.device, chunk, tile, vector).compute_seconds / outputs, tile))
    scored.sort()
    return [t for _, t in scored[:REGISTER_TILES]]


def _program(ctx: Context, chunk: Tile, tile: Tile, vector: bool) -> RProgram:
    g = ctx.geometry
    register = tuple(1 if i in g.reduce else e for i, e in enumerate(tile))
    tiles = (ctx.rtile("l2", chunk), ctx.rtile("register", register))
    output = g.expression.stage(ctx.nest.output)
    rates = CpuRates.of(ctx.device, g)
    stored = next((a for a in reversed(output.spatial) if a.extent > 1), output.spatial[-1])
    of = output_axes(g.expression, g.stage, output, ctx.nest.inlined)
    lengths = {of[name]: length for name, length in zip(g.axes, chunk, strict=True) if name in of}
    wide = single_vectors(lengths.get(stored.name, stored.extent), rates.lanes, 1)[0]
    choices = tuple((f"unroll:{g.axes[i]}", tile[i]) for i in reversed(g.reduce) if tile[i] > 1)
    return ctx.program("cpu.dilated", tiles, (*choices, ("columns", int(not vector)), ("vector", wide)))


def live_share(geometry: Geometry) -> float:
    """Return the share of the iteration points that meet a stored element."""
    steps = strides(geometry)
    return prod(1 / step for i, step in steps.items() if i in geometry.spatial_set)


def _loads(op: Operand, geometry: Geometry, tile: Tile, wide: int) -> int:
    """Return the loads (vectors or broadcast elements) of an operand for one tile and its whole window."""
    last = geometry.vector_axis
    number = op.elements(tile)
    contiguous = last is not None and last in op.axes and op.stride_of(last) == 1
    return number // tile[last] * wide if contiguous and last is not None else number


def dilated_estimate(
    geometry: Geometry, device: DeviceSpec, chunk: Tile, tile: Tile, vector: bool
) -> ProgramEstimate:
    """Return the predicted time of recipe cpu.dilated.

    Parameters
    ----------
    chunk, tile : tuple of int
        Extents of a parallel task and of a register tile (for reductions: the unrolled trips).
    vector : bool
        True if vectors run along the last axis; else along the columns, as the compiler finds them.
    """
    g = geometry
    rates = CpuRates.of(device, g)
    last = g.vector_axis
    wide = vectors(tile[last], rates.lanes) if vector and last is not None else 1
    sums = prod(wide if vector and i == last else tile[i] for i in g.spatial)
    per_point = instructions(g.stage.ops) or 1.0
    fmas = sums * prod(tile[i] for i in g.reduce) * live_share(g) * per_point
    loads = sum(_loads(op, g, tile, wide) for op in g.operands)
    steps = prod(ceil(e / tile[i]) for i, e in enumerate(g.extents) if i in g.reduce)
    if vector:
        cycles = steps * (max(fmas / rates.fma, loads / rates.loads) + SPILLED * max(0, sums + loads - rates.registers))
    else:  # sums in memory; a compiler's vectors of columns, which a stride takes apart
        cycles = steps * (fmas / rates.fma + (loads + 2 * sums) / rates.loads) / rates.lanes
    before, calls = prologues(g, tile, rates)
    cycles += steps * prod(tile[i] for i in g.reduce) * live_share(g) * (before + CALL * calls)
    tiles = prod(ceil(chunk[i] / tile[i]) for i in g.spatial)
    chunks = prod(ceil(g.extents[i] / chunk[i]) for i in g.spatial)
    # Sums go to memory and from there, turned element by element, to the output.
    core = tiles * (cycles + sums / rates.fma) + TILE_OVERHEAD * (tiles if vector else 1)
    stored = prod(chunk[i] for i in g.spatial)
    core += stored / rates.loads + epilogue_cycles(g, stored / rates.lanes, stored, rates)
    held = stored * g.output_bytes
    if held > rates.caches[0][1]:
        beyond = [rate for _, capacity, rate in rates.caches[1:] if held <= capacity]
        # Turned, each of the neighbours in a line is fetched by a pass of its own.
        passes = min(chunk[last], rates.line // g.output_bytes) if vector and last is not None else 1
        core += (1 + passes) * held / (beyond[0] if beyond else rates.far)
    busiest = ceil(chunks / device.units)
    outputs = prod(g.extents[i] for i in g.spatial)
    moved = float(sum(op.source_bytes for op in g.operands) + outputs * g.output_bytes + g.epilogue_bytes)
    name, rate = device.far.name, rates.far
    for cache, capacity, cache_rate in rates.caches:
        if moved / device.units <= capacity:
            name, rate = cache, cache_rate
            break
    memory = moved / chunks / rate
    seconds = busiest * max(memory, core + EXPOSED * memory) * rates.cycle + launch_seconds(device, chunks)
    return ProgramEstimate(
        seconds, core * chunks / device.units * rates.cycle,
        (LevelTime(name, moved, moved / device.units / rate * rates.cycle),),
        name if memory > core else "compute", round(g.stage.flops * live_share(g)), chunks, busiest,
        registers=min(sums + loads, rates.registers), utilisation=chunks / (busiest * device.units),
    )  # fmt: skip


def lower_cpu_dilated(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe cpu.dilated."""
    anchor, output = expression.stage(program.anchor), expression.stage(program.output)
    chunk = program.tile("l2")
    steps: list[Step] = [Inline(name) for name in program.inlined]
    inner = anchor.name
    if anchor is output:
        inner = f"{anchor.name}.local"
        steps.append(CacheWrite(anchor.name, "local", inner))
    out = output.name
    opened, loops = open_parts(out, output.spatial)
    steps += opened
    taken = {axis: chunk[name] for name, axis in output_axes(expression, anchor, output, program.inlined).items()}
    for axis, loop in zip(output.spatial, loops, strict=True):
        steps.append(Split(out, loop, (taken.get(axis.name, axis.extent),), (f"{loop}.p", f"{loop}.i")))
    outer, rest = tuple(f"{loop}.p" for loop in loops), [f"{loop}.i" for loop in loops]
    vector = program.choice("vector")
    if vector > 1:
        at = next(n for n, a in enumerate(output.spatial) if a.name == vector_name(output))
        steps.append(Split(out, rest[at], (vector,), (f"{loops[at]}.o", f"{loops[at]}.v")))
        rest = [*rest[:at], f"{loops[at]}.o", *rest[at + 1 :], f"{loops[at]}.v"]
    steps.append(Reorder(out, (*outer, *rest)))
    whole = outer[0]
    if len(outer) > 1:
        whole = "parallel"
        steps.append(Fuse(out, outer, whole))
    steps.append(Parallel(out, whole))
    if vector > 1:
        steps.append(Vectorize(out, rest[-1]))
    steps.append(ComputeAt(inner, out, whole))
    return steps + _loops(expression, program, inner)


def _loops(expression: TensorExpression, program: RProgram, inner: str) -> list[Step]:
    """Return the steps of the anchor inside a chunk."""
    anchor, tile = expression.stage(program.anchor), program.tile("register")
    steps, spatial = open_parts(inner, anchor.spatial)
    opened, reduce = open_parts(inner, anchor.reduce)
    steps += opened
    lengths = [tile[a.name] for a in anchor.spatial]
    lengths += [program.choice(f"unroll:{a.name}", 1) for a in anchor.reduce]
    for loop, length in zip([*spatial, *reduce], lengths, strict=True):
        steps.append(Split(inner, loop, (length,), (f"{loop}.o", f"{loop}.u")))
    tiles, sums = [f"{loop}.o" for loop in spatial], [f"{loop}.o" for loop in reduce]
    unrolled, last = [f"{loop}.u" for loop in (*reduce, *spatial)], ""
    if not program.choice("columns"):
        last = vector_last([f"{loop}.u" for loop in spatial], anchor)[-1]
        unrolled.remove(last)
    order = [*tiles, *sums] if last else [*sums, *tiles]
    steps.append(Reorder(inner, (*order, *unrolled, *([last] if last else []))))
    steps += [Unroll(inner, loop) for loop in unrolled]
    if last:
        steps.append(Vectorize(inner, last))
    return steps


class CpuDilated(CpuRecipe):
    """Transposed convolutions without their products with zeros."""

    name = "cpu.dilated"
    says = "register tile as long as the elements are apart, windows unrolled: products with zeros left out"
    suits = {Kind.DILATED: Fit.YES, Kind.TURNED: Fit.YES}

    def construct(self, ctx: Context, top: int) -> Ranked:
        return construct_dilated(ctx, top)

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_cpu_dilated(expression, program)
