"""Micro-performance models of the GPU recipes that stage nothing: gpu.direct and gpu.reduce."""

from __future__ import annotations

from math import ceil, prod

from ..device import DeviceSpec
from .estimate import LevelTime, ProgramEstimate
from .geometry import Geometry, Operand, Tile
from .gpu import (
    BLOCK_CYCLES,
    IN_FLIGHT,
    GpuRates,
    busiest_unit,
    far_traffic,
    in_waves,
    instructions,
    overlapped,
    sectors,
    started,
)
from .occupancy import occupancy
from .registers import register_cap

# Issue slots of an output's own address, and of one load's; a padding guard's share of comparisons per load once
# the window is unrolled.
OUTPUT_OVERHEAD = 20
LOAD_OVERHEAD = 1
GUARD_OVERHEAD = 5
#: Iterations of a reduction that gpu.direct unrolls.
UNROLL_MOST = 64
# Registers of a thread (compiled for sm_75 to sm_90): without a reduction; with one that is unrolled, loading all of
# it ahead, guards and all; with a loop.
POINTWISE, UNROLLED, LOOP = 10, 14, 26
PER_GUARD = 1.8
# Registers of a special function (exp, erf) beside its argument, one element at a time (compiled likewise).
SPECIAL = 8
# Registers of a reduction shared by threads: the compiler unrolls a thread's rounds and loads ahead.
STREAMS, PER_ROUND = 20, 1.7
# Threads that share a reduction meet in a tree of shuffles; a step is a shuffle and an operation.
TREE_SLOTS = 2


def direct_estimate(geometry: Geometry, device: DeviceSpec, block: Tile, thread: Tile, threads: int,
                    items: int, vector: int) -> ProgramEstimate | None:
    """Return the predicted time of recipe gpu.direct, or None if not even one block fits on a unit.

    Every thread computes its outputs from global memory.

    Parameters
    ----------
    block, thread : Tile
        Boxes around the outputs of a block, and around those of one item of a thread.
    threads, items, vector : int
        A block computes ``threads * items * vector`` consecutive outputs.
    """
    rates = GpuRates.of(device, geometry.stage.dtype)
    extents, spatial = geometry.extents, geometry.spatial
    warps = ceil(threads / device.vector_width)
    reduction = prod(extents[i] for i in geometry.reduce)
    arithmetic = instructions(geometry)
    registers = direct_registers(geometry, thread, items, vector)
    registers = min(registers, register_cap(device, threads) or registers)
    resident, limit = occupancy(device, threads, registers, 0)
    if resident == 0:
        return None
    outputs = prod(extents[i] for i in spatial)
    blocks = ceil(outputs / (threads * items * vector))
    resident = min(resident, ceil(blocks / device.units))
    busiest, waves = busiest_unit(device, blocks, resident)
    whole = tuple(extents[i] if i in geometry.reduce else block[i] for i in range(len(extents)))
    # Consecutive outputs go on in the next row: there are fewer blocks than boxes of their length that cover each row.
    share = min(1.0, blocks / geometry.tiles(block, spatial))
    per_box = [
        int(sectors(op, op.box(whole), rates.sector) * _rows_read(op, whole) * share) for op in geometry.operands
    ]
    far = far_traffic(geometry, device, whole, device.units * resident, per_box)
    again = [_fetched_again(geometry, op, device, rates, threads * resident) for op in geometry.operands]
    near = sum(n * times for n, times in zip(per_box, again, strict=True)) * geometry.tiles(block, spatial) / blocks

    # One item of a thread: `vector` outputs.
    own = tuple(extents[i] if i in geometry.reduce else thread[i] for i in range(len(extents)))
    loads = slots = wavefronts = 0.0
    for op in geometry.operands:
        count = prod(op.box(own))
        wide = vector if vector > 1 and _contiguous(geometry, op) else 1
        loads += count / wide
        slots += count / wide * (1 + LOAD_OVERHEAD) + count * (GUARD_OVERHEAD * op.guarded + op.arithmetic)
        wavefronts += count / wide * _wavefronts(geometry, op, thread, wide, rates, threads / device.vector_width)
    slots += vector * (reduction * arithmetic + geometry.epilogue_flops) + OUTPUT_OVERHEAD
    compute = items * vector * reduction * arithmetic * threads / rates.lanes
    issue = items * slots * warps / rates.issue
    l1 = items * (wavefronts + vector) * warps * rates.line / rates.shared
    store_bytes = outputs * geometry.output_bytes + geometry.epilogue_bytes
    dram = (far + store_bytes) / blocks / rates.dram
    l2 = (near + store_bytes / blocks) / rates.l2
    rounds = max(1.0, items * loads / min(max(1.0, items * loads), float(IN_FLIGHT)))
    chain = rates.dram_latency * rounds + issue * rates.issue / min(warps, rates.issue)
    terms = {"compute": compute, "issue": issue, "dram": dram, "l2": l2, "shared": l1}
    seconds, bound = in_waves(device, rates, terms, chain, resident, busiest, blocks)
    scale = blocks / device.units * rates.cycle
    levels = (
        LevelTime(device.far.name, far + store_bytes, dram * scale),
        *([LevelTime("l2", near * blocks + store_bytes, l2 * scale)] if device.has("l2") else []),
    )
    return ProgramEstimate(
        seconds, compute * scale, levels, bound, geometry.stage.flops + geometry.epilogue_flops * outputs, blocks,
        waves, resident, limit, threads, registers, 0, blocks / max(1, busiest * device.units),
    )  # fmt: skip


def direct_registers(geometry: Geometry, thread: Tile, items: int, vector: int) -> int:
    """Return the registers of a thread of recipe gpu.direct (see ``direct_estimate``)."""
    if not geometry.reduce:
        ahead = vector * items * sum(1.0 + PER_GUARD * op.guarded for op in geometry.operands)
        inside = any(op.functions for op in geometry.operands)
        special = inside or geometry.stage.functions or geometry.epilogue_functions
        return POINTWISE + vector + ceil(ahead) + (SPECIAL if special else 0)
    if prod(geometry.extents[i] for i in geometry.reduce) > UNROLL_MOST:
        return LOOP + vector * (1 + len(geometry.operands))
    own = tuple(e if i in geometry.reduce else thread[i] for i, e in enumerate(geometry.extents))
    loads = [op.elements(own) * (1 + PER_GUARD * op.guarded) for op in geometry.operands]
    return max(LOOP, UNROLLED + vector + ceil(sum(loads)))


def _rows_read(operand: Operand, tile: Tile) -> float:
    """Return the share of a box's rows that are read: strides wider than the window skip some."""
    share = 1.0
    for dim, extent in list(zip(operand.dims, operand.box(tile), strict=True))[:-1]:
        if dim:
            share *= min(1.0, prod(tile[a] for a, _ in dim) / extent)
    return share


def _contiguous(geometry: Geometry, operand: Operand) -> bool:
    """Return whether neighbouring outputs read neighbouring elements."""
    return bool(geometry.spatial) and operand.stride_of(geometry.spatial[-1]) == 1 and not operand.guarded


def _fetched_again(geometry: Geometry, operand: Operand, device: DeviceSpec, rates: GpuRates, threads: int) -> float:
    """Return how often a sector is loaded from L2 if one thread reads it, element by element, during its reduction.

    Once, while the unit's cache has room for the lines of all its threads; once per element, if the lines take twice
    that room.
    """
    along = geometry.reduce[-1] if geometry.reduce else None
    if along is None or not geometry.spatial or operand.stride_of(along) != 1:
        return 1.0
    if operand.stride_of(geometry.spatial[-1]) * operand.element_bytes < rates.sector:
        return 1.0
    cache = device.limits.global_cache_bytes
    lost = min(1.0, max(0.0, threads * rates.line / cache - 1)) if cache else 0.0
    elements = min(rates.sector // operand.element_bytes, prod(geometry.extents[i] for i in geometry.reduce))
    return 1 + (elements - 1) * lost


def _wavefronts(
    geometry: Geometry, operand: Operand, thread: Tile, wide: int, rates: GpuRates, warp_share: float
) -> float:  # fmt: skip
    """Return the cycles of one load instruction of a warp at L1: lines touched, or one if all lanes read the same.

    ``warp_share`` is the number of threads in a block, in warps.
    """
    if not geometry.spatial:
        return 1.0
    step = operand.stride_of(geometry.spatial[-1])
    if step == 0:
        return float(wide)
    lines = min(float(rates.line // rates.sector * 4), wide * step * max(1, thread[geometry.spatial[-1]] // wide)
                * operand.element_bytes / 4) * min(1.0, warp_share)
    windowed = any(len(dim) > 1 for dim in operand.dims)  # starts anywhere in a line
    return max(1.0, lines) + (0.5 if windowed else 0.0)


def reduce_shared_bytes(geometry: Geometry, device: DeviceSpec, rows: int, lanes: int) -> int:
    """Return the shared bytes of a reduction over threads: 0 within a warp, else a partial per warp and a result.

    Follows the allocation of TVM's cross-thread reduction; checked against compiled kernels for 11 (lanes, rows).
    """
    warp = device.vector_width
    return 0 if lanes <= warp else geometry.accumulator_bytes * rows * (1 + lanes // warp)


def reduce_estimate(geometry: Geometry, device: DeviceSpec, rows: int, lanes: int) -> ProgramEstimate | None:
    """Return the predicted time of recipe gpu.reduce: `lanes` threads a row, `rows` rows a block; None if none fits."""
    rates = GpuRates.of(device, geometry.stage.dtype)
    threads = rows * lanes
    length = prod(geometry.extents[i] for i in geometry.reduce)
    rounds = ceil(length / lanes)
    registers = ceil(STREAMS + PER_ROUND * min(rounds, UNROLL_MOST))
    registers = min(registers, register_cap(device, threads) or registers)
    shared_bytes = reduce_shared_bytes(geometry, device, rows, lanes)
    resident, limit = occupancy(device, threads, registers, shared_bytes)
    if resident == 0:
        return None
    outputs = prod(geometry.extents[i] for i in geometry.spatial)
    blocks = ceil(outputs / rows)
    resident = min(resident, ceil(blocks / device.units))
    busiest, waves = busiest_unit(device, blocks, resident)
    warps = ceil(threads / device.vector_width)
    store_bytes = outputs * geometry.output_bytes + geometry.epilogue_bytes
    waste = _reduce_waste(geometry, lanes, rates.sector)
    far = sum(op.source_bytes for op in geometry.operands) * waste + store_bytes
    # Operands that do not depend on the row are read by all of a block's rows from the nearest cache.
    near = waste * length * sum(
        op.element_bytes * (outputs if op.axes & geometry.spatial_set else blocks) for op in geometry.operands
    )
    dram, l2 = far / blocks / rates.dram, near / blocks / rates.l2
    doublings = lanes.bit_length() - 1
    loads = len(geometry.operands) * (1 + LOAD_OVERHEAD)
    issue = (rounds * (instructions(geometry) + loads) + TREE_SLOTS * doublings) * warps / rates.issue
    chain = rates.dram_latency * max(1.0, rounds / IN_FLIGHT) + doublings * rates.shared_latency
    per_block = max(overlapped([issue, dram, l2]), chain / resident) + BLOCK_CYCLES
    busy, starts = (busiest * per_block + rates.dram_latency) * rates.cycle, started(device, blocks)
    seconds = max(busy, starts) + device.launch_overhead_us * 1e-6
    terms = {"issue": issue, device.far.name: dram, "l2": l2, "latency": chain / resident}
    bound = max(terms, key=lambda k: terms[k]) if busy > starts else "blocks"
    scale = blocks / device.units * rates.cycle
    return ProgramEstimate(
        seconds, rounds * threads * instructions(geometry) / rates.lanes * scale,
        (LevelTime(device.far.name, far, dram * scale),), bound,
        geometry.stage.flops + geometry.epilogue_flops * outputs, blocks, waves, resident, limit, threads,
        registers, shared_bytes, blocks / max(1, busiest * device.units),
    )  # fmt: skip


def _reduce_waste(geometry: Geometry, lanes: int, sector: int) -> float:
    """Return the bytes moved per byte used if `lanes` neighbours walk along the innermost reduction axis."""
    last, worst = geometry.reduce[-1], 1.0
    for op in geometry.operands:
        step = op.stride_of(last)
        if step > 1:
            worst = max(worst, min(sector, step * op.element_bytes) / op.element_bytes)
        elif step == 1:
            run = min(lanes, geometry.extents[last]) * op.element_bytes
            worst = max(worst, ceil(run / sector) * sector / run)
    return worst
