"""Micro-performance model of recipe cpu.direct: rows of vectors, memory traffic once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from ..device import DeviceSpec
from .cpu import (
    CALL,
    GUARDED_LOADS,
    CpuRates,
    calls_of,
    epilogue_slots,
    instructions,
    launch_seconds,
    left_over,
    prologue_slots,
)
from .estimate import LevelTime, ProgramEstimate
from .geometry import Geometry

# Cycles to begin a stage of a chunk: its address, and loops whose trips are known (measured on Zen 3, LLVM 10: copies
# in chunks of 4 and 8 elements take 5 cycles each, rows of 32 elements of softmax, in five stages, 115).
STAGE_OVERHEAD = 4


def block(extent: int) -> int:
    """Return the longest vectors that stay inside the blocks of another layout: the power of two in an extent.

    Examples
    --------
    >>> block(12), block(16), block(80)
    (4, 16, 16)
    """
    return extent & -extent


@dataclass(frozen=True)
class Cycles:
    """Cycles of one core that overlap: of instructions, of calls, of sums that wait for one another.

    Parameters
    ----------
    chain : float
        Cycles of the sums if each starts when the one before it ends.
    chains, issued : float
        Number of sums, and of instructions.
    """

    instructions: float
    calls: float = 0.0
    chain: float = 0.0
    chains: float = 0.0
    issued: float = 0.0

    @classmethod
    def of(cls, stages: Sequence[Cycles]) -> Cycles:
        """Return the sum over stages of many rows: while one stage waits, others (also of another row) use the time."""
        columns = zip(*((s.instructions, s.calls, s.chain, s.issued) for s in stages), strict=True)
        instructions, calls, chain, issued = (sum(column) for column in columns)
        return cls(instructions, calls, chain, max(s.chains for s in stages), issued)

    def total(self, window: int) -> float:
        """Return the cycles of all; a core starts up to `window` instructions, also of later sums, before one ends."""
        ahead = 1 + window * self.chains / self.issued if self.issued else 1.0
        return max(self.instructions, self.calls, self.chain / max(1.0, min(ahead, self.chains)))


def stage_cycles(geometry: Geometry, rates: CpuRates, vector: int) -> Cycles:
    """Return the cycles of a whole nest in vectors of its last axis, with operands in the nearest cache.

    Parameters
    ----------
    vector : int
        Neighbours along the vector axis that are computed at a time. Up to 1: one by one, unless LLVM itself makes
        vectors of them.
    """
    g = geometry
    outputs = prod(g.extents[i] for i in g.spatial)
    last = g.vector_axis
    inner = [op for op in g.operands if last in op.axes or op.axes.intersection(g.reduce)]  # others: once a row
    per_point = instructions(g.stage.ops) + sum(prologue_slots(op) for op in inner)
    points = g.stage.points
    contiguous = [
        last is not None
        and op.stride_of(last) in (0, 1)
        and not (any(op.opaque) and vector > block(g.extents[last]))
        for op in g.operands
    ]
    vectorised = max(1.0, min(vector, rates.lanes)) if last is not None and all(contiguous) else 1.0
    if last is not None and vector <= 1 and not g.reduce and all(contiguous) and not any(
        op.guarded or any(op.opaque) for op in inner
    ):
        alone = left_over(g.extents[last], rates.lanes)  # LLVM's own vectors
        vectorised = g.extents[last] / ((g.extents[last] - alone) / rates.lanes + alone)
    loads = sum(points / (vectorised if c else 1) for c in contiguous)
    guards = sum(  # one check a vector, or one an element that is loaded alone
        points if last in op.guard_axes else GUARDED_LOADS * points / vectorised for op in g.operands if op.guarded
    )
    calls = points * calls_of(g.stage.ops, *(op.functions for op in inner))
    calls += outputs * calls_of(g.epilogue_functions)
    arithmetic = points / vectorised * per_point
    after = outputs * (1 + epilogue_slots(g)) / vectorised
    return Cycles(
        guards + arithmetic / rates.fma + loads / rates.loads + after,
        calls * CALL,
        points / vectorised * rates.latency if g.reduce else 0.0,  # one accumulator at a time
        outputs / vectorised if g.reduce else 0.0,
        arithmetic + loads + after + calls * CALL * rates.fma,
    )


def streamed(
    device: DeviceSpec, rates: CpuRates, stages: Sequence[Cycles], moved: float, chunks: int, flops: int,
    trips: int = 0,
) -> ProgramEstimate:  # fmt: skip
    """Return the time of stages that run in order in each chunk and move `moved` bytes from the level that holds them.

    Parameters
    ----------
    trips : int
        How often the stages start, if not once per chunk.
    """
    level, rate = device.far.name, rates.far
    for cache, capacity, cache_rate in rates.caches:
        if moved / device.units <= capacity:
            level, rate = cache, cache_rate
            break
    units = min(device.units, chunks)
    together = Cycles.of(stages)
    cycles = together.total(rates.window) + (trips or chunks) * len(stages) * STAGE_OVERHEAD
    busiest = ceil(chunks / device.units) / chunks
    memory = moved * busiest / rate
    core = cycles * busiest
    seconds = max(memory, core) * rates.cycle + launch_seconds(device, chunks)
    return ProgramEstimate(
        seconds, core * rates.cycle, (LevelTime(level, moved, moved / (rate * units) * rates.cycle),),
        level if memory > core else "call" if 2 * together.calls > cycles else "compute", flops, chunks,
        ceil(chunks / device.units), registers=0, utilisation=1 / (busiest * device.units),
    )  # fmt: skip


def direct_estimate(geometry: Geometry, device: DeviceSpec, chunks: int, vector: int = 0) -> ProgramEstimate:
    """Return the predicted time of recipe cpu.direct: rows of vectors, memory traffic once."""
    g = geometry
    rates = CpuRates.of(device, g)
    outputs = prod(g.extents[i] for i in g.spatial)
    moved = sum(op.source_bytes for op in g.operands) + outputs * g.output_bytes + g.epilogue_bytes
    flops = g.stage.flops + g.epilogue_flops * outputs
    return streamed(device, rates, [stage_cycles(g, rates, vector)], moved, chunks, flops)
