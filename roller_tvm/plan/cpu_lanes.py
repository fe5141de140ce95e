"""Construction of recipe cpu.lanes: register tiles that reduce in lanes and merge the lanes in the same tile."""

from __future__ import annotations

from ..model.cpu import CpuRates, tiled_estimate
from ..model.cpu_lanes import lanes_cost
from ..model.estimate import ProgramEstimate
from ..model.geometry import Geometry
from .cpu import ALIKE, chunks_of, orders_of, register_tiles
from .lanes import LaneNest
from .program import RProgram
from .search import Search


def construct_lanes(search: Search, top: int) -> list[tuple[RProgram, ProgramEstimate]]:
    """Return ranked candidates of recipe cpu.lanes: register tile and chunks of the outputs, all lanes in the tile."""
    nest, device = search.nest, search.device
    assert isinstance(nest, LaneNest)
    expression = search.geometry.expression
    search.geometry = g = Geometry.of(expression, nest.anchor, nest.inlined)
    if len(g.spatial) < 2 or g.stage.uneven:
        return []
    *first, last = nest.merges
    merges = [
        *(Geometry.of(expression, name, nest.inlined) for name in first),
        Geometry.of(expression, last, nest.inlined, nest.output),
    ]
    rates = CpuRates.of(device, g)
    lanes = g.spatial[-1]
    stored = expression.tensors[nest.output].bytes + merges[-1].epilogue_bytes
    found = []
    for tile in register_tiles(search, rates):
        if tile[lanes] < g.extents[lanes]:
            continue
        cost, of_tile = lanes_cost(g, merges, tile, rates), []
        for chunk in chunks_of(search, tile, device.units):
            estimates = []
            for order in orders_of(g, chunk, tile):
                search.considered += 1
                estimates.append((tiled_estimate(g, device, chunk, tile, order, cost=cost, stored=stored), order))
            least = min(e.seconds for e, _ in estimates)
            estimate, order = next(e for e in estimates if e[0].seconds <= least * (1 + ALIKE))
            of_tile.append((estimate.seconds, chunk, tile, order, estimate))
        found += sorted(of_tile, key=lambda c: c[0])[: max(2, top // 3)]
    found.sort(key=lambda c: c[0])
    programs = []
    for _, chunk, tile, order, estimate in found[: 2 * top]:
        tiles = (search.rtile("l2", chunk), search.rtile("register", tile))
        choices = tuple((f"order:{g.axes[axis]}", n) for n, axis in enumerate(order))
        programs.append((search.program("cpu.lanes", tiles, choices, nest.merges), estimate))
    return programs
