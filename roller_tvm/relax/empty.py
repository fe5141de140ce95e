"""Reductions of no terms: their value is the one that they begin with (0 of a sum), which TVM never writes.

TVM sets the initial value in the first trip of a reduction's loops. Where these have no trip, the result stays
what its memory held before. Running sums, on the other hand, write their first element even if there is none.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from ..tir.nodes import REDUCTION, key, variables
from .modules import each_function, each_prim_func


@tvm.transform.module_pass(opt_level=0, name="EmptyReductions")
class EmptyReductions:
    """Make a reduction over an axis of extent 0 store its initial value, in every PrimFunc.

    Put it behind ``LegalizeOps``, before anything folds or fuses.

    Examples
    --------
    >>> mod = EmptyReductions()(mod)
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its PrimFuncs rewritten."""
        return each_prim_func(mod, with_values_of_none)


@tvm.transform.module_pass(opt_level=0, name="ScansOfNothing")
class ScansOfNothing:
    """Replace running sums and products of tensors without elements, whose loop writes behind their memory.

    Put it before ``DispatchSortScan``.

    Examples
    --------
    >>> mod = ScansOfNothing()(mod)
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its functions rewritten."""
        return each_function(mod, lambda f: _WithoutScans(mod).visit_expr(f), False)


@relax.expr_functor.mutator
class _WithoutScans(relax.PyExprMutator):
    def visit_call_(self, op: Any) -> Any:
        op = super().visit_call_(op)
        if getattr(op.op, "name", "") not in ("relax.cumsum", "relax.cumprod"):
            return op
        shape = getattr(op.ty, "shape", None)
        nothing = shape is not None and any(getattr(extent, "value", None) == 0 for extent in shape.values)
        return relax.op.zeros(shape, str(op.ty.dtype)) if nothing else op


@tvm.transform.module_pass(opt_level=0, name="LoopsOfSome")
class LoopsOfSome:
    """Guard loops that TVM wrote by hand, running sums say, by the open extents of their result: one may be 0.

    Put it behind ``DispatchSortScan``, for CPUs.

    Examples
    --------
    >>> mod = LoopsOfSome()(mod)
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its PrimFuncs rewritten."""
        return each_prim_func(mod, with_guarded_loops)


def with_guarded_loops(func: Any) -> Any:
    """A PrimFunc whose blocks of a hand-written loop do nothing if all that they write is a tensor without elements."""

    def guarded(block: Any) -> Any:
        if block.iter_vars or block.reads or block.writes:
            return block
        written: dict[int, Any] = {}
        inside: list[Any] = []
        tvm_ffi.structural_walk(block.body, [
            (tirx.BufferStore, lambda n: written.update({key(n.buffer): n.buffer})), (s_tir.SBlock, inside.append),
        ])  # fmt: skip
        extents = [e for buffer in written.values() for e in buffer.shape if not hasattr(e, "value")]
        if inside or len(written) != 1 or not extents:
            return block
        body = tirx.IfThenElse(tirx.all(*(e > 0 for e in extents)), block.body, None)
        return s_tir.SBlock([], [], [], block.name_hint, body, block.init, list(block.alloc_buffers),
                            list(block.match_buffers), dict(block.annotations))  # fmt: skip

    return tvm_ffi.structural_map(func, [(s_tir.SBlock, guarded)], order="post")


def with_values_of_none(func: Any) -> Any:
    """A PrimFunc whose reductions over no element store their initial values."""
    gone: set[int] = set()

    def realized(node: Any) -> Any:
        block = node.block
        if block.init is None or not any(_empty(axis) for axis in block.iter_vars):
            return node
        kept = [(axis, value) for axis, value in zip(block.iter_vars, node.iter_values, strict=True)
                if int(axis.iter_type) != REDUCTION]  # fmt: skip
        gone.update(key(value) for axis, value in zip(block.iter_vars, node.iter_values, strict=True)
                    if int(axis.iter_type) == REDUCTION)  # fmt: skip
        made = s_tir.SBlock(
            [axis for axis, _ in kept], [], list(block.writes), block.name_hint, block.init, None,
            list(block.alloc_buffers), list(block.match_buffers), dict(block.annotations),
        )  # fmt: skip
        return s_tir.SBlockRealize([value for _, value in kept], node.predicate, made)

    def loop(node: Any) -> Any:
        return node.body if key(node.loop_var) in gone else node

    return tvm_ffi.structural_map(func, [(s_tir.SBlockRealize, realized), (tirx.For, loop)], order="post")


def _empty(axis: Any) -> bool:
    return int(axis.iter_type) == REDUCTION and getattr(axis.dom.extent, "value", None) == 0


@tvm.transform.module_pass(opt_level=0, name="InitialValuesFirst")
class InitialValuesFirst:
    """Set the initial values of reductions over open extents before their loops, in every PrimFunc.

    An open extent may be 0 when the model runs.
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its PrimFuncs rewritten."""
        return each_prim_func(mod, with_initial_values_first)


def with_initial_values_first(func: Any) -> Any:
    """A PrimFunc in which the initial value of each reduction over an open extent is a block of its own."""
    reduced: dict[str, set[int]] = {}

    def seen(node: Any) -> None:
        axes = [(axis, value) for axis, value in zip(node.block.iter_vars, node.iter_values, strict=True)
                if int(axis.iter_type) == REDUCTION]  # fmt: skip
        if node.block.init is not None and any(not hasattr(axis.dom.extent, "value") for axis, _ in axes):
            reduced[str(node.block.name_hint)] = set().union(*(variables(value) for _, value in axes))

    tvm_ffi.structural_walk(func.body, [(s_tir.SBlockRealize, seen)])
    if not reduced:
        return func
    schedule = s_tir.Schedule(tvm.IRModule({"main": func}))
    for name, loops in reduced.items():
        block = schedule.get_sblock(name)
        first = next(rv for rv in schedule.get_loops(block) if key(schedule.get(rv).loop_var) in loops)
        schedule.decompose_reduction(block, first)
    return schedule.mod["main"]
