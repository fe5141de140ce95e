"""Micro-performance model of recipe cpu.axpy: rows of sums in the nearest cache, a scaled row added at a time."""

from __future__ import annotations

from math import prod

from .cpu import (
    CALL,
    LONG_LOOP,
    SIDE_BY_SIDE,
    TILE_OVERHEAD,
    CpuRates,
    RegisterUse,
    TileCost,
    calls_of,
    epilogue_cycles,
    instructions,
    left_over,
    prologues,
)
from .geometry import Geometry

# Cycles to enter and leave a row's loop: addresses, the trips that are left, a misprediction now and then (measured on
# Zen 3: rows of 521 elements).
ROW_OVERHEAD = 12


def axpy_cost(geometry: Geometry, rates: CpuRates) -> TileCost:
    """Return the cost of one row of sums over the whole reduction."""
    g, last = geometry, geometry.vector_axis
    assert last is not None
    points, row = prod(g.extents[i] for i in g.reduce), g.extents[last]
    alone = left_over(row, rates.lanes)
    vectors = (row - alone) // rates.lanes
    per_point = instructions(g.stage.ops) or 1.0
    rows = sum(last in op.axes for op in g.operands)
    others = len(g.operands) - rows
    # A sum is read, added to and stored; what is left over does the same for a single element.
    busy = max((vectors + alone) * per_point / rates.fma, (vectors + alone) / rates.stores)
    loads = ((vectors + alone) * (rows + 1) + others) / rates.loads
    vectors_stored = row / rates.lanes
    epilogue = 2 * vectors_stored / rates.fma + epilogue_cycles(g, vectors_stored, row, rates) + TILE_OVERHEAD
    before, calls = prologues(g, tuple(row if i == last else 1 for i in range(len(g.extents))), rates)
    calls += calls_of(g.stage.ops) * row
    busy += before
    use = RegisterUse(SIDE_BY_SIDE, vectors * rows, others, 0)
    entered = ROW_OVERHEAD if row >= LONG_LOOP else 0  # a shorter one LLVM writes out
    other = points * (entered + CALL * calls) + epilogue
    return TileCost(use, points * busy, points * loads, frozenset(), 0.0, other)
