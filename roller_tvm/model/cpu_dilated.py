"""Micro-performance model of recipe cpu.dilated: counts the products with stored elements, not with zeros."""

from __future__ import annotations

from math import ceil, prod

from ..device import DeviceSpec
from .cpu import (
    CALL,
    EXPOSED,
    TILE_OVERHEAD,
    CpuRates,
    epilogue_cycles,
    instructions,
    launch_seconds,
    prologues,
    vectors,
)
from .cpu_window import SPILLED
from .estimate import LevelTime, ProgramEstimate
from .geometry import Geometry, Operand, Tile


def strides(geometry: Geometry) -> dict[int, int]:
    """Return the axes that walk over an operand dilated with zeros: position -> distance of its elements.

    The geometry's operands are those in memory (``in_memory``).

    Examples
    --------
    >>> from roller_tvm.expr.operators import operator
    >>> conv = operator("conv2d_nchw", n=1, c=8, h=8, w=8, f=8, k=3)
    >>> strides(Geometry.of(conv, "conv2d"))
    {}
    """
    position = {name: i for i, name in enumerate(geometry.axes)}
    found: dict[int, int] = {}
    for op in geometry.operands:
        for index in op.access.indices:
            if index.divisor > 1 and op.guarded:
                found |= {position[n]: index.divisor for n, c in index.terms if c == 1}
    return found


def live_share(geometry: Geometry) -> float:
    """Return the share of the iteration points that meet a stored element."""
    steps = strides(geometry)
    return prod(1 / step for i, step in steps.items() if i in geometry.spatial_set)


def _loads(op: Operand, geometry: Geometry, tile: Tile, wide: int) -> int:
    """Return the loads (vectors or broadcast elements) of an operand for one tile and its whole window."""
    last = geometry.vector_axis
    number = op.elements(tile)
    contiguous = last is not None and last in op.axes and op.stride_of(last) == 1
    return number // tile[last] * wide if contiguous and last is not None else number


def dilated_estimate(
    geometry: Geometry, device: DeviceSpec, chunk: Tile, tile: Tile, vector: bool
) -> ProgramEstimate:
    """Return the predicted time of recipe cpu.dilated.

    Parameters
    ----------
    chunk, tile : tuple of int
        Extents of a parallel task and of a register tile (for reductions: the unrolled trips).
    vector : bool
        True if vectors run along the last axis; else along the columns, as the compiler finds them.
    """
    g = geometry
    rates = CpuRates.of(device, g)
    last = g.vector_axis
    wide = vectors(tile[last], rates.lanes) if vector and last is not None else 1
    sums = prod(wide if vector and i == last else tile[i] for i in g.spatial)
    per_point = instructions(g.stage.ops) or 1.0
    fmas = sums * prod(tile[i] for i in g.reduce) * live_share(g) * per_point
    loads = sum(_loads(op, g, tile, wide) for op in g.operands)
    steps = prod(ceil(e / tile[i]) for i, e in enumerate(g.extents) if i in g.reduce)
    if vector:
        cycles = steps * (max(fmas / rates.fma, loads / rates.loads) + SPILLED * max(0, sums + loads - rates.registers))
    else:  # sums in memory; a compiler's vectors of columns, which a stride takes apart
        cycles = steps * (fmas / rates.fma + (loads + 2 * sums) / rates.loads) / rates.lanes
    before, calls = prologues(g, tile, rates)
    cycles += steps * prod(tile[i] for i in g.reduce) * live_share(g) * (before + CALL * calls)
    tiles = prod(ceil(chunk[i] / tile[i]) for i in g.spatial)
    chunks = prod(ceil(g.extents[i] / chunk[i]) for i in g.spatial)
    # Sums go to memory and from there, turned element by element, to the output.
    core = tiles * (cycles + sums / rates.fma) + TILE_OVERHEAD * (tiles if vector else 1)
    stored = prod(chunk[i] for i in g.spatial)
    core += stored / rates.loads + epilogue_cycles(g, stored / rates.lanes, stored, rates)
    held = stored * g.output_bytes
    if held > rates.caches[0][1]:
        beyond = [rate for _, capacity, rate in rates.caches[1:] if held <= capacity]
        # Turned, each of the neighbours in a line is fetched by a pass of its own.
        passes = min(chunk[last], rates.line // g.output_bytes) if vector and last is not None else 1
        core += (1 + passes) * held / (beyond[0] if beyond else rates.far)
    busiest = ceil(chunks / device.units)
    outputs = prod(g.extents[i] for i in g.spatial)
    moved = float(sum(op.source_bytes for op in g.operands) + outputs * g.output_bytes + g.epilogue_bytes)
    name, rate = device.far.name, rates.far
    for cache, capacity, cache_rate in rates.caches:
        if moved / device.units <= capacity:
            name, rate = cache, cache_rate
            break
    memory = moved / chunks / rate
    seconds = busiest * max(memory, core + EXPOSED * memory) * rates.cycle + launch_seconds(device, chunks)
    return ProgramEstimate(
        seconds, core * chunks / device.units * rates.cycle,
        (LevelTime(name, moved, moved / device.units / rate * rates.cycle),),
        name if memory > core else "compute", round(g.stage.flops * live_share(g)), chunks, busiest,
        registers=min(sums + loads, rates.registers), utilisation=chunks / (busiest * device.units),
    )  # fmt: skip
