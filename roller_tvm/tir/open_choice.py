"""Kernels of open extents: which of them runs, by the size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .nodes import PACKING, analyzer_of_tvm, buffer_of, key, structurally_equal
from .open_axes import OpenAxes
from .open_places import realized, refused


@dataclass(frozen=True)
class TiledKernel:
    """A kernel that computes any size from its tile on.

    Parameters
    ----------
    body : Stmt
    packing : tuple of Stmt
        Statements that pack its constants.
    allocated : tuple of Buffer
        Buffers of both.
    least : tuple of int
        Smallest size of each open axis.
    """

    body: Any
    packing: tuple[Any, ...]
    allocated: tuple[Any, ...]
    least: tuple[int, ...]


@dataclass(frozen=True)
class Instead:
    """A statement that runs instead of all kernels, where a condition holds.

    Parameters
    ----------
    condition : Expr
    body : Stmt
    param : Buffer
        An operand of its own, behind the inputs.
    position : int
        Of the operand among the parameters.
    """

    condition: Any
    body: Any
    param: Any
    position: int


def chosen(
    axes: OpenAxes, kernels: Sequence[TiledKernel], conditions: Sequence[Any] | None, launched: bool = False,
    instead: Instead | None = None,
) -> Any:  # fmt: skip
    """Return the function that runs the first kernel whose condition holds; the last one has none.

    Without conditions all kernels run, in turn. Kernels that are `launched` on a device stand in loops of one turn or
    none: TVM puts no barrier into what stands behind a condition.

    Raises
    ------
    MeasureError
        The kernels pack a constant in different ways.
    """
    import tvm_ffi
    from tvm import s_tir, tirx

    first = kernels[0]
    allocated, bodies = list(first.allocated), [first.body]
    for other in kernels[1:]:
        if len(other.packing) != len(first.packing):
            raise refused("the kernels of a function pack different constants")
        same: dict[int, Any] = {}
        for mine, its in zip(first.packing, other.packing, strict=True):
            same[key(_packed(its))] = _packed(mine)
        body = tvm_ffi.structural_map(other.body, (tirx.Var, lambda v, s=same: s.get(key(v), v)), order="post")
        for mine, its in zip(first.packing, other.packing, strict=True):
            again = tvm_ffi.structural_map(its, (tirx.Var, lambda v, s=same: s.get(key(v), v)), order="post")
            if not structurally_equal(mine, again):
                raise refused("the kernels of a function pack a constant in different ways")
        bodies.append(body)
        allocated += [b for b in other.allocated if key(b) not in same]
    body = bodies[-1]
    if conditions is None:
        body = tirx.SeqStmt(bodies) if len(bodies) > 1 else body
    elif launched:
        body = _launched(axes, bodies, conditions)
    else:
        for made, condition in reversed(list(zip(bodies[:-1], conditions, strict=True))):
            body = tirx.IfThenElse(condition, made, body)
    params = list(axes.func.params)
    if instead is not None:
        body = tirx.IfThenElse(instead.condition, instead.body, body)
        params.insert(instead.position, instead.param)
    root = s_tir.SBlock([], [], [], "root", tirx.SeqStmt([*first.packing, body]) if first.packing else body,
                        alloc_buffers=allocated)  # fmt: skip
    func = axes.func
    made = tirx.PrimFunc(params, s_tir.SBlockRealize([], True, root), func.ret_type, func.attrs)
    return s_tir.renew_defs(made)


def _launched(axes: OpenAxes, bodies: Sequence[Any], conditions: Sequence[Any]) -> Any:
    """Kernels one after the other, of which the first one whose condition holds has a turn; none without elements."""
    from tvm import s_tir, tirx

    if not axes.axes:  # open places alone, as of a last row
        return bodies[0]
    some = tirx.all(*(axis.extent >= 1 for axis in axes.axes))
    made, before = [], tirx.const(False, "bool")
    for body, condition in zip(bodies, [*conditions, some], strict=True):
        own = analyzer_of_tvm().simplify(tirx.And(condition, tirx.Not(before)))
        before = tirx.Or(before, condition)
        turns = tirx.Cast("int64", own)
        # A block of its own: TVM lowers reductions by several threads where one block alone writes the result.
        alone = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "kernel", body))
        made.append(tirx.For(tirx.Var("turn", "int64"), tirx.const(0, "int64"), turns, tirx.ForKind.SERIAL, alone))
    return tirx.SeqStmt(made) if len(made) > 1 else made[0]


def _packed(statement: Any) -> Any:
    block, _ = next(iter(realized(statement)))
    return buffer_of(block.writes[0])


def packs(statement: Any) -> bool:
    """Return whether a statement packs a constant."""
    return any(PACKING in (block.annotations or {}) for block, _ in realized(statement))
