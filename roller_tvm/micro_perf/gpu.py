"""Parts shared by the micro-performance models of all GPU recipes: rates, memory transactions, traffic over a wave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..device import DeviceSpec
from .geometry import Geometry
from .gpu_constants import BLOCK_CYCLES, OPERATION_SLOTS, PIPE_OVERLAP_LOSS
from .gpu_nest import Array, GpuNest, ceil_div, product

#: A number, or one for each column of a table.
Count = Any


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
    far, shared = device.far, device.level("shared")
    l2 = device.level("l2") if device.has("l2") else far
    return GpuRates(
        1 / hertz,
        device.peak(dtype) * per_unit / 2,
        float(device.limits.schedulers_per_unit or 1),
        shared.bandwidth_gbps * per_unit, l2.bandwidth_gbps * per_unit, far.bandwidth_gbps * per_unit,
        far.latency_ns * device.clock_ghz, shared.latency_ns * device.clock_ghz,
        far.transaction_bytes, l2.line_bytes,
    )  # fmt: skip


def instructions(geometry: Geometry) -> float:
    """Return the issue slots of the arithmetic of one iteration point."""
    return sum(n * OPERATION_SLOTS[kind] for kind, n in geometry.stage.ops) or 1.0


def sectors(nest: GpuNest, boxes: Array, sector: int) -> Array:
    """Return the bytes that memory moves for boxes: their runs, each rounded up to whole sectors, without padding.

    Returns
    -------
    array of (operands, N)
    """
    run, shape = nest.runs(boxes), nest.shape
    moved = np.ceil(run * nest.element_bytes / sector) * sector
    anywhere = shape[:, -1] * nest.element_bytes % sector != 0  # runs start anywhere in a sector
    if anywhere.any():
        moved = np.where(anywhere & (run < nest.elements(shape)), moved + sector / 2, moved)
    return (nest.elements(boxes) / run * moved * nest.stored_share).astype(np.int64)


def spread(extents: Array, count: Array) -> Array:
    """Return how many different coordinates per axis `count` consecutive tiles touch (last axis fastest).

    Examples
    --------
    >>> spread(np.array([[4], [8]]), np.array([16])).ravel().tolist()
    [2, 8]
    """
    inner = np.ones_like(extents)  # tiles that an axis' next one is apart
    np.multiply.accumulate(extents[:0:-1], axis=0, out=inner[-2::-1])
    return np.minimum(extents, ceil_div(count, inner))


def far_traffic(
    nest: GpuNest, device: DeviceSpec, block: Array, resident: Array, block_bytes: Array
) -> Array:
    """Return the bytes from the farthest level, counting loads shared by the blocks of a wave once.

    Parameters
    ----------
    resident : array
        Blocks on the device at a time.
    block_bytes : array of (operands, N)
        Bytes that one block loads over its whole life.
    """
    l2 = device.level("l2").capacity_bytes if device.has("l2") else 0
    extents, spatial, count = nest.extents, nest.outer, block.shape[1]
    grid = nest.grid(block)
    blocks = product(grid, count)
    at_once = np.minimum(resident, blocks)
    waves = blocks / at_once
    covered = spread(grid, at_once)
    tiles = np.repeat(extents, 2 * count, axis=1)  # of a block, and of a wave
    tiles[spatial, :count] = block[spatial]
    tiles[spatial, count:] = np.minimum(extents[spatial], block[spatial] * covered)
    elements = nest.elements(nest.boxes(tiles))
    different = nest.over_own_axes(covered)
    # Windows of neighbours overlap.
    overlap = np.minimum(1.0, elements[:, count:] / (different * elements[:, :count]))
    traffic = waves * different * overlap * block_bytes
    once = np.maximum(nest.source_bytes, 1)
    traffic = np.where(nest.source_bytes <= l2 // 2, np.minimum(traffic, once), traffic)
    return np.add.reduce(np.maximum(traffic, np.minimum(once, block_bytes * nest.over_own_axes(grid))), axis=0)


def busiest_unit(device: DeviceSpec, blocks: Count, resident: Count) -> tuple[Count, Count]:
    """Return the blocks of the busiest unit, and the rounds of blocks over the whole device (wave quantisation).

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> busiest_unit(load_device("v100"), blocks=170, resident=2)
    (3, 2)
    """
    full, rest = divmod(blocks, device.units * resident)
    return full * resident - -rest // device.units, full + (rest > 0)


def overlapped(pipes: Sequence[Count], loss: float = PIPE_OVERLAP_LOSS) -> Count:
    """Return the time of pipes that work at once: the slowest, plus a share of the others."""
    slowest, total = pipes[0], pipes[0]
    for pipe in pipes[1:]:
        slowest, total = np.maximum(slowest, pipe), total + pipe
    return slowest + loss * (total - slowest)


def started(device: DeviceSpec, blocks: Count) -> Count:
    """Return the seconds in which the device starts `blocks` blocks, one after the other.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> round(started(load_device("v100"), blocks=1_000_000) * 1e6)
    1560
    """
    return blocks * (device.limits.block_interval_ns or 0.0) * 1e-9


def in_waves(
    device: DeviceSpec, rates: GpuRates, pipes: dict[str, Count], chain: Count, resident: Count, busiest: Count,
    blocks: Count,
) -> tuple[Count, Array]:  # fmt: skip
    """Return a kernel's seconds, launch included, and its bound: a pipe, 'latency', or starting its 'blocks'.

    Parameters
    ----------
    pipes : dict
        Pipe -> cycles of a block in it; the pipes work side by side.
    chain : float
        Cycles of a block that is alone on its unit: the chain of its dependent operations.
    resident, busiest : int
        Blocks on a unit at a time, and blocks that the busiest unit computes.
    """
    throughput = overlapped(list(pipes.values()))
    cycles = busiest * (np.maximum(throughput, chain / resident) + BLOCK_CYCLES) + rates.dram_latency
    seconds, starts = cycles * rates.cycle, started(device, blocks)
    bound = np.where(chain / resident <= throughput, slowest_of(pipes), "latency")
    return np.maximum(seconds, starts) + device.launch_overhead_us * 1e-6, np.where(seconds > starts, bound, "blocks")


def slowest_of(pipes: dict[str, Count]) -> Array:
    """Return the name of the pipe with the most cycles, for each column.

    Examples
    --------
    >>> slowest_of({"compute": np.array([1.0, 3.0]), "dram": np.array([2.0, 2.0])}).tolist()
    ['dram', 'compute']
    """
    cycles = list(pipes.values())
    slowest, place = cycles[0], np.zeros((), np.int64)
    for number, pipe in enumerate(cycles[1:], 1):
        place = np.where(pipe > slowest, number, place)
        slowest = np.maximum(slowest, pipe)
    return np.array(list(pipes))[place]
