"""Micro-performance model of recipe cpu.lanes: register tiles whose lanes are merged in the nearest cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from .cpu import CpuRates, TileCost, epilogue_cycles
from .geometry import Geometry, Tile


def lanes_cost(geometry: Geometry, merges: Sequence[Geometry], tile: Tile, rates: CpuRates) -> TileCost:
    """Return the cost of a register tile together with merging its lanes.

    Every merge reads its terms from the nearest cache: in vectors as long as its result, or one by one.

    Parameters
    ----------
    geometry : Geometry
        Nest of the stage that reduces in lanes, its last spatial axis.
    merges : sequence of Geometry
        Nests of the stages that merge the lanes, in order, the epilogue with the last.
    tile : tuple of int
        Register tile of `geometry`.
    rates : CpuRates
    """
    cost = TileCost.of(geometry, tile, rates)
    outputs, last = prod(tile[i] for i in geometry.spatial[:-1]), merges[-1]
    terms = sum(prod(g.extents[i] for i in g.reduce) for g in merges)
    cycles = terms / min(rates.fma, rates.loads) + epilogue_cycles(last, 1, 1, rates)
    return replace(cost, other=cost.other + outputs * cycles)
