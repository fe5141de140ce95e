"""Predicted time of stages that are computed tile by tile, each with the halo that its readers need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..device import DeviceSpec
from ..ir import Access, Index, Stage, TensorExpression
from ..ir.stage import Ops, dtype_bytes
from ..roller.candidates import Column
from .cpu import calls_of, instructions, launch_seconds
from .cpu_constants import CALL, GATHERED_SLOTS, GUARDED_LOADS, ROW_OVERHEAD, STAGE_OVERHEAD, TILES_EXPOSED
from .cpu_rates import CpuRates, of_bytes
from .estimate import LevelColumn, Times

#: First and last index along a dimension.
Span = tuple[Column, Column]


@dataclass(frozen=True)
class Point:
    """The work of a point of a stage, with the stages that are computed in place there.

    Parameters
    ----------
    reads : tuple of Access
        Distinct ones of stored tensors.
    ops : tuple of (kind, count)
    """

    stage: Stage
    reads: tuple[Access, ...]
    ops: Ops


def spans(expression: TensorExpression, points: Sequence[Point], tile: Sequence[Column]) -> dict[str, list[Span]]:
    """Return what a tile of the last stage needs: of each tensor, first and last index of each dimension.

    Parameters
    ----------
    points : sequence of Point
        In order; each reads those before it and tensors that are stored elsewhere.
    tile : sequence of column
        Extents of a tile of the last stage; it is that at the origin.

    Examples
    --------
    >>> from roller_tvm.ir.operators import operator
    >>> pool = operator("max_pool2d", n=1, c=8, h=9, w=9, k=3, padding=1)
    >>> points = [Point(stage, stage.reads, stage.ops) for stage in pool.stages]
    >>> [int(last) for _, last in spans(pool, points, [1, 1, 4, 4])["pad"]]
    [0, 0, 5, 5]
    """
    output = points[-1].stage
    found: dict[str, list[Span]] = {output.name: [(0, extent - 1) for extent in tile]}
    for point in reversed(points):
        at = dict(zip((axis.name for axis in point.stage.spatial), found[point.stage.name], strict=True))
        at |= {axis.name: (0, axis.extent - 1) for axis in point.stage.reduce}
        for access in point.reads:
            shape = expression.tensors[access.tensor].shape
            own = [_span(index, at, extent) for index, extent in zip(access.indices, shape, strict=True)]
            known = found.get(access.tensor)
            found[access.tensor] = own if known is None else list(map(_both, known, own))
    return found


def _span(index: Index, at: Mapping[str, Span], extent: int) -> Span:
    if index.opaque:
        return 0, extent - 1
    first = last = index.const
    for axis, c in index.terms:
        low, high = at[axis] if c > 0 else at[axis][::-1]
        first, last = first + c * low, last + c * high
    first, last = first // index.divisor, last // index.divisor
    return first, np.minimum(last, first + extent - 1)


def _both(one: Span, other: Span) -> Span:
    return np.minimum(one[0], other[0]), np.maximum(one[1], other[1])


def stage_times(
    expression: TensorExpression, device: DeviceSpec, points: Sequence[Point], tile: Sequence[Column]
) -> Times:  # fmt: skip
    """Return the times of candidates: tiles of the last stage, each computed by one core through all stages.

    Parameters
    ----------
    points, tile
        As of `spans`.
    """
    rates = rates_of(device, points)
    need = spans(expression, points, tile)
    extents = {name: [last - first + 1 for first, last in own] for name, own in need.items()}
    held = {name: prod(own) * dtype_bytes(expression.tensors[name].dtype) for name, own in extents.items()}
    output, made = points[-1].stage, {point.stage.name for point in points}
    tiles: Column = prod([-(-axis.extent // own) for axis, own in zip(output.spatial, tile, strict=True)])
    core: Column = 0.0
    flops: Column = 0
    between: Column = 0.0
    for point in points:
        stage, own = point.stage, extents[point.stage.name]
        core = core + point_cycles(point, own, rates)
        if stage is not output:
            readers = sum(any(a.tensor == stage.name for a in other.reads) for other in points)
            between = between + (1 + readers) * held[stage.name]
        flops = flops + prod(own) * prod(a.extent for a in stage.reduce) * sum(n for _, n in point.ops)
    outside = [name for name in held if name not in made]
    whole = sum(expression.tensors[name].bytes for name in outside)
    # Lines that are written are read before.
    moved = whole + 2 * expression.tensors[output.name].bytes
    again = np.maximum(0.0, tiles * sum(held[name] for name in outside) - whole)
    working = sum(held.values())
    near, level = _near(rates, working)
    # Rows that the next row of tiles reads again have left the nearest cache.
    cached = tiles * between * near + again * np.maximum(near, 1 / rates.caches[min(1, len(rates.caches) - 1)][2])
    waves = -(-tiles // device.units)
    busiest = waves / tiles
    parts = np.stack(np.broadcast_arrays(tiles * core * busiest, cached * busiest, moved * busiest / rates.far))
    arithmetic, passing = parts[0], parts[1] + parts[2]  # what comes from memory passes the caches, too
    cycles = np.maximum(arithmetic, passing) + TILES_EXPOSED * np.minimum(arithmetic, passing)
    seconds = cycles * rates.cycle + launch_seconds(device, tiles)
    bounds = ("compute", "cache", device.far.name)
    share = rates.cycle / device.units
    levels = (LevelColumn(device.far.name, moved, moved / rates.far * share),
              LevelColumn(level, tiles * between, cached * share))  # fmt: skip
    return Times(
        seconds, tiles * core * rates.cycle / device.units, levels, bounds, parts.argmax(axis=0),
        int(np.min(tiles * flops)), tiles, waves, 0, working, 1 / (busiest * device.units),
    )  # fmt: skip


def rates_of(device: DeviceSpec, points: Sequence[Point]) -> CpuRates:
    """Return the rates of a core; the widest type of the stages sets the lanes of a register."""
    return of_bytes(device, max(dtype_bytes(point.stage.dtype) for point in points))


def _near(rates: CpuRates, working: Column) -> tuple[Column, str]:
    """Return the cycles that a byte between two stages takes, beyond loads and stores of the nearest cache."""
    name, nearest, _ = rates.caches[0]
    levels = [(own, capacity, 1 / rate) for own, capacity, rate in rates.caches[1:]]
    cost: Column = 1 / rates.far
    for _, capacity, each in reversed(levels):
        cost = np.where(np.less_equal(working, capacity), each, cost)
    return np.where(np.less_equal(working, nearest), 0.0, cost), levels[0][0] if levels else name


def point_cycles(point: Point, extents: Sequence[Column], rates: CpuRates) -> Column:
    """Return the cycles of a stage's part of a tile, in vectors of its last axis."""
    *outer, row = extents
    terms = prod(axis.extent for axis in point.stage.reduce)
    last = point.stage.spatial[-1].name
    loads = sum(load_slots(access, last, rates) for access in point.reads)
    vector = terms * (instructions(point.ops) / rates.fma + loads / rates.loads) + 1 / rates.stores
    calls = terms * calls_of(point.ops) * CALL
    rows = prod(outer)
    vectors = row // rates.lanes + row % rates.lanes  # a vector over the edge is taken apart
    return rows * (vectors * vector + row * calls + ROW_OVERHEAD) + STAGE_OVERHEAD


def load_slots(access: Access, last: str, rates: CpuRates) -> float:
    """Return the load slots of a vector of an access.

    Every second or third element is picked out of vectors of neighbours; others are loaded one by one.
    """
    guard = GUARDED_LOADS if access.guarded else 0
    if any(index.opaque for index in access.indices):
        return guard + GATHERED_SLOTS * rates.lanes
    *before, end = access.indices
    if any(last in index.axes for index in before) or end.clamped:
        return guard + GATHERED_SLOTS * rates.lanes
    stride = abs(end.coefficient(last))
    if end.divisor > 1 and stride:
        return guard + GATHERED_SLOTS * rates.lanes
    if stride > 1:
        return guard + GATHERED_SLOTS * min(stride, rates.lanes)
    return guard + 1.0
