"""Construction of recipe cpu.axpy: products whose rows no vectors divide, 521 elements long for instance.

A register tile has to divide its axes; along a prime axis it is one element wide. Recipe cpu.axpy keeps a whole row of
sums in the nearest cache instead. LLVM, which may leave a remainder, vectorises the loop along it.
"""

from __future__ import annotations

from math import ceil

from ..model.cpu import CpuRates, tiled_estimate
from ..model.cpu_axpy import axpy_cost
from ..model.estimate import ProgramEstimate
from ..model.geometry import Geometry, Tile
from .align import Rejection, capacity
from .program import RProgram
from .search import Search


def construct_axpy(search: Search, top: int) -> list[tuple[RProgram, ProgramEstimate]]:
    """Return ranked candidates of recipe cpu.axpy: how many outer axes run in parallel."""
    g, device = search.geometry, search.device
    last = g.vector_axis
    if last is None or not g.operands:
        return []
    rates = CpuRates.of(device, g)
    row = g.extents[last] * g.output_bytes * sum(last in op.axes for op in g.operands)
    if search.reject(_even(g, rates)) or search.reject(
        capacity(device.levels[-2].name, row, int(rates.caches[0][1]), "split the axis")
    ):
        return []
    rest = [i for i in g.spatial if i != last]
    tile = tuple(e if i == last else 1 for i, e in enumerate(g.extents))
    whole = tuple(e if i in g.reduce else t for i, (e, t) in enumerate(zip(g.extents, tile, strict=True)))
    cost, found = axpy_cost(g, rates), []
    for outer in range(1, len(rest) + 1):
        if g.extents[rest[outer - 1]] == 1:
            continue
        search.considered += 1
        chunk = _share(g, rest[:outer], device.units)
        order = tuple(i for i in rest if chunk[i] > 1)
        estimate = tiled_estimate(g, device, chunk, tile, order, cost=cost)
        tiles = (search.rtile("l2", chunk), search.rtile("register", whole))
        found.append((search.program("cpu.axpy", tiles, (("parallel", outer),)), estimate))
    return sorted(found, key=lambda c: c[1].seconds)[:top]


def _even(g: Geometry, rates: CpuRates) -> Rejection | None:
    """Return a rejection if a register tile serves as well or a row cannot be vectorised, else None."""
    last = g.vector_axis
    assert last is not None
    told = ("execution unit", f"rows of '{g.axes[last]}' that vectors do not divide")
    if g.extents[last] <= rates.lanes:
        return Rejection(*told, f"{g.extents[last]} elements", "a row that short is a vector")
    if g.extents[last] % rates.lanes == 0:
        return Rejection(*told, str(g.extents[last]), "take recipe cpu.tiled")
    if any(last in op.axes and op.stride_of(last) != 1 or last in op.guard_axes for op in g.operands):
        return Rejection(*told, "elements apart, or checked one by one", "store the operand in another layout")
    return None


def _share(g: Geometry, leading: list[int], units: int) -> Tile:
    """Return one core's share of the parallel loops: neighbouring iterations."""
    share, left = list(g.extents), units
    for i in leading:
        share[i] = ceil(g.extents[i] / left)
        left = ceil(left / g.extents[i])
    return tuple(share)
