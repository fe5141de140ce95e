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

from math import prod

import numpy as np
from numpy.typing import NDArray

from ..device import DeviceSpec
from ..ir import TensorExpression
from ..micro_perf.cpu import epilogue_cycles, launch_seconds, point_slots, prologues, vectors
from ..micro_perf.cpu_caches import stored_bytes
from ..micro_perf.cpu_constants import CALL, EXPOSED, SPILLED, TILE_OVERHEAD, UNROLLED_LOADS
from ..micro_perf.cpu_rates import CpuRates
from ..micro_perf.estimate import LevelColumn, Times
from ..micro_perf.geometry import Geometry, Operand, Tile, in_memory
from ..roller.alignment import aligned_extents
from ..roller.candidates import Column, Tiles, are_boxes, table
from ..roller.loops import fuse, open_parts, vector_last, vector_name
from ..roller.rprogram import RProgram
from ..roller.steps import CacheWrite, ComputeAt, Inline, Parallel, Reorder, Split, Step, Unroll, Vectorize
from .cpu_tiles import REGISTER_TILES, chunks_of, single_vectors
from .dilated_nests import TurnedNest, output_axes, strides
from .kinds import Kind
from .recipe import Context, CpuRecipe, Fit, Ranked


def construct_dilated(ctx: Context, top: int) -> Ranked:
    """Return ranked candidates of recipe cpu.dilated: vectors along an undilated last axis, or columns left to LLVM."""
    nest = ctx.nest
    if nest.output != nest.anchor and not isinstance(nest, TurnedNest):
        return []
    ctx = ctx.over(in_memory(ctx.geometry, nest.inlined))
    g, device = ctx.geometry, ctx.device
    vector = g.vector_axis is not None and g.vector_axis not in strides(g)
    found: Ranked = []
    for tile in _tiles(ctx, CpuRates.of(device, g), vector):
        own = np.array(tile)[:, None]
        whole = map(tuple, chunks_of(g, own, device.units)[1].T.tolist())
        chunks = np.array(list(dict.fromkeys([*_rows(g, tile), *whole])))
        if not vector and g.vector_axis is not None:
            chunks = chunks[chunks[:, g.vector_axis] == g.extents[g.vector_axis]]
        ctx.considered += len(chunks)
        if not len(chunks):
            continue
        times = dilated_times(g, device, chunks.T, np.repeat(own, len(chunks), axis=1), vector)
        for n in np.argsort(times.seconds, kind="stable")[:2].tolist():
            found.append((_program(ctx, tuple(chunks[n].tolist()), tile, vector), times.row(n)))
    return sorted(found, key=lambda c: c[1].seconds)[: 2 * top]


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
    tiles = table(options)
    unrolled = prod(tiles) // (tiles[g.vector_axis] if vector and g.vector_axis is not None else 1)
    tiles = tiles[:, (unrolled <= UNROLLED_LOADS) & are_boxes(g.stage, tiles)]
    ctx.considered += tiles.shape[1]
    chunks = np.array([tiles[i] if i not in g.reduce else np.full(tiles.shape[1], e) for i, e in enumerate(g.extents)])
    scores = dilated_times(g, ctx.device, chunks, tiles, vector).compute_seconds / g.outputs(tiles)
    order = np.lexsort((*tiles[::-1], scores))[:REGISTER_TILES]
    return [tuple(tile) for tile in tiles[:, order].T.tolist()]


def _program(ctx: Context, chunk: Tile, tile: Tile, vector: bool) -> RProgram:
    g = ctx.geometry
    register = tuple(1 if i in g.reduce else e for i, e in enumerate(tile))
    tiles = (ctx.rtile("l2", chunk), ctx.rtile("register", register))
    output = g.expression.stage(ctx.nest.output)
    rates = ctx.rates
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


def _loads(op: Operand, tiles: Tiles, last: int | None, wide: Tiles) -> Column:
    """Return the loads (vectors along `last`, or elements) of an operand for each tile and its whole window."""
    number = prod(op.boxes(tiles))
    return number // tiles[last] * wide[last] if last is not None and op.stride_of(last) == 1 else number


def dilated_times(
    geometry: Geometry, device: DeviceSpec, chunks: NDArray[np.int64], tiles: NDArray[np.int64], vector: bool
) -> Times:
    """Return the predicted times of N candidates of recipe cpu.dilated.

    Parameters
    ----------
    chunks, tiles : array [A, N]
        Extents of a parallel task and of a register tile (for reductions: the unrolled trips).
    vector : bool
        True if vectors run along the last axis; else along the columns, as the compiler finds them.
    """
    g = geometry
    rates = CpuRates.of(device, g)
    last = g.vector_axis if vector else None
    wide = [vectors(e, rates.lanes) if i == last else e for i, e in enumerate(tiles)]
    sums = prod(wide[i] for i in g.spatial)
    per_point = point_slots(g)
    unrolled = prod(tiles[i] for i in g.reduce)
    fmas = sums * unrolled * live_share(g) * per_point
    loads = sum(_loads(op, tiles, last, wide) for op in g.operands)
    steps = prod(-(-g.extents[i] // tiles[i]) for i in g.reduce)
    if vector:
        spilled = SPILLED * np.maximum(0, sums + loads - rates.registers)
        cycles = steps * (np.maximum(fmas / rates.fma, loads / rates.loads) + spilled)
    else:  # sums in memory; a compiler's vectors of columns, which a stride takes apart
        cycles = steps * (fmas / rates.fma + (loads + 2 * sums) / rates.loads) / rates.lanes
    before, calls = prologues(g, tiles, rates)
    cycles = cycles + steps * unrolled * live_share(g) * (before + CALL * calls)
    count, number = g.covering(tiles, chunks), g.covering(chunks)
    # Sums go to memory and from there, turned element by element, to the output.
    core = count * (cycles + sums / rates.fma) + TILE_OVERHEAD * (count if vector else 1)
    stored = g.outputs(chunks)
    core = core + (stored / rates.loads + epilogue_cycles(g, stored / rates.lanes, stored, rates))
    held = stored * g.output_bytes
    beyond: Column = rates.far
    for _, capacity, rate in reversed(rates.caches[1:]):
        beyond = np.where(held <= capacity, rate, beyond)
    # Turned, each of the neighbours in a line is fetched by a pass of its own.
    passes = np.minimum(chunks[last], rates.line // g.output_bytes) if last is not None else 1
    core = np.where(held > rates.caches[0][1], core + (1 + passes) * held / beyond, core)
    busiest = -(-number // device.units)
    moved = float(sum(op.source_bytes for op in g.operands) + stored_bytes(g))
    fitting = [(cache, rate) for cache, capacity, rate in rates.caches if moved / device.units <= capacity]
    name, rate = fitting[0] if fitting else (device.far.name, rates.far)
    memory = moved / number / rate
    seconds = busiest * np.maximum(memory, core + EXPOSED * memory) * rates.cycle + launch_seconds(device, number)
    return Times(
        seconds, core * number / device.units * rates.cycle,
        (LevelColumn(name, moved, moved / device.units / rate * rates.cycle),),
        ("compute", name), np.where(memory > core, 1, 0), round(g.stage.flops * live_share(g)), number, busiest,
        np.minimum(sums + loads, rates.registers), 0, number / (busiest * device.units),
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
    whole = fuse(steps, out, outer, "parallel")
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
