"""Products with an operand whose rows run across the vectors: ``A B^T`` with a B that is no constant.

Its vectors would be gathered, element by element, for every multiply-add of a column. If panels of it are copied, and
turned on the way, they are loaded. The schedule then has to change the layout of a copy (see ``features``).
"""

from __future__ import annotations

from dataclasses import replace

from ..model.estimate import ProgramEstimate
from ..model.geometry import Geometry, Operand
from .cpu import construct_packed
from .program import RProgram
from .search import Search


def turned_operands(geometry: Geometry) -> tuple[Operand, ...]:
    """Return the operands with gathered vectors that are stored exactly as they are read, and read several times.

    Examples
    --------
    >>> from roller_tvm.expr.operators import matmul
    >>> [op.name for op in turned_operands(Geometry.of(matmul(m=8, n=8, k=8, layout="NT"), "matmul"))]
    ['B']
    >>> turned_operands(Geometry.of(matmul(m=8, n=8, k=8, layout="NN"), "matmul"))
    ()
    """
    last = geometry.vector_axis
    if last is None:
        return ()
    names = [op.name for op in geometry.operands]
    looped = {i for i in geometry.spatial if geometry.extents[i] > 1}

    def plain(op: Operand) -> bool:
        whole = all(len(dim) == 1 and dim[0][1] == 1 for dim in op.dims) and op.plain and not op.divided
        return whole and not op.constant and names.count(op.name) == 1

    return tuple(
        op for op in geometry.operands
        if last in op.axes and op.stride_of(last) != 1 and looped - op.axes and plain(op)
    )  # fmt: skip


def turned_search(search: Search) -> tuple[Search, frozenset[str]] | None:
    """Return a search in which these operands are read from their copies, and their names; None if there are none."""
    own = turned_operands(search.geometry)
    if not own:
        return None
    geometry = search.geometry
    read = tuple(replace(op, constant=True) if op in own else op for op in geometry.operands)
    return replace(search, geometry=replace(geometry, operands=read)), frozenset(op.name for op in own)


def construct_turned(search: Search, top: int) -> list[tuple[RProgram, ProgramEstimate]]:
    """Return ranked candidates of recipe cpu.tiled that copy panels and turn them."""
    found = turned_search(search)
    if found is None or not search.geometry.spatial:
        return []
    turned, names = found
    plans = construct_packed(turned, [names], top)
    search.considered = turned.considered
    return plans
