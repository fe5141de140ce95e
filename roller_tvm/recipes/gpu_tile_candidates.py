"""Candidates of recipe gpu.tiled: register tiles, grown to block tiles and reduction steps, ranked by the model.

Candidates are columns of a table: a round of growth, the rules, and the estimates are evaluated for all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product as pairs
from math import ceil, prod

import numpy as np

from ..device import DeviceSpec
from ..micro_perf.geometry import Geometry, Tile
from ..micro_perf.gpu_constants import ACCUMULATORS, FETCHES
from ..micro_perf.gpu_nest import Array, GpuNest, ceil_div, columns, product, round_up, runs
from ..micro_perf.gpu_tiles import Tiled, quick_estimates
from ..micro_perf.gpu_times import Times
from ..micro_perf.registers import UNLIMITED, RegisterTiles, register_caps, unrolled_steps, usable_limits
from ..roller.alignment import Rejection, aligned_extents, execution_unit, tensor_shape, transaction
from .fetching import fetch_vectors, storage_paddings, store_vectors, virtual_threads
from .gpu_growth import Growth, grown
from .gpu_rules import Rules
from .recipe import Context

# Breadth of the search, not device facts: register tiles and block tiles kept on the way up.
REGISTER_BEAM, BLOCK_BEAM, BRANCHES = 6, 3, 2
#: Register tiles whose further growth paths are followed, and coarse candidates tried with every step.
WIDENED, REFINED = 6, 24
#: Share of lanes that may idle in a block's last warp whatever eps is: rows of 21 or 83 fill whole warps only in
#: blocks of hundreds of threads, which have few registers each. The model counts the idle lanes.
IDLE_LANES = 0.2
#: Share of a transaction that a run of an operand may waste whatever eps is: strided and windowed rows never align.
WASTED_RUN = 0.25
#: Extents of a register tile along one axis: the least that reuse needs, the most that registers hold.
REGISTER_LEAST, REGISTER_MOST = 4, 32
#: Lengths of a step along its longest axis, a quarter of a transaction and its doubles: up to 32 elements
#: of four bytes. Longer ones trade room in shared memory for barriers; no card has timed them.
STEP_LENGTHS = 5
#: Most points of a step, in transactions: whole windows times a long step leave no room for more than one block.
STEP_TRANSACTIONS = 16
#: Points of the step with which block tiles are compared first, and if tiles are whole axes and leave little room.
FIRST_STEP, SHORT_STEP = 16, 4
#: Elements of a row along the reduction beyond which the first step need not be longer.
FIRST_ROW = 8


def shape_eps(ctx: Context, axis: int) -> float:
    """Return rule 4's share of padding for an axis: above 0 only if no tile divides it, since guards cost time."""
    return ctx.eps if awkward(ctx.geometry.extents[axis]) else 0.0


@cache
def awkward(extent: int) -> bool:
    """Return whether no useful register extent divides an axis: its length is a large prime, or twice one.

    Examples
    --------
    >>> [e for e in (31, 56, 83, 127, 194, 1000) if awkward(e)]
    [83, 127, 194]
    """
    return extent > REGISTER_MOST and all(extent % d for d in range(REGISTER_LEAST, REGISTER_MOST + 1))


def one_overhang(over: int) -> Rejection:
    """Return the rejection of tiles that stand over along several axes: guarded loads stay wide along one alone."""
    return Rejection("tensor shape", f"{over} axes padded", "1", "use a tile that divides all axes but one")


def register_tiles(ctx: Context) -> list[Tile]:
    """Return register tiles on the growth paths of best data reuse, until the register file is full."""
    g, device, nest = ctx.geometry, ctx.device, GpuNest.of(ctx.geometry)
    limit = usable_limits(device, np.array([device.vector_width]))
    options = [
        aligned_extents(e, shape_eps(ctx, i), most=REGISTER_MOST) if i in g.spatial_set else [1]
        for i, e in enumerate(g.extents)
    ]
    start = tuple(1 for _ in g.extents)

    def rules(tiles: Array) -> Rules:
        held = Rules(tiles.shape[1], lambda n: f"register tile {_tile(tiles, n)}")
        over = np.add.reduce(nest.overhangs(tiles), axis=0, dtype=np.int64)
        held.hold(over <= 1, lambda n: one_overhang(int(over[n])))
        registers = RegisterTiles.of(nest, tiles)
        held.room("accumulators", registers.accumulators, ACCUMULATORS)
        held.room("registers", registers.needed(device), limit)
        return held

    (found,) = grown(nest, [Growth(start, start, options)], REGISTER_BEAM, BRANCHES, lambda t, _: ~rules(t).alive)
    if found.refused:
        ctx.rejections.add(rules(columns(found.refused, len(start))).rejected())
    return [start, *found.tiles]


def near_divisor(extent: int, length: int) -> int:
    """Return the divisor of `extent` nearest to `length`; if none is near, `length` itself (the last step is guarded).

    Examples
    --------
    >>> near_divisor(1024, 16), near_divisor(42, 16), near_divisor(30522, 16), near_divisor(3, 16)
    (16, 14, 16, 3)
    """
    if length >= extent:
        return extent
    near = [d for d in range(ceil(length / 2), 3 * length // 2 + 1) if extent % d == 0]
    return min(near, key=lambda d: abs(d - length), default=length)


def nearest_divisor(extent: int, length: int) -> int:
    """Return the divisor of `extent` nearest to `length`, the larger of two.

    Examples
    --------
    >>> nearest_divisor(7, 4), nearest_divisor(7, 2), nearest_divisor(9, 4)
    (7, 1, 3)
    """
    return min((d for d in range(1, extent + 1) if extent % d == 0), key=lambda d: (abs(d - length), -d))


def slides(geometry: Geometry, axis: int) -> bool:
    """Return whether a reduction axis moves along a dimension of an operand together with outputs, as a window does."""
    dims = [{a for a, _ in dim} for op in geometry.operands for dim in op.dims]
    return any(axis in dim and dim & geometry.spatial_set for dim in dims)


def reduction_steps(geometry: Geometry, device: DeviceSpec) -> list[Tile]:
    """Return the reduction extents to stage at a time: whole small windows, transactions of the long axis."""
    reduce = geometry.reduce
    if not reduce:
        return [tuple(1 for _ in geometry.extents)]
    longest = max(reduce, key=lambda i: geometry.extents[i])
    sector = device.far.transaction_bytes
    element = min(op.element_bytes for op in geometry.operands)
    base = sector // element
    # A thread that computes many register tiles a step pays for the step once: there memory alone is the limit.
    longer = loops_over_tiles(device)
    lengths = [max(1, base // 4) << n for n in range(STEP_LENGTHS)]
    while longer and lengths[-1] < geometry.extents[longest]:
        lengths.append(2 * lengths[-1])
    results: list[Tile] = []
    whole = slides(geometry, longest)
    for window in (True, False):
        step = [1] * len(geometry.extents)
        for i in reduce:
            if i != longest and window:
                step[i] = geometry.extents[i]
        for length in lengths:
            extent = geometry.extents[longest]
            # TVM cannot tell the end of a window's last, shorter step, and keeps elements that no thread reads.
            length = nearest_divisor(extent, length) if whole else near_divisor(extent, length)
            candidate = tuple(length if i == longest else s for i, s in enumerate(step))
            if (longer or prod(candidate) <= STEP_TRANSACTIONS * base) and candidate not in results:
                results.append(candidate)
    if not results:
        results.append(tuple(1 for _ in geometry.extents))
    return results


def loops_over_tiles(device: DeviceSpec) -> bool:
    """Return whether a thread computes many register tiles of a block in turn, as an IPU tile's few workers do."""
    return device.kind == "ipu"


def tiled(nest: GpuNest, device: DeviceSpec, block: Array, thread: Array) -> Tiled:
    """Return tiles of blocks and threads as candidates, with padding, vectors and virtual threads."""
    threads = product(ceil_div(block[nest.outer], thread[nest.outer]), block.shape[1])
    if loops_over_tiles(device) and device.limits.max_threads_per_block:
        threads = np.minimum(threads, device.limits.max_threads_per_block)
    unrolled, boxes = unrolled_steps(nest, thread, block), nest.boxes(block)
    padding = storage_paddings(nest, boxes, unrolled, device)
    vectors = fetch_vectors(nest, boxes, block, device, padding)
    vthreads = virtual_threads(nest, block, thread, device)
    store = store_vectors(nest, block, thread, vthreads)
    return Tiled(nest, block, thread, vthreads, unrolled, vectors, padding, store, threads, np.ones_like(threads))


def legal(ctx: Context, made: Tiled) -> Array:
    """Return which candidates break no rule and fit the device; record the others."""
    device, limits, threads = ctx.device, ctx.device.limits, made.threads
    ctx.considered += made.count
    eps = max(ctx.eps, IDLE_LANES)
    rules = Rules(made.count, lambda n: f"block {_tile(made.block, n)} thread {_tile(made.thread, n)}")
    lanes = round_up(threads, device.vector_width)
    rules.hold(lanes <= threads * (1 + eps), lambda n: execution_unit(int(threads[n]), device.vector_width, eps))
    rules.room("threads per block", threads, limits.max_threads_per_block or threads)
    # A limit of compilers for GPUs, which hold all that a thread fetches in registers.
    for count in made.rounds if device.kind == "gpu" else ():
        rules.room("fetches per thread", count, FETCHES, "use more threads or a shorter step")
    most_shared = limits.shared_per_block_bytes or device.level("shared").capacity_bytes
    rules.room("shared memory of a block", made.kernels.shared_bytes, most_shared)
    needed = made.register_tiles.needed(device)
    rules.room("registers", needed, usable_limits(device, threads), "use a smaller register tile or fewer threads")
    if device.kind == "gpu":  # recorded schedules with spills are far slower
        needed, cap = made.register_tiles.unspilled(made.read, made.fetched), register_caps(device, threads)
        cap = np.where((cap == 0) | (cap == UNLIMITED), needed, cap)
        rules.room("registers of an unrolled step", needed, cap, "unroll less of a step, or use a smaller tile")
    ctx.rejections.add(rules.rejected())
    return rules.alive


def _tile(table: Array, n: int) -> Tile:
    """Return a column of a table as a tile."""
    return tuple(table[:, n].tolist())


def misaligned(ctx: Context, block: Array) -> Rules:
    """Return rules 2 and 4 over block tiles."""
    g, nest = ctx.geometry, GpuNest.of(ctx.geometry)
    rules = Rules(block.shape[1], lambda n: f"block {_tile(block, n)}")
    for i in g.spatial:
        extent, eps = g.extents[i], shape_eps(ctx, i)
        covered = ceil_div(extent, block[i]) * block[i]

        def uneven(n: int, i: int = i, eps: float = eps) -> Rejection | None:
            return tensor_shape(g.extents[i], int(block[i, n]), eps, g.axes[i])

        rules.hold(covered <= extent * (1 + eps) + 1e-9, uneven)
    over = np.add.reduce(nest.overhangs(block), axis=0, dtype=np.int64)
    rules.hold(over <= 1, lambda n: one_overhang(int(over[n])))
    sector, eps = ctx.device.far.transaction_bytes, max(ctx.eps, WASTED_RUN)
    for op, box in zip(g.operands, nest.boxes(block), strict=True):
        if not len(box):
            continue
        run, full = runs(op, box), box[-1] >= op.shape[-1]
        half = max(1, sector // op.element_bytes // 2)  # of a sector

        def short(n: int, run: Array = run, half: int = half, name: str = op.name) -> Rejection | None:
            return transaction(int(run[n]), False, half, eps, name)

        rules.hold(full | (ceil_div(run, half) * half <= run * (1 + eps)), short)
    return rules


def neighbouring(geometry: Geometry, sector: int) -> set[int]:
    """Return the spatial axes along which neighbours share a memory transaction, in an operand or in the output."""
    found = {geometry.spatial[-1]}
    for op in geometry.operands:
        if op.dims:
            found |= {a for a, c in op.dims[-1] if a in geometry.spatial_set and c * op.element_bytes < sector}
    return found


def transaction_tile(ctx: Context, options: Sequence[Sequence[int]], tile: Tile) -> Tile:
    """Return the smallest tile above `tile` whose rows are whole memory transactions (rule 2), or whole rows."""
    g = ctx.geometry
    sector = ctx.device.far.transaction_bytes
    grown_ = list(tile)
    for i in neighbouring(g, sector):
        enough = sector // min(op.element_bytes for op in g.operands)
        larger = (e for e in options[i] if e >= max(tile[i], enough))
        grown_[i] = next(larger, options[i][-1] if options[i] else tile[i])
    return tuple(grown_)


def block_tiles(ctx: Context, threads: Sequence[tuple[Tile, Tile]], beam: int) -> list[list[Tile]]:
    """Return block tiles on the `beam` best growth paths above register tiles: threads are added along reuse.

    Parameters
    ----------
    threads : sequence of (register tile, step)
    """
    g, device = ctx.geometry, ctx.device
    most_threads = device.limits.max_threads_per_block or device.vector_width
    if loops_over_tiles(device):
        most_threads = prod(g.extents)
    most_shared = device.limits.shared_per_block_bytes or device.level("shared").capacity_bytes
    growths, nest = [], GpuNest.of(g)
    known: dict[tuple[int, int], list[int]] = {}
    for thread, step in threads:
        options = []
        for i, extent in enumerate(g.extents):
            if i not in g.spatial_set:
                options.append([step[i]])
                continue
            if (i, thread[i]) not in known:
                # A tile that stands over is one thread's: its guards do not differ in a warp.
                whole = [thread[i]] if extent % thread[i] else None
                known[i, thread[i]] = whole or aligned_extents(
                    extent, shape_eps(ctx, i), step=thread[i], most=extent
                )
            options.append(known[i, thread[i]])
        start = tuple(thread[i] if i in g.spatial_set else step[i] for i in range(len(thread)))
        growths.append(Growth(transaction_tile(ctx, options, start), thread, options))
    found = grown(nest, growths, beam, min(beam, BRANCHES), lambda _, inputs: inputs > most_shared, most_threads)
    return [one.tiles for one in found]


def coarse_candidates(ctx: Context, steps: Sequence[Tile], short: bool) -> list[tuple[Tile, Tile]]:
    """Return tiles of blocks and threads that are legal with one step, the fastest first by the quick estimate.

    Parameters
    ----------
    short : bool
        True if tiles are whole axes, so that there may be room for a short step only: it is tried as well.
    """
    g = ctx.geometry
    # Rows along the reduction as long as they can be, about 16 points.
    along = [op for op in g.operands if op.dims and all(a in g.reduce for a, _ in op.dims[-1])]

    def rows(step: Tile) -> int:
        return min((min(op.run(op.box(step)), FIRST_ROW) for op in along), default=0)

    tried = [min(steps, key=lambda s: (-rows(s), abs(prod(s) - FIRST_STEP)))]
    if short:
        tried.append(min(steps, key=lambda s: abs(prod(s) - SHORT_STEP)))
    found: list[tuple[float, Tile, Tile]] = []
    done: set[tuple[Tile, Tile]] = set()
    threads = register_tiles(ctx)
    # The path of most reuse for every register tile, then more paths for the best of them.
    for beam in (1, BLOCK_BEAM):
        groups = list(pairs(threads, tried))
        tiles = [
            (block, thread)
            for (thread, _), blocks in zip(groups, block_tiles(ctx, groups, beam), strict=True)
            for block in blocks if (block, thread) not in done
        ]  # fmt: skip
        if tiles:
            found += [(seconds, *tiles[n]) for n, seconds in _coarse(ctx, tiles, done)]
        found.sort(key=lambda c: c[0])
        threads = list(dict.fromkeys(thread for _, _, thread in found))[:WIDENED]
    return [(block, thread) for _, block, thread in found]


def _coarse(
    ctx: Context, tiles: Sequence[tuple[Tile, Tile]], done: set[tuple[Tile, Tile]]
) -> list[tuple[int, float]]:
    """Return the number of each new, legal candidate and its seconds by the quick estimate; add the new to `done`."""
    block, thread = (columns(side, len(side[0])) for side in zip(*tiles, strict=True))
    rules, new = misaligned(ctx, block), []
    ctx.rejections.add(rules.rejected())
    for n in np.flatnonzero(rules.alive).tolist():
        if tiles[n] not in done:
            done.add(tiles[n])
            new.append(n)
    found = looked_through(ctx, block[:, new], thread[:, new])
    return [(new[row], float(found.times.seconds[n])) for n, row in enumerate(found.rows.tolist())]


def fine_candidates(ctx: Context, coarse: Sequence[tuple[Tile, Tile]], steps: Sequence[Tile]) -> Found:
    """Return the legal candidates among these tiles with every step, by the quick estimate."""
    reduce, axes = ctx.geometry.reduce, len(ctx.geometry.extents)
    tiles = [
        (tuple(step[i] if i in reduce else e for i, e in enumerate(block)), thread)
        for block, thread in coarse for step in steps
    ]  # fmt: skip
    found = looked_through(ctx, columns([b for b, _ in tiles], axes), columns([t for _, t in tiles], axes))
    once: dict[tuple[Tile, Tile], int] = {}
    for n, row in enumerate(found.rows.tolist()):
        once.setdefault(tiles[row], n)
    return found.take(list(once.values()))


def looked_through(ctx: Context, block: Array, thread: Array) -> Found:
    """Return the legal candidates of a table, by the quick estimate; without those that do not fit a unit."""
    made = tiled(GpuNest.of(ctx.geometry), ctx.device, block, thread)
    times = quick_estimates(made, ctx.device)  # of all: few would be left out, and tables are made once
    rows = np.flatnonzero(legal(ctx, made) & (times.resident > 0))
    return Found(rows, made.take(rows), times.take(rows))


@dataclass(frozen=True)
class Found:
    """Candidates with their times; ``rows`` are their numbers in a larger table."""

    rows: Array
    candidates: Tiled
    times: Times

    def take(self, rows: Sequence[int] | Array) -> Found:
        """Return some of them."""
        at = np.asarray(rows, np.int64)
        return Found(self.rows[at], self.candidates.take(at), self.times.take(at))
