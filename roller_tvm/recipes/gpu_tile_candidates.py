"""Candidates of recipe gpu.tiled: register tiles, grown to block tiles and reduction steps, ranked by the model.

Candidates are columns of a table: a round of growth, the rules, and the estimates are evaluated for all at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np

from ..device import DeviceSpec
from ..micro_perf.geometry import Geometry, Tile
from ..micro_perf.gpu_constants import ACCUMULATORS, FETCHES
from ..micro_perf.gpu_nest import Array, GpuNest, ceil_div, columns, distinct_columns, names, product, round_up
from ..micro_perf.gpu_tiles import Tiled, quick_times
from ..micro_perf.registers import UNLIMITED, RegisterTiles, register_caps, unrolled_steps, usable_limits
from ..roller.alignment import Rejection, aligned_extents, divisors, execution_unit, tensor_shape, transaction
from .fetching import fetch_vectors, storage_paddings, store_vectors, virtual_threads
from .gpu_growth import Grown, Growths, Options, grown
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


def register_tiles(ctx: Context) -> Array:
    """Return register tiles on the growth paths of best data reuse, until the register file is full."""
    g, device, nest = ctx.geometry, ctx.device, GpuNest.of(ctx.geometry)
    limits = {"accumulators": ACCUMULATORS, "registers": int(usable_limits(device, np.array(device.vector_width)))}
    options = [aligned_extents(g.extents[i], shape_eps(ctx, i), most=REGISTER_MOST) for i in g.spatial]

    def needs(tiles: Array) -> tuple[Array, dict[str, Array]]:
        """Return the axes that tiles stand over, and what they need of each limit."""
        over = np.add.reduce(nest.overhangs(tiles), axis=0, dtype=np.int64)
        registers = RegisterTiles.of(nest, tiles)
        return over, {"accumulators": registers.accumulators, "registers": registers.needed(device)}

    def breaks(tiles: Array, _: Array) -> Array:
        over, needed = needs(tiles)
        return (over > 1) | np.logical_or.reduce([needed[what] > most for what, most in limits.items()])

    count = len(g.spatial)
    start = np.ones((len(g.extents), 1), np.int64)
    rows = Options([(sizes, g.extents[i]) for sizes, i in zip(options, g.spatial, strict=True)])
    growths = Growths(rows, np.arange(count)[:, None], np.zeros((count, 1), np.int64), start, start[nest.outer])
    found = grown(nest, growths, REGISTER_BEAM, BRANCHES, breaks)
    if len(refused := found.refused.T):
        rules = Rules(len(refused), lambda n: f"register tile {_tile(found.refused, n)}")
        over, needed = needs(found.refused)
        rules.hold(over <= 1, lambda n: one_overhang(int(over[n])))
        for what, most in limits.items():
            rules.room(what, needed[what], most)
        ctx.rejections.add(rules.rejected())
    return np.concatenate([start, found.tiles], axis=1)


def near_divisor(extent: int, length: int) -> int:
    """Return the divisor of `extent` nearest to `length`; if none is near, `length` itself (the last step is guarded).

    Examples
    --------
    >>> near_divisor(1024, 16), near_divisor(42, 16), near_divisor(30522, 16), near_divisor(3, 16)
    (16, 14, 16, 3)
    """
    if length >= extent:
        return extent
    near = [d for d in divisors(extent) if length <= 2 * d <= 3 * length]
    return min(near, key=lambda d: abs(d - length), default=length)


def nearest_divisor(extent: int, length: int) -> int:
    """Return the divisor of `extent` nearest to `length`, the larger of two.

    Examples
    --------
    >>> nearest_divisor(7, 4), nearest_divisor(7, 2), nearest_divisor(9, 4)
    (7, 1, 3)
    """
    return min(divisors(extent), key=lambda d: (abs(d - length), -d))


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
    covered = ceil_div(nest.extents, block) * block
    for i in g.spatial:
        extent, eps = g.extents[i], shape_eps(ctx, i)

        def uneven(n: int, i: int = i, eps: float = eps) -> Rejection | None:
            return tensor_shape(g.extents[i], int(block[i, n]), eps, g.axes[i])

        rules.hold(covered[i] <= extent * (1 + eps) + 1e-9, uneven)
    over = np.add.reduce(nest.overhangs(block), axis=0, dtype=np.int64)
    rules.hold(over <= 1, lambda n: one_overhang(int(over[n])))
    sector, eps = ctx.device.far.transaction_bytes, max(ctx.eps, WASTED_RUN)
    boxes, halves = nest.boxes(block), np.maximum(1, sector // nest.element_bytes // 2)  # of a sector
    runs, full = nest.runs(boxes), boxes[:, -1] >= nest.shape[:, -1]
    whole = full | (round_up(runs, halves) <= runs * (1 + eps))
    for op, run, half, fits in zip(g.operands, runs, halves[:, 0].tolist(), whole, strict=True):

        def short(n: int, run: Array = run, half: int = half, name: str = op.name) -> Rejection | None:
            return transaction(int(run[n]), False, half, eps, name)

        rules.hold(fits, short)
    return rules


def neighbouring(geometry: Geometry, sector: int) -> set[int]:
    """Return the spatial axes along which neighbours share a memory transaction, in an operand or in the output."""
    found = {geometry.spatial[-1]}
    for op in geometry.operands:
        if op.dims:
            found |= {a for a, c in op.dims[-1] if a in geometry.spatial_set and c * op.element_bytes < sector}
    return found


def block_tiles(ctx: Context, threads: Array, steps: Array, beam: int) -> Grown:
    """Return block tiles on the `beam` best growth paths above register tiles: threads are added along reuse.

    A path starts from the smallest tile whose rows are whole memory transactions (rule 2), or whole rows.

    Parameters
    ----------
    threads, steps : array of (axes, growths)
        Register tiles, and extents along reductions.
    """
    g, device, nest = ctx.geometry, ctx.device, GpuNest.of(ctx.geometry)
    most_threads = device.limits.max_threads_per_block or device.vector_width
    if loops_over_tiles(device):
        most_threads = prod(g.extents)
    most_shared = device.limits.shared_per_block_bytes or device.level("shared").capacity_bytes
    sector = device.far.transaction_bytes
    together, enough = neighbouring(g, sector), sector // min(op.element_bytes for op in g.operands)
    rows: list[tuple[list[int], int]] = []
    starts: list[int] = []
    known: dict[tuple[int, int], int] = {}
    for i in g.spatial:
        for own in dict.fromkeys(threads[i].tolist()):
            extent = g.extents[i]
            # A tile that stands over is one thread's: its guards do not differ in a warp.
            alone = extent % own != 0
            options = [own] if alone else aligned_extents(extent, shape_eps(ctx, i), step=own, most=extent)
            known[i, own] = len(rows)
            rows.append((options, extent))
            starts.append(min(bisect_left(options, enough), len(options) - 1) if i in together else 0)
    row = np.array([[known[i, own] for own in threads[i].tolist()] for i in g.spatial])
    growths = Growths(Options(rows), row, np.array(starts)[row], steps, threads[nest.outer])
    return grown(nest, growths, beam, min(beam, BRANCHES), lambda _, inputs: inputs > most_shared, most_threads)


def coarse_candidates(ctx: Context, steps: Sequence[Tile], short: bool) -> tuple[Array, Array]:
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
    points = columns(tried, len(g.extents))
    threads = register_tiles(ctx)
    block = thread = threads[:, :0]
    seconds = np.zeros(0)
    done: set[bytes] = set()
    # The path of most reuse for every register tile, then more paths for the best of them.
    for beam in (1, BLOCK_BEAM):
        if not threads.size:
            break
        growing, count = np.repeat(threads, len(tried), axis=1), threads.shape[1]
        found = block_tiles(ctx, growing, np.tile(points, count), beam)
        new_block, new_thread = found.tiles, growing[:, found.growth]
        if done:
            new = [n for n, name in enumerate(names(new_block, new_thread)) if name not in done]
            new_block, new_thread = new_block[:, new], new_thread[:, new]
        rules = misaligned(ctx, new_block)
        ctx.rejections.add(rules.rejected())
        new_block, new_thread = new_block[:, rules.alive], new_thread[:, rules.alive]
        done.update(names(new_block, new_thread))
        looked = looked_through(ctx, new_block, new_thread)
        seconds = np.concatenate([seconds, looked.seconds])
        order = np.argsort(seconds, kind="stable")
        seconds = seconds[order]
        block = np.concatenate([block, new_block[:, looked.rows]], axis=1)[:, order]
        thread = np.concatenate([thread, new_thread[:, looked.rows]], axis=1)[:, order]
        threads = thread[:, distinct_columns(thread)[0][:WIDENED]]
    return block, thread


def fine_candidates(ctx: Context, block: Array, thread: Array, steps: Sequence[Tile]) -> Found:
    """Return the legal candidates among these tiles with every step, by the quick estimate."""
    inner = GpuNest.of(ctx.geometry).inner
    every, points = np.repeat(block, len(steps), axis=1), columns(steps, len(block))
    every[inner] = np.tile(points[inner], block.shape[1])
    thread = np.repeat(thread, len(steps), axis=1)
    found = looked_through(ctx, every, thread)
    new = distinct_columns(every[:, found.rows], thread[:, found.rows])[0]
    return Found(found.rows[new], found.table, found.seconds[new])


def looked_through(ctx: Context, block: Array, thread: Array) -> Found:
    """Return the legal candidates of a table, by the quick estimate; without those that do not fit a unit."""
    made = tiled(GpuNest.of(ctx.geometry), ctx.device, block, thread)
    times = quick_times(made, ctx.device)  # of all: few would be left out, and tables are made once
    rows = np.flatnonzero(legal(ctx, made) & (times.fitting > 0))
    return Found(rows, made, times.seconds[rows])


@dataclass(frozen=True)
class Found:
    """Candidates of a table with their quick estimates; ``rows`` are their numbers in it."""

    rows: Array
    table: Tiled
    seconds: Array

    def fastest(self, count: int) -> Tiled:
        """Return the fastest candidates."""
        return self.table.take(self.rows[np.argsort(self.seconds, kind="stable")[:count]])
