"""Registers of a thread, resident blocks of a unit, spilled accumulators, and the traffic of local memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from ..device import DeviceSpec
from .effects import Effects
from .geometry import Geometry, Tile
from .gpu import GpuRates
from .kernel import StagedKernel
from .occupancy import occupancy
from .registers import ADDRESSES, PER_PREFETCHED, PREFETCHED_MOST, accumulators, fragments, register_cap

# Registers that a compiler takes at least, and as a multiple of the need: it uses some to run ahead.
REGISTERS_LEAST, REGISTERS_TAKEN = 32, 1.1


@dataclass(frozen=True)
class Residency:
    """Registers of a thread and blocks of a unit.

    Parameters
    ----------
    resident, limit : int, str
        Blocks on a unit at a time, and the resource that limits them.
    needed : int
        Registers that a thread needs: accumulators, the smaller fragment, addresses, values read ahead.
    spilled : int
        Accumulators without a register.
    """

    resident: int
    limit: str
    needed: int
    spilled: int


# Registers of a fetched element (address, value, guard): the compiler prepares several.
PER_FETCHED_ELEMENT, FETCHED_MOST = 0.5, 32


def registers_needed(
    geometry: Geometry, device: DeviceSpec, thread: Tile, threads: int, body: Tile, fetched: int, rolled: bool = False
) -> tuple[int, int]:
    """Return the registers that a thread needs so that none spills, and how many it can have (see ``residency``).

    Parameters
    ----------
    thread : Tile
        Outputs of a thread.
    threads : int
        Threads of a block.
    fetched : int
        Elements that a thread fetches in a step.
    """
    held = 0 if rolled else accumulators(geometry, thread)
    # Operands of the unrolled body that are read ahead, and elements on their way into shared memory.
    ahead = min(PREFETCHED_MOST, sum(op.elements(body) for op in geometry.operands))
    needed = held + min(fragments(geometry, thread), default=0) + 1 + ADDRESSES
    needed += int(PER_PREFETCHED * ahead) + int(PER_FETCHED_ELEMENT * min(FETCHED_MOST, fetched))
    cap = register_cap(device, threads) or needed
    return needed, cap


def residency(
    kernel: StagedKernel, device: DeviceSpec, body: Tile, rolled: bool, effects: Effects, registers: int | None = None
) -> Residency | None:  # fmt: skip
    """Return registers and occupancy of a kernel; None if a block asks for more shared memory than a unit has.

    Parameters
    ----------
    body : Tile
        Unrolled extents, per axis.
    rolled : bool
        True if a loop indexes the register tile, which therefore cannot be in registers.
    registers : int, optional
        Compiler's register count per thread, if known; else estimated.
    """
    held = 0 if rolled else accumulators(kernel.geometry, kernel.thread)
    fetched = sum(
        ceil(prod(box) / (vector * kernel.threads)) * vector
        for box, vector in zip(kernel.boxes, kernel.vectors, strict=True)
    )
    needed, cap = registers_needed(kernel.geometry, device, kernel.thread, kernel.threads, body, fetched, rolled)
    spilled = min(held, max(0, needed - cap)) if effects.spilling else 0
    taken = registers or min(cap, max(REGISTERS_LEAST, ceil(needed * REGISTERS_TAKEN)))
    resident, limit = occupancy(device, kernel.threads, taken, kernel.shared_bytes)
    if resident == 0:
        return None
    if not effects.occupancy:
        resident, limit = occupancy(device, kernel.threads, 0, 0)
    return Residency(resident, limit, needed, spilled)


@dataclass(frozen=True)
class LocalMemory:
    """Traffic of accumulators that are not in registers, in one step of a block.

    Parameters
    ----------
    accesses : float
        Loads and stores of a thread.
    l1, l2, dram : float
        Cycles of a unit in each level.
    """

    accesses: float
    l1: float
    l2: float
    dram: float


def unified(device: DeviceSpec) -> bool:
    """Return whether L1 and shared memory are one memory: the L1 cache is at least as large as all shared memory."""
    cache = device.limits.global_cache_bytes
    return cache is not None and cache >= device.level("shared").capacity_bytes


def local_memory(
    kernel: StagedKernel, device: DeviceSpec, rates: GpuRates, rolled: tuple[int, float] | None, held: Residency,
    resident: int, effects: Effects,
) -> LocalMemory:  # fmt: skip
    """Return the traffic of spilled accumulators and rolled tiles, in the nearest cache with room for all of them.

    Parameters
    ----------
    rolled : (int, float) or None
        For a tile that a loop indexes: accumulators of an unrolled body, and bodies in a step.
    """
    element = kernel.geometry.accumulator_bytes
    accesses = size = 0.0
    if rolled is not None and effects.rolled_tiles:
        # Each body loads its accumulators and stores them.
        accesses, size = 2.0 * rolled[0] * rolled[1], float(kernel.outputs)
    elif held.spilled:
        # Each turn of the reduction's outer loops in a step passes over the tile once.
        accesses, size = 2.0 * held.spilled * outer_turns(kernel), float(held.spilled)
    if not accesses:
        return LocalMemory(0.0, 0.0, 0.0, 0.0)
    lanes = ceil(kernel.threads / device.vector_width) * device.vector_width
    footprint = size * element * lanes * resident
    cache = float(device.limits.local_cache_bytes or 0)
    if unified(device):
        cache = max(0.0, cache - resident * kernel.shared_bytes)
    near = min(1.0, cache / footprint)
    second = min(1.0, device.level("l2").capacity_bytes / (footprint * device.units)) if device.has("l2") else 0.0
    moved = accesses * element * lanes
    # Stores are written through if L1 is a part of shared memory; otherwise L1 keeps them.
    missed = moved * (1 - near / 2) if unified(device) else moved * (1 - near)
    return LocalMemory(
        accesses, moved / rates.shared, missed / rates.l2, moved * (1 - near) * (1 - second) / rates.dram
    )


def outer_turns(kernel: StagedKernel) -> int:
    """Return the iterations of a step's reduction loops outside of every loop over outputs."""
    turns = 1
    for axis, extent in kernel.loops:
        if axis in kernel.geometry.spatial_set and extent > 1:
            break
        if axis not in kernel.geometry.spatial_set:
            turns *= extent
    return turns
