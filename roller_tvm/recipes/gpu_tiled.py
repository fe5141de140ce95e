"""Construction of staged GPU nests: scale up from registers to shared memory, scale out over the units.

Micro-performance model of recipe gpu.tiled: footprint, traffic and time per level, occupancy, waves.

Everything is counted for *aligned* tiles (Roller, section 3.3): a block's step loads its input tiles from
global into shared memory, its threads load operands from shared memory into registers and compute.
Throughput of a unit with several resident blocks and the latency of one block's own chain of
load - synchronise - compute are both evaluated; the slower one is the time of a step.

There are two depths of it. ``tiled_estimate`` takes a tenth of a millisecond and leads construction to the tiles that
are worth a closer look. ``staged_estimate`` ranks those. It is the model of any staged kernel, effect by effect
(``effects``); recorded schedules are compared with it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import ceil, prod

from ..device import DeviceSpec
from ..micro_perf.estimate import LevelTime, ProgramEstimate
from ..micro_perf.geometry import Geometry, Operand, Tile
from ..micro_perf.gpu import (
    BLOCK_CYCLES,
    GpuRates,
    busiest_unit,
    far_traffic,
    instructions,
    overlapped,
    sectors,
    spread,
)
from ..micro_perf.gpu_kernel import staged_time
from ..micro_perf.kernel import StagedKernel
from ..micro_perf.occupancy import occupancy
from ..micro_perf.registers import (
    ACCUMULATORS,
    FETCHES,
    accumulators,
    needed_registers,
    predicted_registers,
    unrolled_steps,
    usable_registers,
)
from ..micro_perf.residency import registers_needed
from ..micro_perf.storage import VECTOR_ALIGNMENT, alignments, read_width, storage_elements
from ..roller.alignment import Rejection, aligned_extents, capacity, execution_unit, tensor_shape, transaction
from ..roller.features import NO_FEATURES, Features
from ..roller.rprogram import RProgram
from .fetching import fetch_vector, storage_padding, store_vector, virtual_threads, within_rows
from .search import Search

# Breadth of the search, not device facts: register tiles and block tiles kept on the way up.
REGISTER_BEAM, BLOCK_BEAM, BRANCHES = 6, 3, 2
REGISTER_TILES = 6
REFINED = 24
# Candidates for which every effect is counted: those that the quick estimate ranks first.
LOOKED_AT = 64
# Candidates tried with more buffers: with fewer, the best of ten plans can change.
STAGED = 20
# Share of lanes that may idle in a block's last warp whatever eps is: rows of 21 or 83 fill whole warps only in
# blocks of hundreds of threads, which have few registers each. The model counts the idle lanes.
IDLE_LANES = 0.2
# Most buffers of a staged tile to try, and the bytes that the smallest cp.async moves (PTX ISA).
MOST_STAGES, COPY_LEAST = 4, 4
# Extents of a register tile along one axis: the least that reuse needs, the most that registers hold.
REGISTER_LEAST, REGISTER_MOST = 4, 32


def reuse_score(geometry: Geometry, tile: Tile, larger: Tile) -> float:
    """Return the data-reuse score of growing a tile: traffic saved per byte of footprint (Roller, section 3.3)."""
    (before, held), (after, more) = geometry.moved_and_held(tile), geometry.moved_and_held(larger)
    return (before - after) / max(1, more - held)


def grow(geometry: Geometry, tile: Tile, options: list[list[int]]) -> Iterator[Tile]:
    """Yield the tiles one aligned step larger, one per spatial axis; if one axis stands over, the others grow whole."""
    extents = geometry.extents
    over = [i for i in geometry.spatial if extents[i] % tile[i]]
    for i in geometry.spatial:
        extent, own, alone = extents[i], tile[i], not over or over == [i]
        for larger in options[i]:
            if larger > own and (alone or extent % larger == 0):
                yield (*tile[:i], larger, *tile[i + 1:])
                break


@cache
def awkward(extent: int) -> bool:
    """Return whether no useful register extent divides an axis: its length is a large prime, or twice one.

    Examples
    --------
    >>> [e for e in (31, 56, 83, 127, 194, 1000) if awkward(e)]
    [83, 127, 194]
    """
    return extent > REGISTER_MOST and all(extent % d for d in range(REGISTER_LEAST, REGISTER_MOST + 1))


def shape_eps(search: Search, axis: int) -> float:
    """Return rule 4's share of padding for an axis: above 0 only if no tile divides it, since guards cost time."""
    return search.eps if awkward(search.geometry.extents[axis]) else 0.0


def one_overhang(axes: list[int]) -> Rejection | None:
    """Return a rejection if several axes stand over, else None: compilers keep guarded loads wide along one axis."""
    if len(axes) < 2:
        return None
    return Rejection("tensor shape", f"{len(axes)} axes padded", "1", "use a tile that divides all axes but one")


def register_tiles(search: Search) -> list[Tile]:
    """Return register tiles on the growth paths of best data reuse, until the register file is full."""
    g, device = search.geometry, search.device
    limit = usable_registers(device, device.vector_width)
    options = [
        aligned_extents(e, shape_eps(search, i), most=REGISTER_MOST) if i in g.spatial else [1]
        for i, e in enumerate(g.extents)
    ]
    start = tuple(1 for _ in g.extents)
    seen, frontier, result = {start}, [start], [start]
    while frontier:
        following: list[tuple[float, Tile]] = []
        for tile in frontier:
            steps = sorted(((reuse_score(g, tile, larger), larger) for larger in grow(g, tile, options)), reverse=True)
            for score, larger in steps[:BRANCHES]:
                if larger in seen:
                    continue
                seen.add(larger)
                label = f"register tile {larger}"
                if search.reject(one_overhang(g.overhanging(larger)), label):
                    continue
                if search.reject(capacity("accumulators", accumulators(g, larger), ACCUMULATORS), label):
                    continue
                needed = needed_registers(g, device, larger)
                if limit is not None and search.reject(capacity("registers", needed, limit), label):
                    continue
                following.append((score, larger))
        frontier = [t for _, t in heapq.nlargest(REGISTER_BEAM, following)]
        result += frontier
    return result


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
    lengths = [max(1, base // 4) << n for n in range(5)]
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
            if (longer or prod(candidate) <= 16 * base) and candidate not in results:
                results.append(candidate)
    if not results:
        results.append(tuple(1 for _ in geometry.extents))
    return results


def loops_over_tiles(device: DeviceSpec) -> bool:
    """Return whether a thread computes many register tiles of a block in turn, as an IPU tile's few workers do."""
    return device.kind == "ipu"


def complete(search: Search, block: Tile, thread: Tile) -> tuple[TiledShape, int, ProgramEstimate] | None:
    """Return the candidate with padding, vectors and virtual threads, and its estimate; None if it breaks a rule."""
    g, device = search.geometry, search.device
    search.considered += 1
    limits = device.limits
    threads = prod([ceil(block[i] / thread[i]) for i in g.spatial])
    if loops_over_tiles(device):
        threads = min(threads, limits.max_threads_per_block or threads)

    def broken(rejection: Rejection | None) -> bool:
        return rejection is not None and search.reject(rejection, f"block {block} thread {thread}")

    if broken(execution_unit(threads, device.vector_width, max(search.eps, IDLE_LANES))):
        return None
    if broken(capacity("threads per block", threads, limits.max_threads_per_block or threads)):
        return None
    unrolled = unrolled_steps(g, thread, block)
    padding = tuple(storage_padding(g, op, block, unrolled, device) for op in g.operands)
    vectors = tuple(fetch_vector(g, op, block, device, p) for op, p in zip(g.operands, padding, strict=True))
    vectors = within_rows(g, block, vectors)
    if any(len(op.shape) < 2 for op in g.operands):
        vectors = tuple(1 for _ in vectors)  # the stride of a one-dimensional buffer cannot be aligned
    fetches = [ceil(op.elements(block) / (width * threads)) for op, width in zip(g.operands, vectors, strict=True)]
    # A limit of compilers for GPUs, which hold all that a thread fetches in registers.
    for count in fetches if device.kind == "gpu" else ():
        if broken(capacity("fetches per thread", count, FETCHES, "use more threads or a shorter step")):
            return None
    virtual = virtual_threads(g, block, thread, device)
    shape = TiledShape(block, thread, virtual, unrolled, vectors, store_vector(g, block, thread, virtual), padding)
    shared = shared_bytes_of(g, shape)
    most = limits.shared_per_block_bytes or device.level("shared").capacity_bytes
    if broken(capacity("shared memory of a block", shared, most)):
        return None
    limit = usable_registers(device, threads)
    needed = needed_registers(g, device, thread)
    remedy = "use a smaller register tile or fewer threads"
    if limit is not None and broken(capacity("registers", needed, limit, remedy)):
        return None
    fetched = sum(count * width for count, width in zip(fetches, vectors, strict=True))
    if device.kind == "gpu" and broken(spilling(g, device, thread, unrolled, threads, fetched)):
        return None
    estimate = tiled_estimate(g, device, shape, threads, shared)
    if estimate is None:
        return None
    return shape, threads, estimate


def spilling(
    geometry: Geometry, device: DeviceSpec, thread: Tile, unrolled: Tile, threads: int, fetched: int
) -> Rejection | None:
    """Return a rejection if the model predicts spills, else None: recorded schedules with spills are far slower."""
    body = tuple(unrolled[i] if i in geometry.reduce else e for i, e in enumerate(thread))
    needed, cap = registers_needed(geometry, device, thread, threads, body, fetched)
    return capacity("registers of an unrolled step", needed, cap, "unroll less of a step, or use a smaller tile")


def misaligned(search: Search, block: Tile) -> Rejection | None:
    """Return the first of rules 2 and 4 that a block tile breaks, None if it breaks none."""
    g = search.geometry
    for i in g.spatial:
        if broken := tensor_shape(g.extents[i], block[i], shape_eps(search, i), g.axes[i]):
            return broken
    if broken := one_overhang(g.overhanging(block)):
        return broken
    sector = search.device.far.transaction_bytes
    for op in g.operands:
        box = op.box(block)
        full = not box or box[-1] >= op.shape[-1]
        # Beyond eps, half a sector is tolerated: strided and windowed rows never align.
        moved = max(1, sector // op.element_bytes // 2)
        if broken := transaction(op.run(box), full, moved, max(search.eps, 0.25), op.name):
            return broken
    return None


def neighbouring(geometry: Geometry, sector: int) -> set[int]:
    """Return the spatial axes along which neighbours share a memory transaction, in an operand or in the output."""
    found = {geometry.spatial[-1]}
    for op in geometry.operands:
        if op.dims:
            found |= {a for a, c in op.dims[-1] if a in geometry.spatial_set and c * op.element_bytes < sector}
    return found


def transaction_tile(search: Search, options: list[list[int]], tile: Tile) -> Tile:
    """Return the smallest tile above `tile` whose rows are whole memory transactions (rule 2), or whole rows."""
    g = search.geometry
    sector = search.device.far.transaction_bytes
    grown = list(tile)
    for i in neighbouring(g, sector):
        enough = sector // min(op.element_bytes for op in g.operands)
        grown[i] = next((e for e in options[i] if e >= max(tile[i], enough)), options[i][-1] if options[i] else tile[i])
    return tuple(grown)


def block_tiles(search: Search, thread: Tile, step: Tile, beam: int) -> list[Tile]:
    """Return block tiles on the `beam` best growth paths above one register tile: threads are added along reuse."""
    g, device = search.geometry, search.device
    most_threads = device.limits.max_threads_per_block or device.vector_width
    if loops_over_tiles(device):
        most_threads = prod(g.extents)
    most_shared = device.limits.shared_per_block_bytes or device.level("shared").capacity_bytes
    options = []
    for i, extent in enumerate(g.extents):
        if i not in g.spatial_set:
            options.append([step[i]])
        elif extent % thread[i]:
            options.append([thread[i]])  # a tile that stands over is one thread's: its guards do not differ in a warp
        else:
            options.append(aligned_extents(extent, shape_eps(search, i), step=thread[i], most=extent))
    start = tuple(thread[i] if i in g.spatial else step[i] for i in range(len(thread)))
    tile = transaction_tile(search, options, start)
    result: list[Tile] = []
    seen = {tile}
    frontier = [tile]
    while frontier:
        following: list[tuple[float, Tile]] = []
        for tile in frontier:
            ranked = sorted(((reuse_score(g, tile, larger), larger) for larger in grow(g, tile, options)), reverse=True)
            for score, larger in ranked[: min(beam, BRANCHES)]:
                threads = prod([ceil(larger[i] / thread[i]) for i in g.spatial])
                if larger in seen or threads > most_threads:
                    continue
                seen.add(larger)
                if g.input_bytes(larger) > most_shared:
                    continue
                following.append((score, larger))
        frontier = [t for _, t in heapq.nlargest(beam, following)]
        result += frontier
    return result


def construct_tiled(
    search: Search, top: int, features: Features = NO_FEATURES
) -> list[tuple[RProgram, ProgramEstimate]]:
    """Return ranked candidates of recipe gpu.tiled at one eps."""
    g, device = search.geometry, search.device
    if not g.spatial or not g.reduce or not g.operands:
        return []
    lacking = [i for i in g.spatial if awkward(g.extents[i])]
    if lacking and search.eps == 0.0:
        for i in lacking:
            need = f"a divisor of '{g.axes[i]}' from {REGISTER_LEAST} to {REGISTER_MOST}"
            search.reject(Rejection("tensor shape", need, str(g.extents[i]), "relax eps"))
        return []
    steps = reduction_steps(g, device)
    # Coarse pass with one step: rows along the reduction as long as they can be, about 16 points.
    along = [op for op in g.operands if op.dims and all(a in g.reduce for a, _ in op.dims[-1])]
    first = min(steps, key=lambda s: (-min((min(op.run(op.box(s)), 8) for op in along), default=0), abs(prod(s) - 16)))
    coarse: list[tuple[float, Tile, Tile]] = []
    done: set[tuple[Tile, Tile]] = set()
    rules: dict[Tile, Rejection | None] = {}  # what a block tile breaks, whatever its threads are
    # If tiles are whole axes, there may be room for a short step only.
    shorter = [min(steps, key=lambda s: abs(prod(s) - 4))] if lacking else []
    threads = register_tiles(search)
    # The path of most reuse for every register tile, then more paths for the best of them.
    for beam in (1, BLOCK_BEAM):
        for thread, step in product(threads, [first, *shorter]):
            for block in block_tiles(search, thread, step, beam):
                if (block, thread) in done:
                    continue
                if block not in rules:
                    rules[block] = misaligned(search, block)
                if rules[block] is not None and search.reject(rules[block], f"block {block}"):
                    continue
                done.add((block, thread))
                outcome = complete(search, block, thread)
                if outcome:
                    coarse.append((outcome[2].seconds, block, thread))
        coarse.sort(key=lambda c: c[0])
        threads = list(dict.fromkeys(thread for _, _, thread in coarse))[:REGISTER_TILES]
    fine: dict[tuple[Tile, Tile], tuple[TiledShape, int, ProgramEstimate]] = {}
    for _, block, thread in coarse[:REFINED]:
        for step in steps:
            tile = tuple(step[i] if i in g.reduce else block[i] for i in range(len(block)))
            outcome = complete(search, tile, thread)
            if outcome:
                fine[tile, thread] = outcome
    ranked = sorted(fine.values(), key=lambda o: o[2].seconds)
    ranked = closer(search, ranked[: max(LOOKED_AT, 2 * top)])[: max(STAGED, 2 * top)]
    if features.async_copy:
        ranked = sorted((staged(search, features, *o) for o in ranked), key=lambda o: o[2].seconds)
    return [(program(search, shape, threads), estimate) for shape, threads, estimate in ranked[: 2 * top]]


def closer(
    search: Search, found: list[tuple[TiledShape, int, ProgramEstimate]]
) -> list[tuple[TiledShape, int, ProgramEstimate]]:
    """Return candidates ranked by the full model (the one compared with recorded schedules), the fastest first."""
    if search.device.kind != "gpu":
        return found
    again = [(shape, threads, estimated(search, shape, threads)) for shape, threads, _ in found]
    known = [(shape, threads, told) for shape, threads, told in again if told is not None]
    return sorted(known, key=lambda o: o[2].seconds)


def estimated(search: Search, shape: TiledShape, threads: int) -> ProgramEstimate | None:
    """Return the model's estimate of a candidate: with every effect for a GPU, the quick one for other devices."""
    estimate = staged_estimate if search.device.kind == "gpu" else tiled_estimate
    return estimate(search.geometry, search.device, shape, threads)


def staged(
    search: Search, features: Features, shape: TiledShape, threads: int, estimate: ProgramEstimate
) -> tuple[TiledShape, int, ProgramEstimate]:
    """Return the shape with as many buffers as its loads' latency needs and shared memory has room for."""
    g, device = search.geometry, search.device
    best = (shape, threads, estimate)
    enough = all(op.element_bytes * v >= COPY_LEAST for op, v in zip(g.operands, shape.vectors, strict=True))
    steps = max(ceil(g.extents[i] / shape.block[i]) for i in g.reduce)
    # Copies past the registers compute nothing on the way.
    if not enough or any(op.arithmetic or any(op.opaque) for op in g.operands):
        return best
    for stages in range(2, min(MOST_STAGES, steps) + 1):
        more = replace(shape, stages=stages)
        if shared_bytes_of(g, more) > features.shared_limit(device):
            break
        found = estimated(search, more, threads)
        if found is not None and found.seconds < best[2].seconds:
            best = (more, threads, found)
    return best


def program(search: Search, shape: TiledShape, threads: int) -> RProgram:
    """Return the candidate as an rProgram."""
    g = search.geometry
    padding = {op.name: p for op, p in zip(g.operands, shape.padding, strict=True) if p}
    block = search.rtile("shared", shape.block, padding)
    thread = search.rtile("register", shape.thread)
    choices: dict[str, int] = {"threads": threads}
    choices.update({f"unroll:{g.axes[i]}": shape.unrolled[i] for i in g.reduce if shape.unrolled[i] > 1})
    choices.update({f"vthread:{a}": v for a, v in zip(g.axes, shape.vthreads, strict=True) if v > 1})
    choices.update({f"vector:{op.name}": v for op, v in zip(g.operands, shape.vectors, strict=True)})
    choices["store"] = shape.store
    if shape.stages > 1:
        choices["stages"] = shape.stages
    staged = tuple(dict.fromkeys(op.name for op in g.operands))
    return search.program("gpu.tiled", (block, thread), tuple(choices.items()), staged)


# Issue slots that one fetched vector costs beside its load and store: its coordinates in the tile, divisions by
# constants. A padding guard adds comparisons and a branch. Counted in the main loops of ten compiled plans (sm_80).
FETCH_OVERHEAD = 5
GUARD_OVERHEAD = 18


@dataclass(frozen=True)
class TiledShape:
    """A candidate of recipe gpu.tiled: extents per axis position."""

    block: Tile  # spatial: the block's tile; reduction: one step
    thread: Tile  # a thread's register tile; reduction: 1
    vthreads: Tile  # virtual threads per axis
    unrolled: Tile  # reduction: iterations of a step that are unrolled
    vectors: tuple[int, ...]  # elements a fetch instruction moves, per operand
    store: int  # elements a store instruction moves
    padding: tuple[int, ...]  # per operand, elements
    stages: int = 1  # buffers of each staged tile: copies run ahead of what reads them by one less


def kernel_of(geometry: Geometry, shape: TiledShape) -> StagedKernel:
    """Return a candidate in the form of any staged kernel: its reduction is split in two, the inner part unrolled."""
    outer = [(i, ceil(shape.block[i] / shape.unrolled[i])) for i in geometry.reduce]
    inner = [(i, shape.unrolled[i]) for i in geometry.reduce]
    own = [(i, shape.thread[i] // shape.vthreads[i]) for i in geometry.spatial]
    statements = prod(shape.thread[i] for i in geometry.spatial) * prod(e for _, e in inner)
    return StagedKernel(
        geometry, shape.block, shape.thread, shape.vthreads, (*outer, *inner, *own), statements, shape.vectors,
        shape.padding, shape.store, shape.stages, aligned=True,
    )  # fmt: skip


def vector_quantum(operand: Operand, vectors: tuple[int, ...]) -> int:
    """Return the elements of which a staged buffer must be a multiple to keep vectors into the next buffer aligned."""
    return max(1, VECTOR_ALIGNMENT // operand.element_bytes) if max(vectors, default=1) > 1 else 1


def shared_bytes_of(geometry: Geometry, shape: TiledShape) -> int:
    """Return the shared memory of a block in bytes: exactly TVM's allocation for the staged operands."""
    total = 0
    for op, padding in zip(geometry.operands, shape.padding, strict=True):
        box = op.box(shape.block)
        total += storage_elements(box, alignments(box, padding, vector_quantum(op, shape.vectors))) * op.element_bytes
    return total * shape.stages


def tiled_estimate(geometry: Geometry, device: DeviceSpec, shape: TiledShape, threads: int,
                   shared_bytes: int | None = None) -> ProgramEstimate | None:
    """Return the predicted time of a staged contraction; None if not even one block fits on a unit.

    Parameters
    ----------
    geometry : Geometry
    device : DeviceSpec
    shape : TiledShape
    threads : int
        Threads per block.
    shared_bytes : int, optional
        Result of ``shared_bytes_of(geometry, shape)``, if it is known already.
    """
    rates = GpuRates.of(device, geometry.stage.dtype)
    block, thread = shape.block, shape.thread
    extents, spatial, reduce = geometry.extents, geometry.spatial, geometry.reduce
    warp = device.vector_width
    warps = ceil(threads / warp)

    if shared_bytes is None:
        shared_bytes = shared_bytes_of(geometry, shape)
    boxes = [op.box(block) for op in geometry.operands]
    fetches = [ceil(prod(box) / (v * threads)) for box, v in zip(boxes, shape.vectors, strict=True)]
    registers = predicted_registers(geometry, device, thread, shape.unrolled, threads, fetches, shape.vectors)
    resident, limit = occupancy(device, threads, registers, shared_bytes)
    if resident == 0:
        return None
    blocks = prod([ceil(extents[i] / block[i]) for i in spatial])
    resident = min(resident, ceil(blocks / device.units))
    steps = prod([ceil(extents[i] / block[i]) for i in reduce])

    # One block, one step.
    inner = prod([block[i] for i in reduce])
    rounds = ceil(prod([ceil(block[i] / thread[i]) for i in spatial]) / threads)  # register tiles of a thread
    points = prod([thread[i] for i in spatial]) * inner * rounds  # per thread
    arithmetic = instructions(geometry)
    compute = points * arithmetic * threads / rates.lanes
    load_slots, wavefronts = shared_reads(geometry, shape, warp)
    shared_read = wavefronts * inner * rounds * warps * rates.line / rates.shared
    bytes_step = [sectors(op, box, rates.sector) for op, box in zip(geometry.operands, boxes, strict=True)]
    fetch_slots = sum(
        n * (2 + FETCH_OVERHEAD + GUARD_OVERHEAD * op.guarded + op.arithmetic * v)
        for op, n, v in zip(geometry.operands, fetches, shape.vectors, strict=True)
    )
    issue = ((points * arithmetic + load_slots * inner * rounds) + fetch_slots) * warps / rates.issue
    staged = sum([prod(box) * op.element_bytes for op, box in zip(geometry.operands, boxes, strict=True)])
    global_load = sum(bytes_step)

    # The whole grid: how many blocks the busiest unit runs, and how many are there at a time.
    busiest, waves = busiest_unit(device, blocks, resident)
    far = far_traffic(geometry, device, block, device.units * resident, [b * steps for b in bytes_step])
    l2_time = global_load / rates.l2
    dram_time = far / (blocks * steps) / rates.dram  # what misses L2
    shared_time = shared_read + staged / rates.shared
    throughput = overlapped([compute, issue, shared_time, l2_time, dram_time])
    sync = 2 * rates.shared_latency
    alone = max(compute, issue, shared_read) / min(1.0, warps / rates.issue)
    chain = rates.dram_latency + sync + max(l2_time, dram_time) + alone
    if shape.stages > 1:  # a load has the steps that it runs ahead to arrive in
        chain = max(alone + sync, (chain - sync) / (shape.stages - 1))
    cycles = busiest * (steps * max(throughput, chain / resident) + BLOCK_CYCLES)

    # Store and epilogue.
    outputs = prod([extents[i] for i in spatial])
    waste = 1.0
    if spatial and block[spatial[-1]] < extents[spatial[-1]]:
        run = block[spatial[-1]] * geometry.output_bytes
        waste = ceil(run / rates.sector) * rates.sector / run
    store_bytes = outputs * geometry.output_bytes * waste + geometry.epilogue_bytes
    store = store_bytes / (rates.dram * device.units) + rates.dram_latency
    seconds = (cycles + store) * rates.cycle + device.launch_overhead_us * 1e-6

    terms = {"compute": compute, "issue": issue, "shared": shared_time, "l2": l2_time, "dram": dram_time}
    bound = max(terms, key=lambda k: terms[k])
    if chain / resident > throughput:
        bound = "latency"
    total_steps = blocks * steps
    unit_seconds = total_steps / device.units * rates.cycle
    levels = (
        LevelTime(device.far.name, far + store_bytes, (far + store_bytes) / (device.far.bandwidth_gbps * 1e9)),
        *([LevelTime("l2", global_load * total_steps, l2_time * unit_seconds)] if device.has("l2") else []),
        LevelTime("shared", wavefronts * inner * rounds * warps * rates.line * total_steps, shared_time * unit_seconds),
    )
    return ProgramEstimate(
        seconds, compute * unit_seconds, levels, bound, geometry.stage.flops + geometry.epilogue_flops * outputs,
        blocks, waves, resident, limit, threads, registers, shared_bytes, blocks / (busiest * device.units),
    )  # fmt: skip


def staged_estimate(
    geometry: Geometry, device: DeviceSpec, shape: TiledShape, threads: int
) -> ProgramEstimate | None:  # fmt: skip
    """Return the time predicted for any schedule of the same tiles; None if not even one block fits on a unit.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import matmul
    >>> g = Geometry.of(matmul(m=1024, n=1024, k=1024), "matmul")
    >>> shape = TiledShape((64, 64, 16), (8, 8, 1), (1, 2, 1), (1, 1, 8), (4, 4), 4, (0, 0))
    >>> staged_estimate(g, load_device("v100"), shape, 64).bound
    'compute'
    """
    kernel = kernel_of(geometry, shape)
    rates = GpuRates.of(device, geometry.stage.dtype)
    fetches = [ceil(prod(box) / (v * threads)) for box, v in zip(kernel.boxes, shape.vectors, strict=True)]
    registers = predicted_registers(geometry, device, shape.thread, shape.unrolled, threads, fetches, shape.vectors)
    told = staged_time(kernel, device, registers=registers)
    if told is None:
        return None
    blocks, steps = kernel.blocks, kernel.blocks * kernel.steps
    busiest, waves = busiest_unit(device, blocks, told.resident)
    outputs = prod(geometry.extents[i] for i in geometry.spatial)
    unit_seconds = steps / device.units * rates.cycle
    compute = kernel.outputs * kernel.depth * instructions(geometry) * threads / rates.lanes
    far = told.far_bytes + outputs * geometry.output_bytes + geometry.epilogue_bytes
    near, shared = told.cycles["l2"], told.cycles["shared"]
    levels = (
        LevelTime(device.far.name, far, far / (device.far.bandwidth_gbps * 1e9)),
        *([LevelTime("l2", near * rates.l2 * steps, near * unit_seconds)] if device.has("l2") else []),
        LevelTime("shared", shared * rates.shared * steps, shared * unit_seconds),
    )
    bound = device.far.name if told.bound in ("dram", "store") else told.bound
    return ProgramEstimate(
        told.seconds, compute * unit_seconds, levels, bound, geometry.stage.flops + geometry.epilogue_flops * outputs,
        blocks, waves, told.resident, told.limit, threads, registers, kernel.shared_bytes,
        blocks / (busiest * device.units),
    )  # fmt: skip


def shared_reads(geometry: Geometry, shape: TiledShape, warp: int) -> tuple[float, float]:
    """Return, per point of the reduction, load instructions of a thread and cycles-wide wavefronts of a warp.

    An element that a thread reads twice in the unrolled part of a step (a sliding window) is loaded once. Contiguous,
    aligned rows are loaded as vectors.
    """
    spatial, unrolled, known = geometry.spatial, shape.unrolled, geometry.counted
    lanes = tuple([ceil(shape.block[i] / shape.thread[i]) for i in spatial])
    inside = geometry.spatial_set
    own = tuple([shape.thread[i] if i in inside else n for i, n in enumerate(unrolled)])
    part = [n // shape.vthreads[i] if i in inside else n for i, n in enumerate(own)]
    key = "warp", lanes, warp
    if key not in known:
        covered = dict(zip(spatial, spread(list(lanes), warp), strict=True))
        known[key] = [prod([covered[i] for i in spatial if i in op.axes]) for op in geometry.operands]
    if ("own", own) not in known:
        known["own", own] = [_distinct(op, own) for op in geometry.operands]
    if "conflicts" not in known:
        known["conflicts"] = [_conflict(geometry, op) for op in geometry.operands]
    slots = wavefronts = 0.0
    for op, padding, spread_over, distinct, conflict in zip(
        geometry.operands, shape.padding, known[key], known["own", own], known["conflicts"], strict=True
    ):
        vector = read_width(op.dims, op.box(shape.block), op.box(own), padding, shape.block, part)
        loads = distinct / vector
        slots += loads
        wavefronts += max(loads, distinct * op.element_bytes * spread_over / 128 * conflict)
    points = prod([unrolled[i] for i in geometry.reduce])
    return slots / points, wavefronts / points


def _distinct(operand: Operand, own: Tile) -> int:
    """Return the number of elements that a thread reads in the unrolled part of a step."""
    distinct = 1
    for dim, extent, full in zip(operand.dims, operand.box(own), operand.shape, strict=True):
        # Of a window that no neighbour overlaps (stride as wide as the tile) only the needed elements are read.
        count = 1
        for a, _ in dim:
            count *= own[a]
        distinct *= min(extent, count, full)
    return distinct


def _conflict(geometry: Geometry, operand: Operand) -> float:
    """Return how many lanes of a warp read words of one bank: the distance between their reads, at most 4."""
    last = geometry.spatial[-1] if geometry.spatial else -1
    if operand.dims and any(a == last for a, _ in operand.dims[-1]):
        return min(4.0, float(max(1, operand.stride_of(last))))
    return 1.0
