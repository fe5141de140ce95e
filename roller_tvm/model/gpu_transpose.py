"""Micro-performance model of recipe gpu.transpose: tiles turned in shared memory, both ways in whole transactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from ..device import DeviceSpec
from .access import bank_cycles, strides_of
from .estimate import LevelTime, ProgramEstimate
from .geometry import Geometry, Operand, Tile
from .gpu import IN_FLIGHT, GpuRates, busiest_unit, far_traffic, in_waves, sectors
from .gpu_direct import LOAD_OVERHEAD
from .gpu_tiled import FETCH_OVERHEAD
from .occupancy import occupancy
from .registers import register_cap
from .storage import alignments, storage_elements

# Registers of a thread, and of each element that it has in flight (compiled for sm_75, 80 and 90, 1 to 256 elements
# a thread). The compiler loads at most AHEAD_MOST elements ahead, some with an address of their own.
TURN_REGISTERS, PER_ITEM, AHEAD_REGISTERS, AHEAD_MOST = 20, 2, 12, 64


@dataclass(frozen=True)
class TurnedShape:
    """A candidate of recipe gpu.transpose: extents per axis position."""

    tile: Tile
    threads: int
    padding: tuple[int, ...]  # per staged operand, elements added to a row


def turned_shared_bytes(staged: Sequence[Operand], shape: TurnedShape) -> int:
    """Return the shared memory of a block in bytes: the staged boxes with padded rows."""
    total = 0
    for op, padding in zip(staged, shape.padding, strict=True):
        box = op.box(shape.tile)
        total += storage_elements(box, alignments(box, padding, 1)) * op.element_bytes
    return total


def turn_cycles(
    geometry: Geometry, device: DeviceSpec, operand: Operand, tile: Tile, padding: int, threads: int
) -> int:
    """Return the cycles in which a warp reads its part of a tile from shared memory; lanes of one bank wait.

    Padding separates the rows that neighbouring lanes read; if whole rows lie between them, some conflicts remain.
    """
    key = ("turned", operand.name, tile, padding, threads)
    if key not in geometry.counted:
        level, box = device.level("shared"), operand.box(tile)
        lanes = np.arange(min(device.vector_width, threads, prod(tile)))
        extents = [tile[i] for i in geometry.spatial]
        at = dict(zip(geometry.spatial, np.unravel_index(lanes, extents), strict=True))
        address = np.zeros(len(lanes), np.int64)
        for dim, row in zip(operand.dims, strides_of([*box[:-1], box[-1] + padding]), strict=True):
            for axis, coefficient in dim:
                if axis in at:
                    address += at[axis] * coefficient * row
        words = address * operand.element_bytes // (level.bank_bytes or 4)
        geometry.counted[key] = bank_cycles(words, level.banks or 1)
    found: int = geometry.counted[key]
    return found


def turn_registers(items: int) -> int:
    """Return the registers of a thread that moves `items` elements of a tile.

    Examples
    --------
    >>> turn_registers(4), turn_registers(16), turn_registers(256)
    (28, 44, 140)
    """
    return max(
        TURN_REGISTERS + PER_ITEM * min(items, IN_FLIGHT), AHEAD_REGISTERS + PER_ITEM * min(items, AHEAD_MOST)
    )


def transpose_estimate(
    geometry: Geometry, device: DeviceSpec, staged: Sequence[Operand], others: Sequence[Operand], shape: TurnedShape
) -> ProgramEstimate | None:
    """Return the predicted time of recipe gpu.transpose, or None if not even one block fits on a unit.

    Parameters
    ----------
    staged, others : sequence of Operand
        Reads from memory, in terms of the output's axes: turned in shared memory, and read in place.
    """
    rates = GpuRates.of(device, geometry.stage.dtype)
    tile, threads = shape.tile, shape.threads
    elements, outputs = prod(tile), prod(geometry.extents)
    items = ceil(elements / threads)
    registers = turn_registers(items) + len(others)
    registers = min(registers, register_cap(device, threads) or registers)
    shared = turned_shared_bytes(staged, shape)
    resident, limit = occupancy(device, threads, registers, shared)
    if resident == 0:
        return None
    blocks = geometry.tiles(tile, geometry.spatial)
    resident = min(resident, ceil(blocks / device.units))
    busiest, waves = busiest_unit(device, blocks, resident)

    read = [*staged, *others]
    boxes = [op.box(tile) for op in read]
    moved = [sectors(op, box, rates.sector) for op, box in zip(read, boxes, strict=True)]
    seen = Geometry(geometry.expression, geometry.stage, tuple(read), 0, 0, geometry.output_bytes)
    far = far_traffic(seen, device, tile, device.units * resident, moved)
    last = geometry.vector_axis
    run = (tile[last] if last is not None else 1) * geometry.output_bytes
    waste = ceil(run / rates.sector) * rates.sector / run
    store_bytes = outputs * geometry.output_bytes * waste
    fetched = sum(prod(box) for box in boxes[: len(staged)])
    arithmetic = geometry.stage.flops_per_point + geometry.epilogue_flops
    arithmetic += sum(op.arithmetic for op in geometry.operands)
    warps = ceil(threads / device.vector_width)
    slots = fetched / threads * (2 + FETCH_OVERHEAD) + items * (2 + FETCH_OVERHEAD + arithmetic)
    slots += items * len(others) * (1 + LOAD_OVERHEAD)
    issue = slots * warps / rates.issue
    turned = sum(
        turn_cycles(geometry, device, op, tile, padding, threads)
        for op, padding in zip(staged, shape.padding, strict=True)
    )
    bank_time = (fetched + elements * turned) * geometry.output_bytes / rates.shared
    near = float(sum(moved))
    dram = (far + store_bytes) / blocks / rates.dram
    l2 = (near + store_bytes / blocks) / rates.l2
    alone = rates.dram_latency * max(1.0, items / IN_FLIGHT) + 2 * rates.shared_latency + max(dram, l2)
    alone += issue * rates.issue / min(warps, rates.issue)
    terms = {"issue": issue, device.far.name: dram, "l2": l2, "shared": bank_time}
    seconds, bound = in_waves(device, rates, terms, alone, resident, busiest, blocks)
    scale = blocks / device.units * rates.cycle
    levels = (
        LevelTime(device.far.name, far + store_bytes, dram * scale),
        *([LevelTime("l2", near * blocks + store_bytes, l2 * scale)] if device.has("l2") else []),
        LevelTime("shared", (fetched + elements) * geometry.output_bytes * blocks, bank_time * scale),
    )
    return ProgramEstimate(
        seconds, 0.0, levels, bound, int(arithmetic * outputs), blocks,
        waves, resident, limit, threads, registers, shared, blocks / max(1, busiest * device.units),
    )  # fmt: skip
