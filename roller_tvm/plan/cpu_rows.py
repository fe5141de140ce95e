"""Construction of recipe cpu.rows: one parallel loop over rows, every stage inside it."""

from __future__ import annotations

from math import prod

from ..device import DeviceSpec
from ..expr import Stage
from ..model.cpu import CpuRates, calls_of
from ..model.cpu_rows import rows_estimate
from ..model.estimate import ProgramEstimate
from ..model.geometry import Geometry
from .program import RProgram
from .rows import RowNest
from .search import Search


def construct_rows(search: Search, top: int) -> list[tuple[RProgram, ProgramEstimate]]:
    """Return candidates of recipe cpu.rows: the rows in parallel, or one after the other on the calling thread."""
    nest, g = search.nest, search.geometry
    assert isinstance(nest, RowNest)
    expression = g.expression
    stages = [*nest.kept, nest.output]
    vectors = {name: row_vector(expression.stage(name), nest, search.device, g) for name in stages}
    rows = prod(a.extent for a in expression.stage(nest.output).spatial[: nest.rows])
    row = tuple(1 if n < nest.rows else e for n, e in enumerate(g.extents))
    inner = tuple(
        vectors[nest.anchor] or 1 if i == g.vector_axis else 1 if i in g.spatial_set else e for i, e in enumerate(row)
    )
    tiles = (search.rtile("l2", row), search.rtile("register", inner))
    found = []
    for parallel in (True, False)[rows == 1 :]:
        search.considered += 1
        estimate = rows_estimate(expression, search.device, stages, nest.inlined, vectors, rows, parallel)
        wide = tuple((f"vector:{name}", v) for name, v in vectors.items() if v)
        choices = (("rows", nest.rows), ("parallel", int(parallel)), *wide)
        found.append((search.program("cpu.rows", tiles, choices, nest.kept), estimate))
    return sorted(found, key=lambda c: c[1].seconds)


def row_vector(stage: Stage, nest: RowNest, device: DeviceSpec, geometry: Geometry) -> int:
    """Return the length of a stage's vectors: the most lanes, by halves, that divide its last axis; 0 for none.

    If vectors may stand over an edge: all lanes, provided that a row fills them once.

    A stage that calls a function for every element gains nothing from vectors: the calls take them apart.
    Exp and the like are computed in vectors.
    """
    own = Geometry.of(geometry.expression, stage.name, nest.inlined)
    last = own.vector_axis
    calls = calls_of(stage.ops, *(op.functions for op in own.operands if last in op.axes))
    if last is None or last < nest.rows or calls or any(op.stride_of(last) > 1 for op in own.operands):
        return 0
    rates = CpuRates.of(device, own)
    lanes, guarded = rates.lanes, any(op.guarded for op in own.operands)
    if rates.edge_vectors and own.extents[last] >= lanes and not guarded and not own.stage.axes[last].part_of:
        return lanes
    while lanes > 2 and own.extents[last] % lanes:
        lanes //= 2
    return lanes if own.extents[last] % lanes == 0 and lanes > 2 else 0
