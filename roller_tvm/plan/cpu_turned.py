"""Products along whose vectors an operand has rows: ``A B^T``, where B is no constant.

Its vectors would be gathered, element by element, for every multiply-add of a column. Copied a panel at a time, and
turned on the way, they are loaded: what a schedule needs words for that change the layout of a copy (see ``features``).
"""

from __future__ import annotations

from dataclasses import replace

from ..model.estimate import ProgramEstimate
from ..model.geometry import Geometry, Operand
from .cpu import construct_packed
from .program import RProgram
from .search import Search


def turned_operands(geometry: Geometry) -> tuple[Operand, ...]:
    """Operands whose vectors are gathered, whose elements lie in memory as they are read, and are used again.

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
    """The construction in which these operands are read as their copies are, and their names; None without any."""
    own = turned_operands(search.geometry)
    if not own:
        return None
    geometry = search.geometry
    read = tuple(replace(op, constant=True) if op in own else op for op in geometry.operands)
    return replace(search, geometry=replace(geometry, operands=read)), frozenset(op.name for op in own)


def construct_turned(search: Search, top: int) -> list[tuple[RProgram, ProgramEstimate]]:
    """Ranked candidates of recipe cpu.tiled that copy panels and turn them."""
    found = turned_search(search)
    if found is None or not search.geometry.spatial:
        return []
    turned, names = found
    plans = construct_packed(turned, [names], top)
    search.considered = turned.considered
    return plans
