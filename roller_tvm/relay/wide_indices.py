"""WideIndices: computes addresses of CPU kernels in 64 bits, which LLVM folds into the instructions that use them.

TVM computes addresses in 32 bits. LLVM cannot split the extended sum into a register and a constant, so it keeps an
address register for every row of a register tile, and adds and extends it for each element. The multiply-adds of the
loop then wait for that.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import Any

from .before_llvm import BeforeLlvm

_INT32 = re.compile(r"int32(?=$|x)")


class WideIndices(BeforeLlvm):
    """A context in which kernels for LLVM compute addresses in 64 bits.

    Results stay the same: an index that fits into 32 bits is the same number in 64. Schedules and records do not
    change, so
    TVM's, Ansor's and Roller's schedules all gain.

    Parameters
    ----------
    on : bool
        False restores TVM's own code inside of another such context.

    Examples
    --------
    >>> with WideIndices():  # doctest: +SKIP
    ...     lib = relay.build(mod, "llvm -mcpu=skylake-avx512", params=params)
    """

    state = ContextVar("roller_wide_indices", default=False)

    @staticmethod
    def rewritten(func: Any) -> Any:
        """Return the lowered function with 64-bit addresses."""
        return with_wide_indices(func)


def with_wide_indices(func: Any) -> Any:
    """Return a PrimFunc with 64-bit loop variables and buffer indices.

    Examples
    --------
    >>> func = with_wide_indices(func)  # doctest: +SKIP
    """
    from tvm import tir

    widening = _Widening()
    kinds = ["tir.BufferLoad", "tir.BufferStore", "tir.For", "tir.LetStmt"]
    tir.stmt_functor.post_order_visit(func.body, widening.find)
    body = tir.stmt_functor.ir_transform(func.body, None, widening.rewrite, kinds)
    # Where a loop's variable is a number or stands in a condition.
    narrow = {var: tir.Cast("int32", wide) for var, wide in widening.wide.items()}
    return func.with_body(tir.stmt_functor.substitute(body, narrow))


def lanes_of(node: Any) -> dict[str, Any]:
    """Return the mask of a load or store as keyword arguments; {} if it has none. TVM 0.18 and later mask vectors over
    an edge.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> lanes_of(SimpleNamespace(predicate=None)), lanes_of(SimpleNamespace(predicate="mask"))
    ({}, {'predicate': 'mask'})
    """
    predicate = getattr(node, "predicate", None)
    return {} if predicate is None else {"predicate": predicate}


class _Widening:
    def __init__(self) -> None:
        from tvm import tir

        self._arithmetic = (tir.Add, tir.Sub, tir.Mul, tir.Div, tir.Mod, tir.FloorDiv, tir.FloorMod, tir.Min, tir.Max)
        self.wide: dict[Any, Any] = {}

    def find(self, node: Any) -> None:
        """Note each variable that is bound in 32 bits."""
        from tvm import tir

        var = node.loop_var if isinstance(node, tir.For) else node.var if isinstance(node, tir.LetStmt) else None
        if var is not None and str(var.dtype) == "int32":
            self.wide[var] = tir.Var(var.name, "int64")

    def rewrite(self, node: Any) -> Any:
        """Return the replacement of a load, store, loop or let whose parts are rewritten; None to keep it."""
        from tvm import tir

        if isinstance(node, tir.BufferLoad):
            return tir.BufferLoad(node.buffer, [self.widened(i) for i in node.indices], **lanes_of(node))
        if isinstance(node, tir.BufferStore):
            return tir.BufferStore(node.buffer, node.value, [self.widened(i) for i in node.indices], **lanes_of(node))
        if isinstance(node, tir.LetStmt) and node.var in self.wide:
            return tir.LetStmt(self.wide[node.var], self.widened(node.value), node.body)
        if isinstance(node, tir.For) and node.loop_var in self.wide:
            bounds = self.widened(node.min), self.widened(node.extent)
            return tir.For(
                self.wide[node.loop_var], *bounds, node.kind, node.body, node.thread_binding, node.annotations
            )
        return None

    def widened(self, e: Any) -> Any:
        """Return an integer expression in 64 bits, widened down to its variables and constants."""
        from tvm import tir

        dtype = str(e.dtype)
        if not _INT32.match(dtype):
            return e
        if isinstance(e, tir.Var) and e in self.wide:
            return self.wide[e]
        if isinstance(e, tir.IntImm):
            return tir.IntImm("int64", e.value)
        if isinstance(e, self._arithmetic):
            return type(e)(self.widened(e.a), self.widened(e.b))
        if isinstance(e, tir.Ramp):
            return tir.Ramp(self.widened(e.base), self.widened(e.stride), e.lanes)
        if isinstance(e, tir.Broadcast):
            return tir.Broadcast(self.widened(e.value), e.lanes)
        if isinstance(e, tir.Select):
            return tir.Select(e.condition, self.widened(e.true_value), self.widened(e.false_value))
        return tir.Cast(_INT32.sub("int64", dtype), e)
