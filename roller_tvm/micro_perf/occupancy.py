"""Occupancy: blocks resident on one unit, from threads, registers and shared memory."""

from __future__ import annotations

import numpy as np

from ..device import DeviceSpec
from .gpu_nest import Array, ceil_div, round_up

#: Resources that limit the blocks of a unit; "" if none is known.
RESOURCES = ("", "blocks per unit", "threads", "registers", "shared memory")


def resident_blocks(device: DeviceSpec, threads: Array, registers: Array, shared_bytes: Array) -> tuple[Array, Array]:
    """Return the blocks resident on a unit, and which of ``RESOURCES`` limits them, for N launches.

    Parameters
    ----------
    threads : array
        Threads per block.
    registers : array
        Registers per thread.
    shared_bytes : array
        Shared memory per block.

    Returns
    -------
    (array, array)
        0 blocks if not even one fits.
    """
    limits = device.limits
    warps = ceil_div(threads, device.vector_width)
    most = np.iinfo(np.int64).max
    bounds = np.full((len(RESOURCES), *threads.shape), most)
    _, by_blocks, by_threads, by_registers, by_shared = bounds
    if limits.max_blocks_per_unit:
        by_blocks[:] = limits.max_blocks_per_unit
    if limits.max_threads_per_unit:
        by_threads[:] = limits.max_threads_per_unit // (warps * device.vector_width)
    if limits.registers_per_unit:
        a_warp = round_up(registers * device.vector_width, limits.register_granularity or 1)
        # Each scheduler has its part of the register file, and warps of its own.
        schedulers = limits.schedulers_per_unit or 1
        there = limits.registers_per_unit // schedulers // np.maximum(1, a_warp) * schedulers
        np.copyto(by_registers, there // warps, where=registers > 0)
    if device.has("shared"):
        block = round_up(shared_bytes, limits.shared_granularity_bytes or 1) + (limits.shared_reserved_bytes or 0)
        there = device.level("shared").capacity_bytes // np.maximum(1, block)
        np.copyto(by_shared, there, where=shared_bytes > 0)
    limit = bounds.argmin(axis=0)
    return np.where(limit == 0, 1, np.minimum.reduce(bounds)), limit


def occupancy(device: DeviceSpec, threads: int, registers: int, shared_bytes: int) -> tuple[int, str]:
    """Return ``resident_blocks`` of one launch, with the name of the resource.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> occupancy(load_device("v100"), threads=256, registers=128, shared_bytes=16384)
    (2, 'registers')
    """
    resident, limit = resident_blocks(device, *(np.array([n]) for n in (threads, registers, shared_bytes)))
    return int(resident[0]), RESOURCES[int(limit[0])]
