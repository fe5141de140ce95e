"""Products with constants whose columns no vectors divide: constants read as stored, vectors over the edge.

A packed constant needs whole register tiles, as it is packed in the order in which they read it. 1000 columns are not
a multiple of 16; in vectors of 10, a third of the lanes is idle.
"""

from __future__ import annotations

from dataclasses import replace

from ..model.cpu import CpuRates
from ..model.estimate import ProgramEstimate
from ..model.geometry import Tile
from .cpu import construct_packed, register_tiles
from .program import RProgram
from .search import Search


def stored_search(search: Search) -> tuple[Search, list[Tile]] | None:
    """Return a search in which constants stay as stored, and its register tiles; None if packed constants serve as
    well.

    Examples
    --------
    >>> from roller_tvm.device import cpu_device
    >>> from roller_tvm.expr.operators import matmul
    >>> from roller_tvm.model.geometry import Geometry
    >>> stored_search(Search(Geometry.of(matmul(m=64, n=521, k=64), "matmul"), cpu_device(), None, 0.0)) is None
    True
    """
    g, last = search.geometry, search.geometry.vector_axis
    if last is None or not any(op.constant and last in op.axes for op in g.operands):
        return None
    rates = CpuRates.of(search.device, g)
    if not g.extents[last] % rates.lanes:
        return None
    stored = replace(search, geometry=replace(g, operands=tuple(replace(op, constant=False) for op in g.operands)))
    tiles = [t for t in register_tiles(stored, rates, over=True) if g.extents[last] % t[last]]
    return (stored, tiles) if tiles else None


def construct_stored(search: Search, top: int) -> list[tuple[RProgram, ProgramEstimate]]:
    """Return ranked candidates of recipe cpu.tiled that read constants as they are stored."""
    if (found := stored_search(search)) is None:
        return []
    stored, tiles = found
    plans = construct_packed(stored, [frozenset()], top, tiles)
    search.considered = stored.considered
    return plans
