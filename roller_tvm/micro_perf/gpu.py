"""Parts shared by the micro-performance models of all GPU recipes: rates, memory transactions, traffic over a wave."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from ..device import DeviceSpec
from .geometry import Geometry, Operand, Tile

# Issue slots of the arithmetic: special functions run on a quarter of the lanes, a division is a handful.
INSTRUCTIONS = {"fma": 1, "mul": 1, "add": 1, "cmp": 1, "cast": 1, "div": 8, "exp": 4, "sqrt": 4, "special": 4}
# Fraction of the other pipes' time that the bottleneck does not hide: of two plans with one bottleneck, the one with
# less of everything else is faster.
OVERLAP_LOSS = 0.05
# Cycles of a unit for starting and retiring a block.
BLOCK_CYCLES = 25
# Loads a thread has in flight before it needs the first.
IN_FLIGHT = 8


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
        # A construction asks thousands of times for one device: to tell that it is the same takes no look inside.
        if _LAST and _LAST[0][0] is device and _LAST[0][1] == dtype:
            return _LAST[0][2]
        rates = _rates(device, dtype)
        _LAST[:] = [(device, dtype, rates)]
        return rates


_LAST: list[tuple[DeviceSpec, str, GpuRates]] = []


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
    return sum(n * INSTRUCTIONS[kind] for kind, n in geometry.stage.ops) or 1.0


def sectors(operand: Operand, box: list[int], sector: int) -> int:
    """Return the bytes that memory moves for a box: its runs, each rounded up to whole sectors, without padding."""
    run = operand.run(box)
    total = prod(box)
    run_bytes = run * operand.element_bytes
    moved = float(ceil(run_bytes / sector) * sector)
    row_bytes = operand.shape[-1] * operand.element_bytes if operand.shape else sector
    if row_bytes % sector and run < operand.elements_whole:
        moved += sector / 2  # runs start anywhere in a sector
    return int(total / run * moved * operand.stored_share)


def spread(extents: list[int], count: int) -> list[int]:
    """Return how many different coordinates per axis `count` consecutive tiles touch (last axis fastest).

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


def far_traffic(geometry: Geometry, device: DeviceSpec, block: Tile, resident: int, block_bytes: list[int]) -> float:
    """Return the bytes from the farthest level, counting loads shared by the blocks of a wave once.

    Parameters
    ----------
    resident : int
        Blocks on the device at a time.
    block_bytes : list of int
        For each operand, the bytes that one block loads over its whole life.
    """
    l2 = device.level("l2").capacity_bytes if device.has("l2") else 0
    total = 0.0
    for op, per_block, (again, distinct) in zip(
        geometry.operands, block_bytes, _shared_in_wave(geometry, block, resident), strict=True
    ):
        traffic = again * per_block
        once = max(op.source_bytes, 1)
        if op.source_bytes <= l2 // 2:
            traffic = min(traffic, once * 1.0)
        total += max(traffic, min(once, per_block * distinct))
    return total


def _shared_in_wave(geometry: Geometry, block: Tile, resident: int) -> list[tuple[float, int]]:
    """Return, per operand, how many blocks' loads come from afar and how many blocks load different parts (cached)."""
    spatial = geometry.spatial
    tile = tuple([block[i] for i in spatial])
    known = geometry.counted.get(("wave", tile, resident))
    if known is not None:
        return known
    grid = [ceil(geometry.extents[i] / n) for i, n in zip(spatial, tile, strict=True)]
    blocks = prod(grid)
    at_once = max(1, min(resident, blocks))
    waves = blocks / at_once
    covered = spread(grid, at_once)
    own, wave = list(geometry.extents), list(geometry.extents)
    for n, i in enumerate(spatial):
        own[i], wave[i] = block[i], min(geometry.extents[i], block[i] * covered[n])
    result = []
    for op in geometry.operands:
        different = distinct = 1
        for n, i in enumerate(spatial):
            if i in op.axes:
                different *= covered[n]
                distinct *= grid[n]
        # Windows of neighbours overlap.
        overlap = min(1.0, op.elements(tuple(wave)) / (different * op.elements(tuple(own))))
        result.append((waves * different * overlap, distinct))
    geometry.counted["wave", tile, resident] = result
    return result


def busiest_unit(device: DeviceSpec, blocks: int, resident: int) -> tuple[int, int]:
    """Return the blocks of the busiest unit, and the rounds of blocks over the whole device (wave quantisation).

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> busiest_unit(load_device("v100"), blocks=170, resident=2)
    (3, 2)
    """
    full, rest = divmod(blocks, device.units * resident)
    return full * resident + ceil(rest / device.units), full + (rest > 0)


def overlapped(terms: list[float]) -> float:
    """Return the time of pipes that work at once: the slowest, plus a little of the others."""
    most = max(terms)
    return most + OVERLAP_LOSS * (sum(terms) - most)


def started(device: DeviceSpec, blocks: int) -> float:
    """Return the seconds in which the device starts `blocks` blocks, one after the other.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> round(started(load_device("v100"), blocks=1_000_000) * 1e6)
    1560
    """
    return blocks * (device.limits.block_interval_ns or 0.0) * 1e-9


def in_waves(
    device: DeviceSpec, rates: GpuRates, pipes: dict[str, float], chain: float, resident: int, busiest: int,
    blocks: int,
) -> tuple[float, str]:  # fmt: skip
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
    cycles = busiest * (max(throughput, chain / resident) + BLOCK_CYCLES) + rates.dram_latency
    bound = max(pipes, key=lambda pipe: pipes[pipe]) if chain / resident <= throughput else "latency"
    seconds, starts = cycles * rates.cycle, started(device, blocks)
    return max(seconds, starts) + device.launch_overhead_us * 1e-6, bound if seconds > starts else "blocks"
