"""Registers of threads, resident blocks of a unit, spilled accumulators, and the traffic of local memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..device import DeviceSpec
from .effects import Effects
from .gpu import GpuRates
from .gpu_constants import REGISTERS_LEAST, REGISTERS_TAKEN
from .gpu_nest import Array, round_up
from .kernel import StagedTable
from .occupancy import resident_blocks
from .registers import UNLIMITED, RegisterTiles, register_caps


@dataclass(frozen=True)
class Residency:
    """Registers of a thread and blocks of a unit, a column for each kernel.

    Parameters
    ----------
    resident, limit : array
        Blocks on a unit at a time (0 if a block asks for more shared memory than a unit has), and the resource that
        limits them (one of ``occupancy.RESOURCES``).
    needed : array
        Registers that a thread needs: accumulators, the smaller fragment, addresses, values read ahead.
    spilled : array
        Accumulators without a register.
    """

    resident: Array
    limit: Array
    needed: Array
    spilled: Array


def residency(
    table: StagedTable, device: DeviceSpec, effects: Effects, registers: Array | None = None
) -> Residency:
    """Return registers and occupancy of staged kernels.

    Parameters
    ----------
    registers : array, optional
        Compiler's register count per thread, if known; else estimated.
    """
    tiles = RegisterTiles.of(table.nest, table.thread)
    held = np.where(table.rolled, 0, tiles.accumulators)
    read = table.nest.elements(table.body_boxes)
    needed = tiles.unspilled(read, table.fetched, table.rolled)
    cap = register_caps(device, table.threads)
    cap = np.where((cap == 0) | (cap == UNLIMITED), needed, cap)
    spilled = np.minimum(held, np.maximum(0, needed - cap)) if effects.spilling else np.zeros_like(held)
    if registers is None:
        taken = np.ceil(needed * REGISTERS_TAKEN).astype(np.int64)
        registers = np.minimum(cap, np.maximum(REGISTERS_LEAST, taken))
    resident, limit = resident_blocks(device, table.threads, registers, table.shared_bytes)
    if not effects.occupancy:
        nothing = np.zeros_like(table.threads)
        free, limit = resident_blocks(device, table.threads, nothing, nothing)
        resident = np.where(resident == 0, 0, free)
    return Residency(resident, limit, needed, spilled)


@dataclass(frozen=True)
class LocalMemory:
    """Traffic of accumulators that are not in registers, in one step of a block: a number or a column a kernel.

    Parameters
    ----------
    accesses : float or array
        Loads and stores of a thread.
    l1, l2, dram : float or array
        Cycles of a unit in each level.
    """

    accesses: Array
    l1: Array
    l2: Array
    dram: Array


def unified(device: DeviceSpec) -> bool:
    """Return whether L1 and shared memory are one memory: the L1 cache is at least as large as all shared memory."""
    cache = device.limits.global_cache_bytes
    return cache is not None and cache >= device.level("shared").capacity_bytes


def local_memory(
    table: StagedTable, device: DeviceSpec, rates: GpuRates, held: Residency, resident: Array, effects: Effects
) -> LocalMemory:
    """Return the traffic of spilled accumulators and rolled tiles, in the nearest cache with room for all of them."""
    # Each turn of the reduction's outer loops in a step passes over the spilled part of a tile once.
    accesses, size = 2.0 * held.spilled * table.turns, held.spilled.astype(float)
    if effects.rolled_tiles:  # each body loads its accumulators and stores them
        bodies = 2.0 * table.nest.outputs(table.body) * table.times
        accesses = np.where(table.rolled, bodies, accesses)
        size = np.where(table.rolled, table.outputs, size)
    if not accesses.any():
        nothing = np.zeros(table.count)
        return LocalMemory(nothing, nothing, nothing, nothing)
    element = table.nest.geometry.accumulator_bytes
    lanes = round_up(table.threads, device.vector_width)
    footprint = np.maximum(1.0, size * element * lanes * resident)
    cache = float(device.limits.local_cache_bytes or 0)
    if unified(device):
        cache = np.maximum(0.0, cache - resident * table.shared_bytes)
    near = np.minimum(1.0, cache / footprint)
    l2 = device.level("l2").capacity_bytes if device.has("l2") else 0
    second = np.minimum(1.0, l2 / (footprint * device.units))
    moved = accesses * element * lanes
    # Stores are written through if L1 is a part of shared memory; otherwise L1 keeps them.
    missed = moved * (1 - near / 2) if unified(device) else moved * (1 - near)
    return LocalMemory(
        accesses, moved / rates.shared, missed / rates.l2, moved * (1 - near) * (1 - second) / rates.dram
    )
