"""Recipe cpu.tiled: register tiles of vectors in a chunk a core, with operands packed, copied, turned or as stored.

Operands can be read in several ways: see ``cpu_readings``.

Shapes of the loops (``p`` parallel chunks, ``m`` register tiles of a chunk, ``i`` inside a register tile)::

    cpu.tiled    p.. -> parallel   m.. in the plan's order   i.. vectors        output
                   S0 S1 R0 S2 R1 S3: unrolled, last axis vectors              anchor, at the last m
                 copy: vectors                                                 staged operands, at p or their last m

The anchor's loops have Ansor's multi-level shape (every spatial axis split once into four, every reduction once
into two), because TVM's layout rewrite of constant operands, which packs them, reads that shape.
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from ..ir import Stage, TensorExpression
from ..micro_perf.cpu import TileCost, tiled_times
from ..micro_perf.cpu_constants import UNROLLED_LOADS
from ..micro_perf.other_cores import chunk_order
from ..roller.candidates import Tiles
from ..roller.loops import fuse, open_parts, vector_last, vector_name
from ..roller.rprogram import RProgram
from ..roller.steps import (
    CacheRead,
    CacheWrite,
    ComputeAt,
    Inline,
    Parallel,
    Reorder,
    Split,
    Step,
    Unroll,
    Vectorize,
)
from .cpu_readings import Reading, packs_whole_tiles, readings_of
from .cpu_tiles import Grid, register_tiles, row_vectors
from .kinds import WINDOW, Kind
from .packing import pack_constants, pack_copy
from .recipe import Candidate, Context, CpuRecipe, Fit, Pair

#: Choice of an rProgram whose register tiles stand over the edge of constants packed with zeros.
PADDED = "padded"
#: Prefix of the choices that tell the order of the chunks.
CHUNKS = "chunks"


class CpuTiled(CpuRecipe):
    """Register tiles of vectors in a chunk a core; operands packed, copied in panels, turned or as stored."""

    name = "cpu.tiled"
    says = "register tile of vectors inside cache tiles, outer tiles in parallel"
    suits = {Kind.PRODUCT: Fit.YES} | dict.fromkeys((Kind.CONSTANTS, Kind.DILATED, Kind.SLIDES), Fit.LAST_RESORT)
    staged = "copied together, what a register tile reads at a time"
    covers = True

    def takes_slices(self, ctx: Context) -> bool:
        return ctx.geometry.axes[: len(ctx.slices)] == tuple(ctx.slices)  # its loops stand in the order of the axes

    def construct(self, ctx: Context, top: int) -> list[Candidate]:
        found = [c for reading in readings_of(ctx) for c in self.of_reading(reading, top)]
        return sorted(found, key=lambda c: c.seconds)

    def of_reading(self, reading: Reading, top: int) -> list[Candidate]:
        """Return ranked candidates for one way to read the operands."""
        ctx, packings = reading.ctx, reading.packings
        g, device, rates = ctx.geometry, ctx.device, ctx.rates
        over = not packs_whole_tiles(ctx)
        tiles = register_tiles(ctx, rates, over=over) if reading.tiles is None else reading.tiles
        grid = Grid.of(g, tiles, device.units, packings, reading.whole_rows)
        ctx.considered += len(grid.tile)
        names = sorted(frozenset[str]().union(*packings))
        copied = {name: np.array([name in packed for packed in packings])[grid.packing] for name in names}
        cost = TileCost.of(g, tiles, rates).take(grid.tile)
        times = tiled_times(
            g, device, grid.chunks, grid.tiles, grid.orders, copied, cost, rates=rates, order=_chunk_axes(ctx),
            cold=not ctx.slices,
        )  # fmt: skip

        def make(n: int) -> Pair:
            chunk, tile, packed = grid.chunks[:, n], grid.tiles[:, n], packings[grid.packing[n]]
            return tiled_program(ctx, chunk, tile, grid.order(n), packed), times.row(n)

        return [
            Candidate(float(times.seconds[n]), self.kernel_of(ctx, grid.tiles[:, n]), partial(make, n))
            for n in grid.best(times.seconds, top)
        ]

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_cpu_tiled(expression, program)


def tiled_program(
    ctx: Context, chunk: Tiles, tile: Tiles, order: tuple[int, ...], packed: frozenset[str]
) -> RProgram:
    """Return the rProgram of recipe cpu.tiled with these tiles, whatever its predicted time."""
    tiles = (ctx.rtile("l2", chunk), ctx.rtile("register", tile))
    g = ctx.geometry
    choices = tuple((f"order:{g.axes[axis]}", n) for n, axis in enumerate(order))
    choices += _chunk_order(ctx, chunk) + row_vectors(ctx, tile) + _unrolled_window(ctx, tile)
    if any(op.constant and g.extents[i] % tile[i] for op in g.operands for i in op.axes if i in g.spatial):
        choices += ((PADDED, 1),)
    return ctx.program("cpu.tiled", tiles, choices, tuple(sorted(packed)))


def _chunk_axes(ctx: Context) -> list[int]:
    """Return the spatial axes in the order of the chunks, outermost first; those that number slices come first."""
    return list(ctx.geometry.spatial) if ctx.slices else chunk_order(ctx.geometry)


def _chunk_order(ctx: Context, chunk: Tiles) -> tuple[tuple[str, int], ...]:
    """Return the axes of several chunks in the order of these, outermost first, if that is not the output's order."""
    g = ctx.geometry
    cut = [i for i in _chunk_axes(ctx) if chunk[i] < g.extents[i]]
    return tuple((f"{CHUNKS}:{g.axes[i]}", n) for n, i in enumerate(cut)) if cut != sorted(cut) else ()


def _ranked(program: RProgram, anchor: Stage, loops: str) -> list[int]:
    """Return the positions of the spatial axes in the order that a choice tells; axes with a single trip go outermost.

    Parameters
    ----------
    loops : str
        Prefix of the choices: "order" of the loops over register tiles, `CHUNKS`.
    """
    place = program.choices_of(loops)
    return sorted(range(len(anchor.spatial)), key=lambda at: place.get(anchor.spatial[at].name, -1))


def _unrolled_window(ctx: Context, tile: Tiles) -> tuple[tuple[str, int], ...]:
    """Return the window axes to unroll, innermost first, if bounds are checked: one check then serves a row of it.

    An element loaded on its own behind its check is a branch; at most `UNROLLED_LOADS` of them are unrolled.
    """
    g = ctx.geometry
    if not any(op.guarded for op in g.operands):
        return ()
    lanes = ctx.rates.lanes
    alone = any(op.checked_along(g.vector_axis) for op in g.operands)
    size = prod(tile[i] for i in g.spatial) // (1 if alone else lanes)
    chosen: list[tuple[str, int]] = []
    for i in reversed(g.window_axes):
        size *= g.extents[i]
        if g.extents[i] > WINDOW or size > UNROLLED_LOADS:
            break
        chosen.append((f"unroll:{g.axes[i]}", g.extents[i]))
    return tuple(chosen)


def lower_cpu_tiled(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe cpu.tiled."""
    anchor, output = expression.stage(program.anchor), expression.stage(program.output)
    steps: list[Step] = [Inline(name) for name in program.inlined]
    inner = anchor.name
    if anchor is output:
        inner = f"{anchor.name}.local"
        steps.append(CacheWrite(anchor.name, "local", inner))
    chunk, tile = program.tile("l2"), program.tile("register")
    out = output.name
    opened, loops = open_parts(out, output.spatial)
    steps += opened
    last = vector_name(anchor)
    vector = program.choice("vector", tile[last])
    row = ""  # the loop over the vectors of a register tile's row
    for axis, loop in zip(anchor.spatial, loops, strict=True):
        lengths: tuple[int, ...] = (chunk[axis.name] // tile[axis.name], tile[axis.name])
        names = "pmi"
        if axis.name == last and vector < tile[last]:
            lengths, names, row = (lengths[0], tile[last] // vector, vector), "pmni", f"{loop}.n"
        steps.append(Split(out, loop, lengths, tuple(f"{loop}.{c}" for c in names)))
    order = _ranked(program, anchor, "order")
    middle = tuple(f"{loops[at]}.m" for at in order)
    parallel = tuple(f"{loops[at]}.p" for at in _ranked(program, anchor, CHUNKS))
    inside = vector_last([f"{loop}.i" for loop in loops], anchor)
    if row:
        inside.insert(-1, row)
    steps.append(Reorder(out, (*parallel, *middle, *inside)))
    whole = fuse(steps, out, parallel, "parallel")
    steps.append(Parallel(out, whole))
    # Stored by unrolled loops, a register tile needs no memory of its own; functions would be written out as often.
    if not any(s.functions for s in expression.stages if s.name in (*program.inlined, out)):
        long = {f"{loop}.i" for axis, loop in zip(anchor.spatial, loops, strict=True) if tile[axis.name] > 1}
        steps += [Unroll(out, loop) for loop in inside[:-1] if loop in long]
    if row:
        steps.append(Unroll(out, row))
    if tile[last] > 1:
        steps.append(Vectorize(out, inside[-1]))
    steps.append(ComputeAt(inner, out, middle[-1]))
    steps += _micro_kernel(inner, anchor, program, expression, order)
    trips = _trips(expression, anchor, program, order)
    steps += pack_constants(expression, anchor, inner, trips, bool(program.choice(PADDED)))
    for name in program.staged:
        packed, dimension = f"{name}.packed", _vector_dimension(anchor, name)
        at = panel_loop(anchor, program, name, [(anchor.spatial[at].name, f"{loops[at]}.m") for at in order]) or whole
        steps += [CacheRead(name, "global", (inner,), packed), ComputeAt(packed, out, at)]
        steps += _copy(packed, dimension, len(expression.tensors[name].shape), vector)
        steps += pack_copy(expression, anchor, name, packed, inner, trips)
    return steps


def _vector_dimension(anchor: Stage, operand: str) -> int:
    """Return the dimension of a staged operand along which its vectors lie."""
    indices = next(access.indices for access in anchor.reads if access.tensor == operand)
    return max(d for d, index in enumerate(indices) if vector_name(anchor) in index.axes)


def panel_loop(anchor: Stage, program: RProgram, operand: str, middle: list[tuple[str, str]]) -> str:
    """Return the loop over register tiles inside of which a staged operand's panel stays the same, or ''.

    The operand is copied inside that loop, a panel at a time. `middle` are the axes and loops, outermost first.
    """
    chunk, tile = program.tile("l2"), program.tile("register")
    axes = {axis for access in anchor.reads if access.tensor == operand for axis in access.axes}
    looped = [(axis in axes, loop) for axis, loop in middle if chunk[axis] > tile[axis]]
    own = [loop for mine, loop in looped if mine]
    return own[-1] if own and all(mine for mine, _ in looped[: len(own)]) else ""


def _copy(packed: str, dimension: int, rank: int, vector: int) -> list[Step]:
    """Return the steps that copy an operand in vectors along one dimension, moved innermost if it is not the last."""
    steps: list[Step] = [Split(packed, f"d{dimension}", (vector,), ("piece", "vector"))]
    if dimension < rank - 1:
        around = [f"d{d}" for d in range(rank)]
        around[dimension] = "piece"
        steps.append(Reorder(packed, (*around, "vector")))
    return [*steps, Vectorize(packed, "vector")]


def _micro_kernel(
    inner: str, anchor: Stage, program: RProgram, expression: TensorExpression, order: list[int]
) -> list[Step]:
    """Return the steps of the anchor inside one register tile: S0 S1 R0 S2 R1 S3.

    S0 and S1 have one trip each. They stand in the order of the output's p and m loops (`order`: positions of the
    axes), because TVM's layout rewrite takes them for those.
    """
    tile, last = program.tile("register"), vector_name(anchor)
    vector = program.choice("vector", tile[last])
    opened, spatial = open_parts(inner, anchor.spatial)
    steps: list[Step] = list(opened)
    opened, reduce = open_parts(inner, anchor.reduce)
    steps += opened
    unrolled = {a.name: program.choice(f"unroll:{a.name}", 1) for a in anchor.reduce}
    # The vectors of a row stand innermost: what is broadcast to them is then used up at once, and needs one register.
    # If a window is unrolled, a check of bounds serves a whole row of it, and the rows stand inside.
    together = all(n == 1 for n in unrolled.values())
    for axis, loop in zip(anchor.spatial, spatial, strict=True):
        rows = (1, tile[axis.name], 1) if together else (1, 1, tile[axis.name])
        lengths = (1, tile[last] // vector, vector) if axis.name == last else rows
        steps.append(Split(inner, loop, lengths, tuple(f"{loop}.{n}" for n in range(4))))
    for axis, loop in zip(anchor.reduce, reduce, strict=True):
        steps.append(Split(inner, loop, (unrolled[axis.name],), (f"{loop}.0", f"{loop}.1")))
    s = [[f"{loop}.{n}" for loop in spatial] for n in range(4)]
    rows_first = _rows_first(anchor)
    s[2:] = [[names[at] for at in rows_first] for names in s[2:]]
    r = [tuple(f"{loop}.{n}" for loop in _streamed(expression, anchor, reduce)) for n in range(2)]
    s[0], s[1] = [s[0][at] for at in _ranked(program, anchor, CHUNKS)], [s[1][at] for at in order]
    steps.append(Reorder(inner, (*s[0], *s[1], *r[0], *s[2], *r[1], *s[3])))
    steps += [Unroll(inner, f"{loop}.1") for a, loop in zip(anchor.reduce, reduce, strict=True) if unrolled[a.name] > 1]
    if together:
        steps += [Unroll(inner, loop) for loop in s[2][:-1]]
    if vector < tile[last]:
        steps.append(Unroll(inner, s[2][-1]))
    if not together:
        steps += [Unroll(inner, loop) for loop in s[3][:-1]]
    if tile[last] > 1:
        steps.append(Vectorize(inner, s[3][-1]))
    return steps


def _trips(expression: TensorExpression, anchor: Stage, program: RProgram, order: list[int]) -> list[tuple[str, int]]:
    """Return axis and trips of every loop around the anchor, outermost first: parallel, then as in `_micro_kernel`."""
    chunk, tile, last = program.tile("l2"), program.tile("register"), vector_name(anchor)
    vector = program.choice("vector", tile[last])
    spatial = [a.name for a in anchor.spatial]
    reduce = _streamed(expression, anchor, [a.name for a in anchor.reduce])
    unrolled = {name: program.choice(f"unroll:{name}", 1) for name in reduce}
    axes = [anchor.spatial[at] for at in _ranked(program, anchor, CHUNKS)]
    found = [(a.name, -(-a.extent // chunk[a.name])) for a in axes]
    found += [(spatial[at], chunk[spatial[at]] // tile[spatial[at]]) for at in order]
    found += [(name, anchor.extents[name] // unrolled[name]) for name in reduce]
    rows = [(spatial[at], tile[spatial[at]]) for at in _rows_first(anchor)[:-1]]
    wide = (last, tile[last] // vector)
    if all(n == 1 for n in unrolled.values()):
        return [*found, *rows, wide, (last, vector)]
    return [*found, wide, *((name, unrolled[name]) for name in reduce), *rows, (last, vector)]


def _rows_first(anchor: Stage) -> list[int]:
    """Return the positions of the spatial axes: of broadcast operands, of vector operands only, the vector axis."""
    last = vector_name(anchor)
    broadcast = {axis for access in anchor.reads if last not in access.axes for axis in access.axes}
    return sorted(range(len(anchor.spatial)), key=lambda at: _rank(anchor.spatial[at].name, last, broadcast))


def _rank(axis: str, last: str, broadcast: set[str]) -> int:
    return 2 if axis == last else 0 if axis in broadcast else 1


def _streamed(expression: TensorExpression, anchor: Stage, loops: list[str]) -> list[str]:
    """Return the reduction loops in the memory order of the operand that is read in vectors.

    A register tile uses none of its elements twice: it streams through, and prefetchers follow it only if it is read
    from front to back. A constant is packed in any order: then the other operand's order counts.
    """
    vector = vector_name(anchor)
    names = [a.name for a in anchor.reduce]
    read = [access for access in anchor.reads if vector in access.axes]
    if read and all(expression.tensors[access.tensor].constant for access in read):
        read = [access for access in anchor.reads if vector not in access.axes] or read
    if not read:
        return loops
    access = max(read, key=lambda a: len(a.axes.intersection(names)))
    shape = expression.tensors[access.tensor].shape
    strides = {
        name: sum(index.coefficient(name) * prod(shape[d + 1 :]) for d, index in enumerate(access.indices))
        for name in names
    }
    return [loop for _, loop in sorted(zip(names, loops, strict=True), key=lambda pair: -strides[pair[0]])]
