"""Construction of products with constant matrices on a CPU (the transforms of Winograd's algorithm).

Everything is unrolled for one vector of the other axes. TVM then inserts the constants' values and drops the products
with 0 and 1.
"""

from __future__ import annotations

from math import prod

from ..model.cpu import CpuRates, vector_of
from ..model.cpu_unrolled import unrolled_estimate
from ..model.estimate import ProgramEstimate
from ..model.gpu_unrolled import own_tile
from .align import capacity
from .cpu import vector_tiles
from .gpu_unrolled import STATEMENTS
from .program import RProgram
from .search import Search


def construct_unrolled(search: Search, top: int) -> list[tuple[RProgram, ProgramEstimate]]:
    """Return the candidate of recipe cpu.unrolled; none if a constant matrix has the vector axis."""
    g, device = search.geometry, search.device
    own, last = own_tile(g), g.vector_axis
    if last is None or own[last] > 1:
        return []
    if search.reject(capacity("unrolled statements", prod(own), STATEMENTS), "cpu.unrolled"):
        return []
    search.considered += 1
    lanes = CpuRates.of(device, g).lanes
    vector = vector_of(vector_tiles(g.extents[last], lanes, 1)[-1], lanes)
    tile = tuple(vector if i == last else e for i, e in enumerate(own))
    tiles = (search.rtile("l2", tile), search.rtile("register", tile))
    program = search.program("cpu.unrolled", tiles, (("vector", vector),))
    return [(program, unrolled_estimate(g, device, vector))]
