"""Construction for CPUs: register tiles of vectors, chunks over the cores, and the order of the loops between.

Products with constants whose columns no vectors divide: constants read as stored, vectors over the edge.

A packed constant needs whole register tiles, as it is packed in the order in which they read it. 1000 columns are not
a multiple of 16; in vectors of 10, a third of the lanes is idle.

Products with an operand whose rows run across the vectors: ``A B^T`` with a B that is no constant.

Its vectors would be gathered, element by element, for every multiply-add of a column. If panels of it are copied, and
turned on the way, they are loaded. The schedule then has to change the layout of a copy (see ``features``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, prod

from ..ir import TensorExpression
from ..micro_perf.cpu import (
    CpuRates,
    TileCost,
    combined,
    inner_cycles,
    lanes_filled,
    may_scatter,
    register_use,
    scattered,
    tiled_estimate,
    vector_of,
    vectors,
)
from ..micro_perf.estimate import ProgramEstimate
from ..micro_perf.geometry import Geometry, Operand, Tile
from ..roller.alignment import Rejection, aligned_extents, capacity
from ..roller.rprogram import RProgram
from ..roller.steps import Step
from .cpu_nests import WINDOW, CpuRecipe, Kind, kind_of
from .cpu_tiled_loops import lower_cpu_tiled
from .recipe import Context, Fit, Ranked, Report

# Breadth of the ctx: register tiles kept, chunks tried for each.
REGISTER_TILES = 10
CHUNKS = 40
# Parallel tasks per core beyond which finer chunks only add overhead.
CHUNKS_PER_CORE = 64
PARTS = Rejection("region", "the parts of an axis after a tiled one whole", "gaps", "tile the outermost part alone")
# Relative difference of predicted times that the model cannot tell apart.
ALIKE = 0.01
# A register tile that stands over an edge is used if its cycles per multiply-add are below this share of the best tile
# that divides its axes: its check costs a second copy of the loop.
OVER_EDGE = 0.95
# Most guarded loads in an unrolled body: with more, LLVM takes seconds.
UNROLLED_LOADS = 400


def window_axes(geometry: Geometry) -> list[int]:
    """Return the reduction axes that slide over an operand: they share a dimension with a spatial axis."""
    return [
        i
        for i in geometry.reduce
        if any(len(dim) > 1 and any(a == i for a, _ in dim) for op in geometry.operands for dim in op.dims)
    ]


def single_vectors(extent: int, lanes: int, most: int) -> list[int]:
    """Return the lengths of one vector that divide an axis, longest first, for axes given to TVM as one vector.

    At most a register, or as many registers as LLVM halves a vector into.

    Examples
    --------
    >>> single_vectors(64, 16, 4), single_vectors(48, 16, 4), single_vectors(24, 16, 4), single_vectors(1000, 16, 4)
    ([64, 32, 16, 8, 4], [16, 8, 4], [12, 8, 4], [10, 8, 4])
    """
    longest = vector_of(extent, lanes)
    several = [n * lanes for n in (4, 2) if n <= most and extent % (n * lanes) == 0]
    return list(dict.fromkeys([*several, longest, *(v for v in (16, 8, 4) if v <= longest and extent % v == 0)]))


def vector_tiles(extent: int, lanes: int, most: int, enough: float = 1.0) -> list[int]:
    """Return extents of a register tile along the vector axis, smallest first: up to `most` equal vectors.

    Parameters
    ----------
    enough : float
        If no vectors fill registers: also return those that fill this share of one. By default only the best.

    Examples
    --------
    >>> vector_tiles(64, 16, 4), vector_tiles(24, 16, 4), vector_tiles(1000, 16, 4)
    ([16, 32, 64], [12, 24], [10, 20, 40])
    >>> vector_tiles(64, 16, 4, 0.5), vector_tiles(24, 16, 2, 0.5), vector_tiles(17, 16, 4, 0.5)
    ([16, 32, 64], [8, 12, 24], [1])
    """
    sizes = [e for e in aligned_extents(extent, 0.0, most=lanes * most) if vectors(e, lanes) <= most]
    best = max(lanes_filled(e, lanes) for e in sizes)
    least = best if best == 1 else min(best, enough)
    return [e for e in sizes if lanes_filled(e, lanes) >= least]


def filled(extent: int, lanes: int) -> float:
    """Return the share of the lanes that `extent` elements use."""
    return extent / (ceil(extent / lanes) * lanes)


def register_tiles(
    ctx: Context, rates: CpuRates, most: int | None = REGISTER_TILES, over: bool = False
) -> list[Tile]:
    """Return register tiles that fit the vector registers, by cycles per multiply-add of their inner loop.

    Parameters
    ----------
    most : int or None
        Number of tiles to return; None: all.
    over : bool
        Also return tiles that stand over the edge of an axis (197 rows in tiles of 6), if that pays.
    """
    g = ctx.geometry
    options: list[list[int]] = []
    for i, extent in enumerate(g.extents):
        if i in g.reduce:
            options.append([1])
        elif i == g.vector_axis:
            options.append(vector_tiles(extent, rates.lanes, _vectors_of_a_row(g, rates)))
        else:
            options.append(aligned_extents(extent, 0.0, most=rates.registers))
        options[-1] = [e for e in options[-1] if g.stage.axes[i].is_box(e)] or [1]
    scored = sorted(_scored(ctx, rates, options))
    kept = scored[:most]
    least = min((score for score, _, _ in scored), default=0.0) * OVER_EDGE
    if over and least > 1 / rates.fma:  # what a multiply-add takes at best
        found = [tile for sizes in _over_edges(g, rates, options) for tile in _scored(ctx, rates, sizes)]
        # Beside the others, not in their place: what has their axis cannot be copied, nor are rows cut into chunks.
        kept += sorted(tile for tile in found if tile[0] < least)[:most]
    return [t for _, _, t in kept]


def _vectors_of_a_row(g: Geometry, rates: CpuRates) -> int:
    """Return the most vectors of a register tile's row: more if each reduction step reads a run as long as the row.

    Every run then starts in another page, and prefetchers have to find it.
    """
    runs = any(scattered(g, op, rates) and not op.constant for op in g.operands)
    return rates.registers // (2 if runs else 4)


def _over_edges(g: Geometry, rates: CpuRates, options: list[list[int]]) -> Iterator[list[list[int]]]:
    """Yield extents of register tiles that stand over the edge of an axis of rows, of the vector axis, or of both."""
    last = g.vector_axis
    if last is None:
        return
    across = over_edge_vectors(g, rates)
    yield [*options[:last], across, *options[last + 1 :]]
    for columns, i in product((options[last], across), _loose_axes(g)):
        over = [e for e in range(2, min(rates.registers, g.extents[i]) + 1) if g.extents[i] % e]
        yield [columns if n == last else over if n == i else sizes for n, sizes in enumerate(options)]


def over_edge_vectors(g: Geometry, rates: CpuRates) -> list[int]:
    """Return extents of a register tile of whole vectors whose last one stands over the edge of their axis.

    Empty if an operand is checked lane by lane.
    """
    last = g.vector_axis
    if last is None or not rates.edge_vectors or not _may_stand_over(g, last):
        return []
    if any(last in op.axes and op.guarded for op in g.operands):
        return []
    extent, most = g.extents[last], rates.registers // 4
    return [n * rates.lanes for n in range(1, most + 1) if extent % (n * rates.lanes) and n * rates.lanes < extent]


def _scored(ctx: Context, rates: CpuRates, options: list[list[int]]) -> list[tuple[float, int, Tile]]:
    """Return (cycles per useful multiply-add, negated accumulators, tile) for each register tile that fits."""
    g = ctx.geometry
    last, scored = g.vector_axis, []
    for tile in product(*options):
        if ctx.reject(None if g.stage.is_box(tile) else PARTS, f"register tile {tile}"):
            continue
        use = register_use(g, tile, rates.lanes, rates.broadcasts, rates.edge_vectors)
        if use.accumulators > rates.registers:
            continue
        ctx.considered += 1
        if ctx.reject(
            capacity("vector registers", use.registers, rates.registers, "use a smaller register tile"),
            f"register tile {tile}",
        ):
            continue
        per_fma = combined(use, *inner_cycles(use, rates, 1, bool(g.reduce))) / use.accumulators
        used = lanes_filled(tile[last], rates.lanes) if last is not None else 1.0
        used *= prod(filled(g.extents[i], tile[i]) for i in g.spatial)
        scored.append((per_fma / used, -use.accumulators, tile))
    return scored


def _loose_axes(geometry: Geometry) -> list[int]:
    """Return the axes of rows over whose edge a register tile may stand."""
    return [i for i in geometry.spatial if i != geometry.vector_axis and _may_stand_over(geometry, i)]


def _may_stand_over(geometry: Geometry, i: int) -> bool:
    """Return whether tiles may stand over the edge of an axis: neither split nor fused, nor a packed constant's."""
    axis = geometry.stage.axes[i]
    constant = any(i in op.axes for op in geometry.operands if op.constant)
    return not constant and axis.part_of is None and not axis.fused_of


def chunks_of(ctx: Context, tile: Tile, units: int, most: int | None = CHUNKS) -> list[Tile]:
    """Return chunks of whole register tiles that keep all cores busy, the best balanced first, at most `most`.

    Rows over whose edge register tiles stand are not cut: the remaining rows would differ from chunk to chunk, and
    LLVM 22 then checks them one by one in the innermost loop. Vectors can be checked a tile at a time anywhere.
    """
    g, options = ctx.geometry, []
    for i, extent in enumerate(g.extents):
        covered = extent if i in g.reduce else ceil(extent / tile[i]) * tile[i]
        cut = i not in g.reduce and (covered == extent or i == g.vector_axis)
        options.append(aligned_extents(covered, 0.0, step=tile[i]) if cut else [covered])
    found: list[tuple[float, int, Tile]] = []
    for chunk in product(*options):
        count = g.tiles(chunk, g.spatial)
        split = sum(1 for i in g.spatial if chunk[i] < g.extents[i])
        if count > units * CHUNKS_PER_CORE or split > 2:
            continue
        idle = ceil(count / units) * units / count
        found.append((idle, count, chunk))
    found.sort()
    return [c for _, _, c in found[:most]]


def orders_of(
    geometry: Geometry, chunk: Tile, tile: Tile, packed: frozenset[str] = frozenset()
) -> list[tuple[int, ...]]:
    """Return orders of the loops over register tiles: each operand's loops in turn are outermost, the largest first.

    Operands `packed` are copied a panel at a time. Loops inside of theirs reuse the panel, so theirs are outermost.
    """
    looped = tuple(i for i in geometry.spatial if chunk[i] > tile[i])
    result: list[tuple[int, ...]] = []
    for op in sorted(geometry.operands, key=lambda op: -op.source_bytes):
        order = tuple(sorted(looped, key=lambda i: (i not in op.axes, i)))
        if order not in result:
            result.append(order)
    own = [op.axes for op in geometry.operands if op.name in packed]
    return [o for o in result or [looped] if all(list(o) == _first(o, axes) for axes in own)]


def _first(order: tuple[int, ...], axes: frozenset[int]) -> list[int]:
    return sorted(order, key=lambda i: i not in axes)


def packings_of(geometry: Geometry, rates: CpuRates) -> list[frozenset[str]]:
    """Return sets of operands to copy in panels: none, each one that is scattered and reused, and all of these."""
    looped = [i for i in geometry.spatial if geometry.extents[i] > 1]
    names = [op.name for op in geometry.operands]
    again = [op for op in geometry.operands if any(i not in op.axes for i in looped) and names.count(op.name) == 1]
    spread = [op.name for op in again if may_scatter(geometry, op, rates)]
    together = [frozenset(spread)] if len(spread) > 1 else []
    return [frozenset(), *(frozenset({name}) for name in spread), *together]


def may_pack(geometry: Geometry, chunk: Tile, tile: Tile, packed: frozenset[str]) -> bool:
    """Return whether a chunk's part of these operands can be copied: a box, with none of it over an edge."""
    g, over = geometry, set(geometry.overhanging(tile))
    return g.stage.is_box(chunk) and not any(over & op.axes for op in g.operands if op.name in packed)


@dataclass(frozen=True)
class Reading:
    """A nest with its operands read in one way.

    Parameters
    ----------
    ctx : Context
    packings : list of frozenset of str
        Sets of operands to copy in panels; a set may be empty.
    tiles : list of tuple of int, optional
        Register tiles; by default those that rank best.
    """

    ctx: Context
    packings: list[frozenset[str]]
    tiles: list[Tile] | None = None


def construct_packed(reading: Reading, top: int) -> Ranked:
    """Return ranked candidates of recipe cpu.tiled for one reading of a nest."""
    ctx, packings, tiles = reading.ctx, reading.packings, reading.tiles
    g, device = ctx.geometry, ctx.device
    rates = CpuRates.of(device, g)
    found: list[tuple[float, Tile, Tile, tuple[int, ...], frozenset[str], ProgramEstimate]] = []
    for tile in register_tiles(ctx, rates, over=True) if tiles is None else tiles:
        of_tile, cost = [], TileCost.of(g, tile, rates)
        for chunk, packed in product(chunks_of(ctx, tile, device.units), packings):
            if packed and not may_pack(g, chunk, tile, packed):
                continue
            estimates = []
            for order in orders_of(g, chunk, tile, packed):
                ctx.considered += 1
                estimates.append((tiled_estimate(g, device, chunk, tile, order, packed, cost), order))
            if not estimates:
                continue
            least = min(e.seconds for e, _ in estimates)
            # The first of equally good orders: the largest operand, which a network reads cold, streams through once.
            estimate, order = next(e for e in estimates if e[0].seconds <= least * (1 + ALIKE))
            of_tile.append((estimate.seconds, chunk, tile, order, packed, estimate))
        # Several register tiles reach the measuring, not the variations of one.
        found += sorted(of_tile, key=lambda c: c[0])[: max(2, top // 3)]
    found.sort(key=lambda c: c[0])
    return [
        (tiled_program(ctx, chunk, tile, order, packed), estimate)
        for _, chunk, tile, order, packed, estimate in found[: 2 * top]
    ]


def tiled_program(
    ctx: Context, chunk: Tile, tile: Tile, order: tuple[int, ...], packed: frozenset[str]
) -> RProgram:
    """Return the rProgram of recipe cpu.tiled with these tiles, whatever its predicted time."""
    tiles = (ctx.rtile("l2", chunk), ctx.rtile("register", tile))
    choices = tuple((f"order:{ctx.geometry.axes[axis]}", n) for n, axis in enumerate(order))
    choices += row_vectors(ctx, tile) + _unrolled_window(ctx, tile)
    return ctx.program("cpu.tiled", tiles, choices, tuple(sorted(packed)))


def row_vectors(ctx: Context, tile: Tile) -> tuple[tuple[str, int], ...]:
    """Return the choice `vector`, if a register tile's row takes several vectors; else nothing."""
    last = ctx.geometry.vector_axis
    if last is None:
        return ()
    vector = vector_of(tile[last], CpuRates.of(ctx.device, ctx.geometry).lanes)
    return (("vector", vector),) if vector < tile[last] else ()


def _unrolled_window(ctx: Context, tile: Tile) -> tuple[tuple[str, int], ...]:
    """Return the window axes to unroll, innermost first, if bounds are checked: one check then serves a row of it.

    An element loaded on its own behind its check is a branch; at most `UNROLLED_LOADS` of them are unrolled.
    """
    g = ctx.geometry
    if not any(op.guarded for op in g.operands):
        return ()
    lanes = CpuRates.of(ctx.device, g).lanes
    alone = any(g.vector_axis in op.guard_axes for op in g.operands)
    size = prod(tile[i] for i in g.spatial) // (1 if alone else lanes)
    chosen: list[tuple[str, int]] = []
    for i in reversed(window_axes(g)):
        size *= g.extents[i]
        if g.extents[i] > WINDOW or size > UNROLLED_LOADS:
            break
        chosen.append((f"unroll:{g.axes[i]}", g.extents[i]))
    return tuple(chosen)


def stored_search(ctx: Context) -> tuple[Context, list[Tile]] | None:
    """Return a context in which constants stay as stored, and its register tiles; None if packed constants serve as
    well.

    Examples
    --------
    >>> from roller_tvm.device import cpu_device
    >>> from roller_tvm.ir.operators import matmul
    >>> from roller_tvm.micro_perf.geometry import Geometry
    >>> stored_search(Context(Geometry.of(matmul(m=64, n=521, k=64), "matmul"), cpu_device(), None, 0.0)) is None
    True
    """
    g, last = ctx.geometry, ctx.geometry.vector_axis
    if last is None or not any(op.constant and last in op.axes for op in g.operands):
        return None
    rates = CpuRates.of(ctx.device, g)
    if not g.extents[last] % rates.lanes:
        return None
    stored = ctx.over(replace(g, operands=tuple(replace(op, constant=False) for op in g.operands)))
    looked = replace(stored, report=Report(ctx.rejections))
    tiles = [t for t in register_tiles(looked, rates, over=True) if g.extents[last] % t[last]]
    if not tiles:
        return None
    ctx.considered += looked.considered
    return stored, tiles


def turned_operands(geometry: Geometry) -> tuple[Operand, ...]:
    """Return the operands with gathered vectors that are stored exactly as they are read, and read several times.

    Examples
    --------
    >>> from roller_tvm.ir.operators import matmul
    >>> [op.name for op in turned_operands(Geometry.of(matmul(m=8, n=8, k=8, layout="NT"), "matmul"))]
    ['B']
    >>> turned_operands(Geometry.of(matmul(m=8, n=8, k=8, layout="NN"), "matmul"))
    ()
    """
    last = geometry.vector_axis
    if last is None:
        return ()
    names = [op.name for op in geometry.operands]
    looped = {i for i in geometry.spatial if geometry.extents[i] > 1}

    def plain(op: Operand) -> bool:
        whole = all(len(dim) == 1 and dim[0][1] == 1 for dim in op.dims) and op.plain and not op.divided
        return whole and not op.constant and names.count(op.name) == 1

    return tuple(
        op for op in geometry.operands
        if last in op.axes and op.stride_of(last) != 1 and looped - op.axes and plain(op)
    )  # fmt: skip


def turned_search(ctx: Context) -> tuple[Context, frozenset[str]] | None:
    """Return a context in which these operands are read from their copies, and their names; None if there are none."""
    own = turned_operands(ctx.geometry)
    if not own:
        return None
    geometry = ctx.geometry
    read = tuple(replace(op, constant=True) if op in own else op for op in geometry.operands)
    return ctx.over(replace(geometry, operands=read)), frozenset(op.name for op in own)


def readings_of(ctx: Context) -> Iterator[Reading]:
    """Yield the ways to read a nest's operands: as they are or in panels, turned panels, constants as stored."""
    g = ctx.geometry
    if not g.spatial or not g.operands:
        return
    yield Reading(ctx, packings_of(g, CpuRates.of(ctx.device, g)))
    if kind_of(ctx) is not Kind.PRODUCT:
        return
    if ctx.features.turned_copies and (turned := turned_search(ctx)) is not None:
        yield Reading(turned[0], [turned[1]])
    if (stored := stored_search(ctx)) is not None:
        yield Reading(stored[0], [frozenset()], stored[1])


class CpuTiled(CpuRecipe):
    """Register tiles of vectors in a chunk a core; operands packed, copied in panels, turned or as stored."""

    name = "cpu.tiled"
    says = "register tile of vectors inside cache tiles, outer tiles in parallel"
    suits = {Kind.PRODUCT: Fit.YES} | dict.fromkeys((Kind.CONSTANTS, Kind.DILATED, Kind.SLIDES), Fit.LAST_RESORT)
    staged = "copied together, what a register tile reads at a time"
    covers = True

    def construct(self, ctx: Context, top: int) -> Ranked:
        found = [c for reading in readings_of(ctx) for c in construct_packed(reading, top)]
        return sorted(found, key=lambda c: c[1].seconds)

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_cpu_tiled(expression, program)
