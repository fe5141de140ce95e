"""Micro-performance model of a GPU: footprint, traffic and time per level, occupancy, waves.

Everything is counted for *aligned* tiles (Roller, section 3.3): a block's step loads its input tiles from
global into shared memory, its threads load operands from shared memory into registers and compute.
Throughput of a unit with several resident blocks and the latency of one block's own chain of
load - synchronise - compute are both evaluated; the slower one is the time of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from ..device import DeviceSpec
from .estimate import LevelTime, ProgramEstimate
from .geometry import Geometry, Operand, Tile
from .occupancy import occupancy
from .storage import alignments, storage_elements

# Registers that addresses, loop counters and predicates take beside accumulators and operands; fitted once on
# compiled kernels of sm_80 and sm_90 (python/fit_registers.py prints the fit), not per operator.
BASE_REGISTERS = 30
# Issue slots that one fetched vector costs beside its load and store: address arithmetic; a padding guard adds
# comparisons.
FETCH_OVERHEAD = 2
GUARD_OVERHEAD = 8
# Bytes that a vector access must be aligned to.
VECTOR_ALIGNMENT = 16
# 'special' functions run on a quarter of the lanes, division is a handful of instructions.
INSTRUCTIONS = {"fma": 1, "mul": 1, "add": 1, "cmp": 1, "cast": 1, "div": 8, "special": 4}


@dataclass(frozen=True)
class GpuRates:
    """A device's numbers per unit and clock cycle."""

    cycle: float  # seconds
    lanes: float  # FMA lanes per unit, for the dtype
    issue: float  # warp instructions per cycle and unit
    shared: float  # bytes per cycle and unit
    l2: float
    dram: float
    dram_latency: float  # cycles
    shared_latency: float
    sector: int  # bytes
    line: int

    @classmethod
    def of(cls, device: DeviceSpec, dtype: str) -> GpuRates:
        return _rates(device, dtype)


@lru_cache(maxsize=64)
def _rates(device: DeviceSpec, dtype: str) -> GpuRates:
    hertz = device.clock_ghz * 1e9
    per_unit = 1 / (device.units * device.clock_ghz)
    dram, shared = device.far, device.level("shared")
    l2 = device.level("l2") if device.has("l2") else dram
    return GpuRates(
        1 / hertz,
        device.peak(dtype) * per_unit / 2,
        float(device.limits.schedulers_per_unit or 1),
        shared.bandwidth_gbps * per_unit, l2.bandwidth_gbps * per_unit, dram.bandwidth_gbps * per_unit,
        dram.latency_ns * device.clock_ghz, shared.latency_ns * device.clock_ghz,
        dram.transaction_bytes, l2.line_bytes,
    )  # fmt: skip


def instructions(geometry: Geometry) -> float:
    """Issue slots of the arithmetic of one iteration point."""
    return sum(n * INSTRUCTIONS[kind] for kind, n in geometry.stage.ops) or 1.0


def sectors(operand: Operand, box: list[int], sector: int) -> int:
    """Bytes that memory moves for a box: its runs, each rounded up to whole sectors."""
    run = operand.run(box)
    total = prod(box)
    run_bytes = run * operand.element_bytes
    moved = ceil(run_bytes / sector) * sector
    row_bytes = operand.shape[-1] * operand.element_bytes if operand.shape else sector
    if row_bytes % sector and run < prod(operand.shape):
        moved += sector / 2  # runs start anywhere in a sector
    return int(total / run * moved)


def spread(extents: list[int], count: int) -> list[int]:
    """How many different coordinates per axis `count` consecutive tiles touch (last axis fastest).

    Examples
    --------
    >>> spread([4, 8], 16)
    [2, 8]
    """
    result = [1] * len(extents)
    for i in range(len(extents) - 1, -1, -1):
        result[i] = min(extents[i], max(1, count))
        count = ceil(count / extents[i])
    return result


def far_traffic(geometry: Geometry, device: DeviceSpec, block: Tile, resident: int, steps_bytes: list[int]) -> float:
    """Bytes that come from the farthest level: what the blocks of a wave share is loaded once.

    `steps_bytes` are the bytes of each operand that one block loads over its whole life.
    """
    spatial = geometry.spatial
    grid = [ceil(geometry.extents[i] / block[i]) for i in spatial]
    blocks = prod(grid)
    resident = max(1, min(resident, blocks))
    waves = blocks / resident
    covered = spread(grid, resident)
    l2 = device.level("l2").capacity_bytes if device.has("l2") else 0
    total = 0.0
    for op, per_block in zip(geometry.operands, steps_bytes, strict=True):
        different = prod(covered[n] for n, i in enumerate(spatial) if i in op.axes)
        traffic = waves * different * per_block
        once = max(op.source_bytes, 1)
        if op.source_bytes <= l2 // 2:
            traffic = min(traffic, once * 1.0)
        total += max(traffic, min(once, per_block * prod(grid[n] for n, i in enumerate(spatial) if i in op.axes)))
    return total


def registers_of(geometry: Geometry, thread: Tile, vectors: Mapping[str, int]) -> int:
    """Predicted registers per thread of a fully unrolled register tile."""
    accumulators = prod(thread[i] for i in geometry.spatial)
    words = max(1, geometry.output_bytes // 4)
    fragments = sum(
        prod(thread[i] for i in op.axes if i in set(geometry.spatial)) * max(1, op.element_bytes // 4)
        for op in geometry.operands
    )
    return BASE_REGISTERS + accumulators * words + min(fragments, 64) + 2 * max(vectors.values(), default=1)


@dataclass(frozen=True)
class TiledShape:
    """A candidate of recipe gpu.tiled: extents per axis position."""

    block: Tile  # spatial: the block's tile; reduction: one step
    thread: Tile  # a thread's register tile; reduction: 1
    vthreads: Tile  # virtual threads per axis
    vectors: tuple[int, ...]  # elements a fetch instruction moves, per operand
    padding: tuple[int, ...]  # per operand, elements


def shared_bytes_of(geometry: Geometry, shape: TiledShape) -> int:
    """Shared memory of a block: exactly what TVM allocates for the staged operands."""
    total = 0
    for op, padding in zip(geometry.operands, shape.padding, strict=True):
        box = op.box(shape.block)
        total += storage_elements(box, alignments(box, padding, vector_quantum(op, shape.vectors))) * op.element_bytes
    return total


def vector_quantum(operand: Operand, vectors: tuple[int, ...]) -> int:
    """Elements that a staged buffer must be a multiple of, so that vectors into the next one are aligned."""
    return max(1, VECTOR_ALIGNMENT // operand.element_bytes) if max(vectors, default=1) > 1 else 1


def tiled_estimate(geometry: Geometry, device: DeviceSpec, shape: TiledShape, threads: int) -> ProgramEstimate | None:
    """Predicted time of a staged contraction; None if not even one block fits on a unit.

    Parameters
    ----------
    geometry : Geometry
    device : DeviceSpec
    shape : TiledShape
    threads : int
        Per block.
    """
    rates = GpuRates.of(device, geometry.stage.dtype)
    block, thread = shape.block, shape.thread
    extents, spatial, reduce = geometry.extents, geometry.spatial, geometry.reduce
    warp = device.vector_width
    warps = ceil(threads / warp)

    shared_bytes = shared_bytes_of(geometry, shape)
    registers = registers_of(geometry, thread, {str(i): v for i, v in enumerate(shape.vectors)})
    resident, limit = occupancy(device, threads, registers, shared_bytes)
    if resident == 0:
        return None
    grid = [ceil(extents[i] / block[i]) for i in spatial]
    blocks = prod(grid)
    resident = min(resident, ceil(blocks / device.units))
    steps = prod(ceil(extents[i] / block[i]) for i in reduce)

    # One block, one step.
    points = prod(thread[i] for i in spatial) * prod(block[i] for i in reduce)  # per thread
    arithmetic = instructions(geometry)
    compute = points * arithmetic * threads / rates.lanes
    load_slots, wavefronts = _shared_reads(geometry, shape, warp, rates)
    inner = prod(block[i] for i in reduce)
    shared_read = wavefronts * inner * warps * 128 / rates.shared
    boxes = [op.box(block) for op in geometry.operands]
    bytes_step = [sectors(op, box, rates.sector) for op, box in zip(geometry.operands, boxes, strict=True)]
    fetch_slots = sum(
        ceil(prod(box) / (v * threads)) * (2 + FETCH_OVERHEAD + GUARD_OVERHEAD * op.guarded + op.arithmetic * v)
        for op, box, v in zip(geometry.operands, boxes, shape.vectors, strict=True)
    ) * warps
    issue = (points * arithmetic + load_slots * inner) * warps / rates.issue + fetch_slots / rates.issue
    shared_write = sum(prod(box) * op.element_bytes for op, box in zip(geometry.operands, boxes, strict=True)) / rates.shared
    global_load = sum(bytes_step)

    # The whole grid: how many blocks the busiest unit runs, and how many are there at a time.
    full_waves, rest = divmod(blocks, device.units * resident)
    busiest = full_waves * resident + ceil(rest / device.units)
    waves = full_waves + (rest > 0)
    far = far_traffic(geometry, device, block, device.units * resident, [b * steps for b in bytes_step])
    far_step = far / (blocks * steps)  # bytes per block and step that miss L2
    l2_time = global_load / rates.l2
    dram_time = far_step / rates.dram
    shared_time = shared_read + shared_write
    throughput = max(compute, issue, shared_time, l2_time, dram_time)
    sync = 2 * rates.shared_latency
    chain = rates.dram_latency + sync + max(l2_time / resident, dram_time / resident) + max(compute, issue, shared_read) / min(
        1.0, warps / rates.issue
    )
    per_step = max(throughput, chain / resident)
    tail = min(full_waves, 1) * 0.0
    cycles = busiest * steps * per_step + tail

    # Store and epilogue.
    outputs = prod(extents[i] for i in spatial)
    out_run = block[spatial[-1]] * geometry.output_bytes if spatial else rates.sector
    waste = ceil(out_run / rates.sector) * rates.sector / out_run if spatial and block[spatial[-1]] < extents[spatial[-1]] else 1.0
    store_bytes = outputs * geometry.output_bytes * waste + geometry.epilogue_bytes
    store = store_bytes / (rates.dram * device.units) + rates.dram_latency
    seconds = (cycles + store) * rates.cycle + device.launch_overhead_us * 1e-6

    terms = {"compute": compute, "issue": issue, "shared": shared_time, "l2": l2_time, "dram": dram_time}
    bound = max(terms, key=lambda k: terms[k])
    if chain / resident > throughput:
        bound = "latency"
    total_steps = blocks * steps
    device_cycles = total_steps / device.units * rates.cycle
    levels = (
        LevelTime("dram", far + store_bytes, (far + store_bytes) / (device.far.bandwidth_gbps * 1e9)),
        LevelTime("l2", global_load * total_steps, l2_time * device_cycles),
        LevelTime("shared", (wavefronts * inner * warps * 128) * total_steps, shared_time * device_cycles),
    )
    return ProgramEstimate(
        seconds, compute * device_cycles, levels, bound, geometry.stage.flops + geometry.epilogue_flops * outputs,
        blocks, waves, resident, limit, threads, registers, shared_bytes,
        blocks / (busiest * device.units),
    )  # fmt: skip


def _shared_reads(geometry: Geometry, shape: TiledShape, warp: int, rates: GpuRates) -> tuple[float, float]:
    """Per point of the reduction: load instructions a thread issues, and 128-byte wavefronts a warp takes."""
    spatial = geometry.spatial
    lanes = [ceil(shape.block[i] / shape.thread[i]) for i in spatial]
    covered = dict(zip(spatial, spread(lanes, warp), strict=True))
    last = spatial[-1] if spatial else -1
    slots = wavefronts = 0.0
    for op in geometry.operands:
        mine = [i for i in spatial if i in op.axes]
        per_thread = prod(shape.thread[i] for i in mine)
        vector = 1
        if mine and op.dims and op.dims[-1] and len(op.dims[-1]) == 1:
            axis, coefficient = op.dims[-1][0]
            if coefficient == 1 and axis in mine:
                vector = min(4, max(1, shape.thread[axis] // shape.vthreads[axis]))
                while shape.thread[axis] % vector:
                    vector -= 1
        loads = per_thread / vector
        unique = prod(covered[i] * shape.thread[i] for i in mine) * op.element_bytes
        conflict = 1.0
        if last in mine:
            stride = op.stride_of(last) if op.dims[-1] and any(a == last for a, _ in op.dims[-1]) else 0
            conflict = min(4.0, float(max(1, stride)))
        slots += loads
        wavefronts += max(loads, unique / 128 * conflict)
    return slots, wavefronts


def direct_estimate(geometry: Geometry, device: DeviceSpec, block: Tile, thread: Tile, threads: int,
                    vector: int) -> ProgramEstimate | None:
    """Predicted time of recipe gpu.direct: every thread computes its outputs from global memory."""
    rates = GpuRates.of(device, geometry.stage.dtype)
    extents, spatial = geometry.extents, geometry.spatial
    warps = ceil(threads / device.vector_width)
    outputs_thread = prod(thread[i] for i in spatial)
    points_thread = outputs_thread * prod(extents[i] for i in geometry.reduce)
    registers = min(BASE_REGISTERS + outputs_thread + 8 * vector, device.limits.max_registers_per_thread or 255)
    resident, limit = occupancy(device, threads, registers, 0)
    if resident == 0:
        return None
    blocks = geometry.tiles(block, spatial)
    full, rest = divmod(blocks, device.units * resident)
    busiest = full * resident + ceil(rest / device.units)
    whole = tuple(extents[i] if i in geometry.reduce else block[i] for i in range(len(extents)))
    boxes = [op.box(whole) for op in geometry.operands]
    per_block = [sectors(op, box, rates.sector) for op, box in zip(geometry.operands, boxes, strict=True)]
    far = far_traffic(geometry, device, whole, device.units * resident, per_block)
    # Loads: one instruction per operand element that the thread does not share with its own neighbours.
    own = tuple(extents[i] if i in geometry.reduce else thread[i] for i in range(len(extents)))
    loads = sum(op.elements(own) / (vector if op.dims and op.dims[-1] else 1) for op in geometry.operands)
    guards = sum(op.elements(own) * GUARD_OVERHEAD * op.guarded for op in geometry.operands)
    slots = points_thread * instructions(geometry) + loads * (1 + FETCH_OVERHEAD) + guards
    slots += outputs_thread * (geometry.epilogue_flops + 1 / vector)
    outputs = prod(extents[i] for i in spatial)
    store_bytes = outputs * geometry.output_bytes + geometry.epilogue_bytes
    dram = (far + store_bytes) / blocks / rates.dram
    l2 = (sum(per_block) + store_bytes / blocks) / rates.l2
    # L1 serves every load instruction: a warp's request moves at least the sectors that it touches.
    l1 = loads * warps * 128 * _scatter(geometry, thread, spatial) / rates.shared
    compute = points_thread * instructions(geometry) * threads / rates.lanes
    issue = slots * warps / rates.issue
    throughput = max(compute, issue, dram, l2, l1)
    in_flight = max(1.0, min(loads, 8.0))
    chain = rates.dram_latency * max(1.0, loads / in_flight) + issue * rates.issue / max(1, min(warps, rates.issue))
    per_block_cycles = max(throughput, chain / resident)
    seconds = (busiest * per_block_cycles + rates.dram_latency) * rates.cycle + device.launch_overhead_us * 1e-6
    terms = {"compute": compute, "issue": issue, "dram": dram, "l2": l2, "shared": l1}
    bound = max(terms, key=lambda k: terms[k]) if chain / resident <= throughput else "latency"
    scale = blocks / device.units * rates.cycle
    levels = (
        LevelTime("dram", far + store_bytes, dram * scale),
        LevelTime("l2", (sum(per_block)) * blocks + store_bytes, l2 * scale),
    )
    return ProgramEstimate(
        seconds, compute * scale, levels, bound, geometry.stage.flops + geometry.epilogue_flops * outputs, blocks,
        full + (rest > 0), resident, limit, threads, registers, 0, blocks / max(1, busiest * device.units),
    )  # fmt: skip


def _scatter(geometry: Geometry, thread: Tile, spatial: tuple[int, ...]) -> float:
    """How many times the 128 bytes of an ideal request a warp's load moves: the stride between lanes."""
    if not spatial:
        return 1.0
    last, worst = spatial[-1], 1.0
    for op in geometry.operands:
        step = op.stride_of(last) * max(1, thread[last])
        worst = max(worst, min(8.0, step * op.element_bytes / 4)) if step else worst
    return worst


def reduce_estimate(geometry: Geometry, device: DeviceSpec, rows: int, lanes: int, vector: int) -> ProgramEstimate | None:
    """Predicted time of recipe gpu.reduce: `lanes` threads share a reduction, a block has `rows` of them."""
    rates = GpuRates.of(device, geometry.stage.dtype)
    threads = rows * lanes
    registers = BASE_REGISTERS + 4 * vector
    resident, limit = occupancy(device, threads, registers, threads * geometry.output_bytes)
    if resident == 0:
        return None
    outputs = prod(geometry.extents[i] for i in geometry.spatial)
    length = prod(geometry.extents[i] for i in geometry.reduce)
    blocks = ceil(outputs / rows)
    full, rest = divmod(blocks, device.units * resident)
    busiest = full * resident + ceil(rest / device.units)
    items = ceil(length / lanes)
    warps = ceil(threads / device.vector_width)
    far = sum(op.source_bytes for op in geometry.operands) + outputs * geometry.output_bytes + geometry.epilogue_bytes
    waste = _reduce_waste(geometry, lanes, rates.sector)
    dram = far * waste / blocks / rates.dram
    issue = items * (instructions(geometry) + 1 + FETCH_OVERHEAD) * warps / rates.issue
    tree = 5 * rates.shared_latency
    chain = rates.dram_latency * max(1.0, items / 8) + tree
    per_block = max(issue, dram, chain / resident)
    seconds = (busiest * per_block + rates.dram_latency) * rates.cycle + device.launch_overhead_us * 1e-6
    terms = {"issue": issue, "dram": dram, "latency": chain / resident}
    scale = blocks / device.units * rates.cycle
    return ProgramEstimate(
        seconds, items * threads * instructions(geometry) / rates.lanes * scale,
        (LevelTime("dram", far * waste, dram * scale),), max(terms, key=lambda k: terms[k]),
        geometry.stage.flops + geometry.epilogue_flops * outputs, blocks, full + (rest > 0), resident, limit, threads,
        registers, threads * geometry.output_bytes if lanes > device.vector_width else 0, blocks / max(1, busiest * device.units),
    )  # fmt: skip


def _reduce_waste(geometry: Geometry, lanes: int, sector: int) -> float:
    """Bytes moved per byte used when `lanes` neighbours walk along the innermost reduction axis."""
    if not geometry.reduce:
        return 1.0
    last, worst = geometry.reduce[-1], 1.0
    for op in geometry.operands:
        step = op.stride_of(last)
        if step > 1:
            worst = max(worst, min(sector, step * op.element_bytes) / op.element_bytes)
        elif step == 1:
            run = min(lanes, geometry.extents[last]) * op.element_bytes
            worst = max(worst, ceil(run / sector) * sector / run)
    return worst
