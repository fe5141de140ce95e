"""Occupancy: blocks resident on one unit, from threads, registers and shared memory."""

from __future__ import annotations

from ..device import DeviceSpec


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def occupancy(device: DeviceSpec, threads: int, registers: int, shared_bytes: int) -> tuple[int, str]:
    """Return the blocks resident on a unit, and the resource that limits them ("" if none is known).

    Parameters
    ----------
    threads : int
        Threads per block.
    registers : int
        Registers per thread.
    shared_bytes : int
        Shared memory per block.

    Returns
    -------
    (int, str)
        0 blocks if not even one fits.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> occupancy(load_device("v100"), threads=256, registers=128, shared_bytes=16384)
    (2, 'registers')
    """
    limits = device.limits
    warps = -(-threads // device.vector_width)
    bounds: list[tuple[int, str]] = []
    if limits.max_blocks_per_unit:
        bounds.append((limits.max_blocks_per_unit, "blocks per unit"))
    if limits.max_threads_per_unit:
        bounds.append((limits.max_threads_per_unit // (warps * device.vector_width), "threads"))
    if limits.registers_per_unit and registers:
        a_warp = _round_up(registers * device.vector_width, limits.register_granularity or 1)
        # Each scheduler has its part of the register file, and warps of its own.
        schedulers = limits.schedulers_per_unit or 1
        resident = limits.registers_per_unit // schedulers // a_warp * schedulers
        bounds.append((resident // warps, "registers"))
    if shared_bytes and device.has("shared"):
        block = _round_up(shared_bytes, limits.shared_granularity_bytes or 1) + (limits.shared_reserved_bytes or 0)
        bounds.append((device.level("shared").capacity_bytes // block, "shared memory"))
    return min(bounds, key=lambda b: b[0]) if bounds else (1, "")
