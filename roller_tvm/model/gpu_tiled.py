"""Micro-performance model of recipe gpu.tiled: footprint, traffic and time per level, occupancy, waves.

Everything is counted for *aligned* tiles (Roller, section 3.3): a block's step loads its input tiles from
global into shared memory, its threads load operands from shared memory into registers and compute.
Throughput of a unit with several resident blocks and the latency of one block's own chain of
load - synchronise - compute are both evaluated; the slower one is the time of a step.

There are two depths of it. ``tiled_estimate`` takes a tenth of a millisecond and leads construction to the tiles that
are worth a closer look. ``staged_estimate`` ranks those. It is the model of any staged kernel, effect by effect
(``effects``); recorded schedules are compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from ..device import DeviceSpec
from .estimate import LevelTime, ProgramEstimate
from .geometry import Geometry, Operand, Tile
from .gpu import BLOCK_CYCLES, GpuRates, busiest_unit, far_traffic, instructions, overlapped, sectors, spread
from .gpu_kernel import staged_time
from .kernel import StagedKernel
from .occupancy import occupancy
from .registers import predicted_registers
from .storage import VECTOR_ALIGNMENT, alignments, read_width, storage_elements

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
    >>> from roller_tvm.expr.operators import matmul
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
