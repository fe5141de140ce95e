"""Construction of recipe cpu.direct: vectorised rows with outer rows in parallel, or one loop shared by threads."""

from __future__ import annotations

from math import ceil, prod

from ..model.cpu import CpuRates
from ..model.cpu_direct import direct_estimate
from ..model.estimate import ProgramEstimate
from ..model.geometry import Geometry, Tile
from .align import Rejection
from .cpu import filled, single_vectors
from .program import RProgram
from .search import Search


def construct_direct(search: Search, top: int) -> list[tuple[RProgram, ProgramEstimate]]:
    """Return ranked candidates of recipe cpu.direct: how many outer axes run in parallel, how long the vectors are."""
    g, device = search.geometry, search.device
    rates = CpuRates.of(device, g)
    found: list[tuple[RProgram, ProgramEstimate]] = []
    last = g.vector_axis
    vectors, alone = [0], search.nest.output == search.nest.anchor
    uneven = last is not None and g.axes[last] in g.stage.uneven
    if last is not None and not uneven and not search.reject(_vectorisable(search, last)):
        # Shorter ones too: TVM takes vectors apart that straddle blocks of a layout.
        vectors = single_vectors(g.extents[last], rates.lanes, 4)
        # Unless it is alone, a region is computed inside a vector's loop.
        vectors = [v for v in vectors if alone or g.stage.axes[last].is_box(v)] or [0]
    only = last is not None and not uneven and all(g.extents[i] == 1 for i in g.spatial if i != last)
    for outer in range(len(g.spatial) + 1):
        for vector in vectors:
            if (chunk := _chunk(g, outer, vector, device.units if only and not vector else 0)) is None:
                continue
            search.considered += 1
            chunks = prod(ceil(e / c) for e, c in zip(g.extents, chunk, strict=True))
            estimate = direct_estimate(g, device, chunks, vector)
            tile = tuple(
                e if i in g.reduce else (vector or 1) if i == last else 1 for i, e in enumerate(g.extents)
            )
            tiles = (search.rtile("l2", chunk), search.rtile("register", tile))
            program = search.program("cpu.direct", tiles, (("parallel", outer), ("vector", vector)))
            found.append((program, estimate))
    # At equal times, the fewest axes in parallel.
    return sorted(found, key=lambda c: c[1].seconds)[: 2 * top]


def _chunk(g: Geometry, outer: int, vector: int, units: int) -> Tile | None:
    """Return the extents of one task if `outer` loops run in parallel; None if there are not so many.

    Parameters
    ----------
    units : int
        Number of tasks that share the last axis, if it is the only loop and has no vectors; else 0.
    """
    last = g.vector_axis
    if units and outer == len(g.spatial):
        return tuple(ceil(e / units) if i == last else e for i, e in enumerate(g.extents))
    # The loops that run in parallel, in order; the vectors of the last axis are one of them.
    leading = [i for i in g.spatial if i != last or 1 < vector < g.extents[last]][:outer]
    if len(leading) < outer or (outer and g.extents[leading[-1]] == 1):
        return None
    return tuple((vector if i == last else 1) if i in leading else e for i, e in enumerate(g.extents))


def _vectorisable(search: Search, last: int) -> Rejection | None:
    """Return rule 1's rejection on a CPU if the axis's longest vector leaves over half of the lanes idle, else None."""
    g = search.geometry
    lanes = CpuRates.of(search.device, g).lanes
    longest = single_vectors(g.extents[last], lanes, 4)[0]
    if 1 < longest == g.extents[last] or 2 * filled(longest, lanes) >= 1:
        return None
    return Rejection(
        "execution unit",
        f"vectors of {lanes // 2} elements of '{g.axes[last]}'",
        str(longest),
        "pad the axis to a length with a larger divisor",
    )
