"""Micro-performance model of recipe gpu.unrolled: a product with constant matrices, all of it in one thread."""

from __future__ import annotations

from math import ceil, prod

from ..device import DeviceSpec
from .estimate import LevelTime, ProgramEstimate
from .geometry import Geometry, Tile
from .gpu import GpuRates, busiest_unit, far_traffic, in_waves, instructions, sectors
from .gpu_direct import GUARD_OVERHEAD, LOAD_OVERHEAD, LOOP, OUTPUT_OVERHEAD
from .occupancy import occupancy


def own_tile(geometry: Geometry) -> Tile:
    """Return the tile of one thread: the axes of constant operands and all reductions whole, one point of the others.

    Examples
    --------
    >>> from roller_tvm.expr.operators import matmul
    >>> own_tile(Geometry.of(matmul(m=8, n=8, k=16), "matmul"))
    (1, 1, 16)
    """
    whole = set(geometry.reduce) | {a for op in geometry.operands if op.computed for a in op.axes}
    return tuple(e if i in whole else 1 for i, e in enumerate(geometry.extents))


def unrolled_registers(geometry: Geometry) -> int:
    """Return the registers of a thread: its inputs, its outputs, addresses."""
    own = own_tile(geometry)
    held = sum(op.elements(own) for op in geometry.operands if not op.computed)
    return LOOP + held + prod(own[i] for i in geometry.spatial)


def unrolled_estimate(geometry: Geometry, device: DeviceSpec, block: Tile, threads: int) -> ProgramEstimate | None:
    """Return the predicted time of recipe gpu.unrolled, or None if not even one block fits on a unit.

    Zeros of the constant matrices are unknown: none is skipped.

    Parameters
    ----------
    block : Tile
        Box around the outputs of a block's threads.
    threads : int
        Threads per block.
    """
    rates = GpuRates.of(device, geometry.stage.dtype)
    own = own_tile(geometry)
    registers = unrolled_registers(geometry)
    resident, limit = occupancy(device, threads, registers, 0)
    if resident == 0:
        return None
    stored = prod(own[i] for i in geometry.spatial)
    outputs = prod(geometry.extents[i] for i in geometry.spatial)
    blocks = ceil(outputs // stored / threads)
    resident = min(resident, ceil(blocks / device.units))
    busiest, waves = busiest_unit(device, blocks, resident)
    read = [op for op in geometry.operands if not op.computed]
    per_block = [0 if op.computed else sectors(op, op.box(block), rates.sector) for op in geometry.operands]
    far = far_traffic(geometry, device, block, device.units * resident, per_block)
    near = float(sum(per_block))

    warps = ceil(threads / device.vector_width)
    points = prod(own)
    loads = sum(op.elements(own) for op in read)
    slots = points * instructions(geometry) + stored * (1 + geometry.epilogue_flops) + OUTPUT_OVERHEAD
    slots += sum(op.elements(own) * (1 + LOAD_OVERHEAD + GUARD_OVERHEAD * op.guarded + op.arithmetic) for op in read)
    compute = points * instructions(geometry) * threads / rates.lanes
    issue = slots * warps / rates.issue
    l1 = (loads + stored) * warps * rates.line / rates.shared
    store_bytes = outputs * geometry.output_bytes + geometry.epilogue_bytes
    dram = (far + store_bytes) / blocks / rates.dram
    l2 = (near + store_bytes / blocks) / rates.l2
    chain = rates.dram_latency + issue * rates.issue / min(warps, rates.issue)
    terms = {"compute": compute, "issue": issue, "dram": dram, "l2": l2, "shared": l1}
    seconds, bound = in_waves(device, rates, terms, chain, resident, busiest, blocks)
    scale = blocks / device.units * rates.cycle
    levels = (
        LevelTime(device.far.name, far + store_bytes, dram * scale),
        *([LevelTime("l2", near * blocks + store_bytes, l2 * scale)] if device.has("l2") else []),
    )
    return ProgramEstimate(
        seconds, compute * scale, levels, bound,
        geometry.stage.flops + geometry.epilogue_flops * outputs, blocks, waves, resident, limit, threads,
        registers, 0, blocks / max(1, busiest * device.units),
    )  # fmt: skip
