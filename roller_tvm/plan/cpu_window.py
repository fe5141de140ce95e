"""Construction of recipe cpu.window: depthwise convolutions and pooling, which reduce nothing but windows."""

from __future__ import annotations

from itertools import product
from math import prod

from ..model.cpu import CpuRates
from ..model.cpu_window import tile_cycles, window_estimate, window_use
from ..model.estimate import ProgramEstimate
from ..model.geometry import Geometry, Tile
from .align import aligned_extents
from .cpu import ALIKE, REGISTER_TILES, UNROLLED_LOADS, WINDOW, chunks_of, orders_of, row_vectors, vector_tiles
from .program import RProgram
from .search import Search

# Share of a register: vectors that fill less are not worth an unrolled tile if others fill more.
HALF = 0.5


def slides_only(geometry: Geometry) -> bool:
    """Return whether a nest reduces nothing but short sliding windows.

    Examples
    --------
    >>> from roller_tvm.expr.operators import operator
    >>> conv = operator("conv2d_nchw", n=1, c=8, h=8, w=8, f=8, k=3)
    >>> pool = operator("max_pool2d", n=1, c=8, h=8, w=8, k=3, stride=2)
    >>> [slides_only(Geometry.of(e, e.anchor_name)) for e in (conv, pool)]
    [False, True]
    """
    g = geometry
    dims = [{a for a, _ in dim if g.extents[a] > 1} for op in g.operands for dim in op.dims]
    sliding = {a for dim in dims if dim & g.spatial_set for a in dim}
    reduced = {i for i in g.reduce if g.extents[i] > 1}
    return bool(reduced) and reduced <= sliding and all(g.extents[i] <= WINDOW for i in reduced)


def window_tiles(search: Search, rates: CpuRates) -> list[Tile]:
    """Return register tiles, tiled along overlapping windows, one vector wide, by cycles per output."""
    g = search.geometry
    points = prod(g.extents[i] for i in g.reduce)
    sliding = {a for op in g.operands for dim in op.dims if len(dim) > 1 for a, _ in dim}
    options: list[list[int]] = []
    for i, extent in enumerate(g.extents):
        if i in g.reduce:
            sizes = [1]
        elif i == g.vector_axis:
            sizes = vector_tiles(extent, rates.lanes, 2, HALF)
        else:
            sizes = aligned_extents(extent, 0.0, most=rates.registers // 2) if i in sliding else [1]
        options.append([e for e in sizes if g.stage.axes[i].is_box(e)] or [1])
    scored: list[tuple[float, int, Tile]] = []
    for tile in product(*options):
        use = window_use(g, tile, rates)
        if use.sums > rates.registers // 2 or use.sums * points > UNROLLED_LOADS or not g.stage.is_box(tile):
            continue
        search.considered += 1
        outputs = prod(tile[i] for i in g.spatial)
        scored.append((sum(tile_cycles(g, tile, use, rates)) / outputs, -use.sums, tile))
    scored.sort()
    return [t for _, _, t in scored[:REGISTER_TILES]]


def construct_window(search: Search, top: int) -> list[tuple[RProgram, ProgramEstimate]]:
    """Return ranked candidates of recipe cpu.window."""
    g, device = search.geometry, search.device
    if not g.spatial or not g.operands or not slides_only(g):
        return []
    rates = CpuRates.of(device, g)
    found: list[tuple[float, RProgram, ProgramEstimate]] = []
    for tile in window_tiles(search, rates):
        of_tile = []
        for chunk in chunks_of(search, tile, device.units):
            for order in orders_of(g, chunk, tile):
                search.considered += 1
                of_tile.append((window_estimate(g, device, chunk, tile, order), chunk, order))
        if not of_tile:
            continue
        least = min(e.seconds for e, _, _ in of_tile)
        alike = [c for c in of_tile if c[0].seconds <= least * (1 + ALIKE)]
        rest = sorted((c for c in of_tile if c not in alike), key=lambda c: c[0].seconds)
        for estimate, chunk, order in [*alike[:1], *rest[:1]]:
            found.append((estimate.seconds, _program(search, chunk, tile, order), estimate))
    found.sort(key=lambda c: c[0])
    return [(program, estimate) for _, program, estimate in found[: 2 * top]]


def _program(search: Search, chunk: Tile, tile: Tile, order: tuple[int, ...]) -> RProgram:
    g = search.geometry
    tiles = (search.rtile("l2", chunk), search.rtile("register", tile))
    choices = tuple((f"order:{g.axes[axis]}", n) for n, axis in enumerate(order))
    choices += tuple((f"unroll:{g.axes[i]}", g.extents[i]) for i in reversed(g.reduce) if g.extents[i] > 1)
    return search.program("cpu.window", tiles, choices + row_vectors(search, tile))
