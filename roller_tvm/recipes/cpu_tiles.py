"""Tiles of a CPU's nests: register tiles of vectors, chunks over the cores, the order of the loops between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..ir import Stage
from ..micro_perf.cpu import (
    inner_cycles,
    lanes_filled,
    register_use,
    step_cycles,
    vector_of,
    vectors,
)
from ..micro_perf.cpu_caches import scattered
from ..micro_perf.cpu_rates import CpuRates
from ..micro_perf.geometry import Geometry
from ..roller.alignment import Rejection, aligned_extents, capacity
from ..roller.candidates import Candidates, Column, Tiles, are_boxes, table
from .recipe import Context

# Breadth of the search: register tiles kept, chunks tried for each.
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

#: Types that LLVM computes in float32: a vector longer than a register takes it apart, an element at a time.
SHORT_FLOATS = ("float16", "bfloat16")


def registers_of(stage: Stage) -> int:
    """Return how many registers LLVM may have to halve a stage's vectors into."""
    return 1 if stage.dtype in SHORT_FLOATS and stage.flops else 4


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


def filled(extent: Column, lanes: Column) -> Column:
    """Return the share of the lanes that `extent` elements use."""
    return extent / (-(-extent // lanes) * lanes)


def register_tiles(
    ctx: Context, rates: CpuRates, most: int | None = REGISTER_TILES, over: bool = False
) -> NDArray[np.int64]:
    """Return register tiles [A, N] that fit the vector registers, by cycles per multiply-add of their inner loop.

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
            sizes = [1]
        elif i == g.vector_axis:
            sizes = vector_tiles(extent, rates.lanes, _vectors_of_a_row(g, rates))
        else:
            sizes = aligned_extents(extent, 0.0, most=rates.registers)
        options.append([e for e in sizes if g.stage.axes[i].is_box(e)] or [1])
    tiles, scores = _scored(ctx, rates, table(options))
    kept = tiles[:, :most]
    least = scores[0] * OVER_EDGE if len(scores) else 0.0
    if over and least > 1 / rates.fma:  # what a multiply-add takes at best
        edges = [table(sizes) for sizes in _over_edges(g, rates, options)]
        if edges:
            tiles, scores = _scored(ctx, rates, np.concatenate(edges, axis=1))
            # Beside the others, not in their place: what has their axis cannot be copied.
            kept = np.concatenate([kept, tiles[:, scores < least][:, :most]], axis=1)
    return kept


def _scored(ctx: Context, rates: CpuRates, tiles: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the register tiles that fit, and their cycles per useful multiply-add: the least first, then the largest.

    Tiles with as many accumulators are in the order of their extents.
    """
    g, last = ctx.geometry, ctx.geometry.vector_axis
    rows = Candidates(tiles.shape[1])
    rows.keep(are_boxes(g.stage, tiles), lambda n: replace(PARTS, candidate=_told(tiles, n)))
    wide = 1 if last is None else vectors(tiles[last], rates.lanes)
    rows.keep(np.less_equal(prod(wide if i == last else tiles[i] for i in g.spatial), rates.registers))
    ctx.considered += len(near := rows.rows())
    use = register_use(g, tiles[:, near], rates.lanes, rates.broadcasts, rates.edge_vectors)
    needed = np.zeros(tiles.shape[1], np.int64)
    needed[near] = use.registers

    def too_many(n: int) -> Rejection:
        broken = capacity("vector registers", int(needed[n]), rates.registers, "use a smaller register tile")
        assert broken is not None
        return replace(broken, candidate=_told(tiles, n))

    rows.keep(needed <= rates.registers, too_many)
    ctx.rejections.add(rows.rejected())
    use, fine = use.take(np.flatnonzero(needed[near] <= rates.registers)), tiles[:, rows.rows()]
    per_fma = step_cycles(use, rates, *inner_cycles(use, rates, 1, bool(g.reduce))) / use.accumulators
    used = lanes_filled(fine[last], rates.lanes) if last is not None else 1.0
    used = used * prod((filled(g.extents[i], fine[i]) for i in g.spatial), start=1.0)
    scores = per_fma / used
    order = np.lexsort((*fine[::-1], -use.accumulators, scores))
    return fine[:, order], scores[order]


def _told(tiles: NDArray[np.int64], n: int) -> str:
    return f"register tile {tuple(tiles[:, n].tolist())}"


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


def _loose_axes(geometry: Geometry) -> list[int]:
    """Return the axes of rows over whose edge a register tile may stand."""
    return [i for i in geometry.spatial if i != geometry.vector_axis and _may_stand_over(geometry, i)]


def _may_stand_over(geometry: Geometry, i: int) -> bool:
    """Return whether tiles may stand over the edge of an axis: neither split nor fused, nor a packed constant's."""
    axis = geometry.stage.axes[i]
    constant = any(i in op.axes for op in geometry.operands if op.constant)
    return not constant and axis.part_of is None and not axis.fused_of


def chunks_of(
    geometry: Geometry, tiles: NDArray[np.int64], units: int, most: int | None = CHUNKS
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Return chunks of whole register tiles that keep all cores busy, the best balanced first, at most `most` a tile.

    Rows over whose edge register tiles stand are cut into a chunk a core at most: a tile's place is checked in each
    (`rewrites.tile_places`), which costs registers in chunks of few tiles. Vectors can be cut anywhere.

    Returns
    -------
    (array [N], array [A, N])
        Number of each chunk's register tile, in order, and its extents.
    """
    g, tables = geometry, []
    for tile in tiles.T.tolist():
        options: list[Sequence[int]] = []
        for i, extent in enumerate(g.extents):
            covered = extent if i in g.reduce else -(-extent // tile[i]) * tile[i]
            cut = aligned_extents(covered, 0.0, step=tile[i]) if i not in g.reduce else [covered]
            over = covered > extent and i != g.vector_axis
            options.append([e for e in cut if not over or e * units >= covered])
        tables.append(table(options))
    if not tables:
        return np.zeros(0, np.intp), np.zeros((len(g.extents), 0), np.int64)
    which = np.repeat(np.arange(len(tables)), [t.shape[1] for t in tables])
    chunks = np.concatenate(tables, axis=1)
    count = g.covering(chunks)
    split = sum((chunks[i] < g.extents[i]).astype(np.int64) for i in g.spatial)
    fine = np.flatnonzero((count <= units * CHUNKS_PER_CORE) & (split <= 2))
    which, chunks, count = which[fine], chunks[:, fine], count[fine]
    idle = -(-count // units) * units / count
    order = np.lexsort((*chunks[::-1], count, idle, which))
    order = order if most is None else order[_places(which[order]) < most]
    return which[order], chunks[:, order]


def _places(groups: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the place of each entry among those of its group, which stand together."""
    starts, lengths = _groups(groups)
    return np.arange(len(groups)) - np.repeat(starts, lengths)


def _groups(groups: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return where groups of equal entries start, and their lengths."""
    ends = np.append(np.flatnonzero(groups[1:] != groups[:-1]) + 1, len(groups))
    starts = np.append(0, ends[:-1]) if len(groups) else ends[:0]
    return starts, ends[: len(starts)] - starts


def orders_of(
    geometry: Geometry, looped: Sequence[int], packed: frozenset[str] = frozenset()
) -> list[tuple[int, ...]]:
    """Return orders of the loops over register tiles: each operand's loops in turn are outermost, the largest first.

    Operands `packed` are copied a panel at a time. Loops inside of theirs reuse the panel, so theirs are outermost.

    Parameters
    ----------
    looped : sequence of int
        Axes along which a chunk has several register tiles.
    """
    result: list[tuple[int, ...]] = []
    for op in sorted(geometry.operands, key=lambda op: -op.source_bytes):
        order = tuple(sorted(looped, key=lambda i: (i not in op.axes, i)))
        if order not in result:
            result.append(order)
    own = [op.axes for op in geometry.operands if op.name in packed]
    return [o for o in result or [tuple(looped)] if all(list(o) == _first(o, axes) for axes in own)]


def _first(order: tuple[int, ...], axes: frozenset[int]) -> list[int]:
    return sorted(order, key=lambda i: i not in axes)


def may_pack(geometry: Geometry, chunks: Tiles, tiles: Tiles, packed: frozenset[str]) -> NDArray[np.bool_]:
    """Return whether chunks' parts of these operands can be copied: boxes, with none of them over an edge."""
    g = geometry
    fine = are_boxes(g.stage, np.asarray(chunks).reshape(len(chunks), -1))
    for i in {i for op in g.operands if op.name in packed for i in op.axes if i in g.spatial_set}:
        fine = fine & np.equal(g.extents[i] % np.asarray(tiles[i]), 0)
    return fine


@dataclass(frozen=True)
class Grid:
    """Candidates of a nest: register tile, chunk, operands to copy, and order of the loops.

    Parameters
    ----------
    tile : array [N]
        Number of the register tile.
    tiles, chunks : array [A, N]
    packing : array [N]
        Number of the set of operands to copy.
    orders : array [L, N]
        Axis positions, outermost first; -1 before the first.
    group : array [N]
        Candidates of a group differ in the order alone; they stand together.
    """

    tile: NDArray[np.intp]
    tiles: NDArray[np.int64]
    chunks: NDArray[np.int64]
    packing: NDArray[np.intp]
    orders: NDArray[np.int64]
    group: NDArray[np.intp]

    @classmethod
    def of(
        cls, geometry: Geometry, tiles: NDArray[np.int64], units: int,
        packings: Sequence[frozenset[str]] = (frozenset(),), whole_rows: bool = False,
    ) -> Grid:  # fmt: skip
        """Return every chunk of the register tiles, with every set of operands that can be copied, in every order.

        Of chunks, only those that are whole along the vector axis if `whole_rows`.
        """
        g, axes = geometry, list(geometry.spatial)
        which, chunks = chunks_of(g, tiles, units)
        if whole_rows and g.vector_axis is not None:
            fine = chunks[g.vector_axis] >= g.extents[g.vector_axis]
            which, chunks = which[fine], chunks[:, fine]
        whole = np.ones(len(which), bool)
        legal = [may_pack(g, chunks, tiles[:, which], packed) if packed else whole for packed in packings]
        at, packing = np.nonzero(np.stack(legal, axis=1))
        which, chunks = which[at], chunks[:, at]
        own = tiles[:, which]
        key = packing << len(axes)
        for n, i in enumerate(axes):
            key = key | (chunks[i] > own[i]) << n
        kinds, kind = np.unique(key, return_inverse=True)
        orders = [
            orders_of(g, [i for n, i in enumerate(axes) if k >> n & 1], packings[k >> len(axes)])
            for k in kinds.tolist()
        ]
        counts = np.array([len(found) for found in orders], np.int64)
        longest = max((len(order) for found in orders for order in found), default=0)
        padded = [[-1] * (longest - len(order)) + list(order) for found in orders for order in found]
        group = np.repeat(np.arange(len(which)), counts[kind])
        row = (np.cumsum(counts) - counts)[kind[group]] + _places(group)
        order = np.array(padded, np.int64).reshape(len(padded), longest)[row].T
        return cls(which[group], own[:, group], chunks[:, group], packing[group], order, group)

    def order(self, n: int) -> tuple[int, ...]:
        """Return the order of one candidate's loops, outermost first."""
        return tuple(i for i in self.orders[:, n].tolist() if i >= 0)

    def best(self, seconds: NDArray[np.float64], top: int) -> list[int]:
        """Return the candidates to keep for `top` plans, fastest first: one a group, twice as many as plans at most.

        Of equally good orders the first stays: the largest operand, which a network reads cold, streams through once.
        """
        if not len(seconds):
            return []
        starts, lengths = _groups(self.group)
        least = np.minimum.reduceat(seconds, starts)
        good = seconds <= np.repeat(least, lengths) * (1 + ALIKE)
        first = np.minimum.reduceat(np.where(good, np.arange(len(seconds)), len(seconds)), starts)
        # Several register tiles reach the measuring, not the variations of one: a third of the plans are its.
        ranked = first[np.lexsort((seconds[first], self.tile[first]))]
        kept = np.sort(ranked[_places(self.tile[ranked]) < max(2, top // 3)])
        return kept[np.argsort(seconds[kept], kind="stable")][: 2 * top].tolist()


def row_vectors(ctx: Context, tile: Tiles) -> tuple[tuple[str, int], ...]:
    """Return the choice `vector`, if a register tile's row takes several vectors; else nothing."""
    last = ctx.geometry.vector_axis
    if last is None:
        return ()
    vector = vector_of(int(tile[last]), ctx.rates.lanes)
    return (("vector", vector),) if vector < tile[last] else ()
