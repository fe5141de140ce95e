"""Addresses in 64 bits, which LLVM folds into the instructions that use them. For TVM 0.17.

TVM 0.17 computes addresses in 32 bits. LLVM cannot split the extended sum into a register and a constant, so it keeps
an address register for every row of a register tile, and adds and extends it for each element. The multiply-adds of
the loop then wait for that. An index that fits into 32 bits is the same number in 64.
"""

from __future__ import annotations

import re
from functools import cache
from inspect import signature
from typing import Any

from ...te.numbering import dtype_of_node
from ..dialect import Dialect
from ..flat import address_of, kind_of, statements

_INT32 = re.compile(r"int32(?=$|x)")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max")
_KINDS = ["tir.BufferLoad", "tir.BufferStore", "tir.For", "tir.LetStmt"]


def with_wide_indices(func: Any, dialect: Dialect) -> Any:
    """Return a flattened PrimFunc with 64-bit loop variables and buffer indices."""
    tir, masks = dialect.tir, _mask if _takes_masks(dialect.tir.BufferLoad) else lambda node: {}
    names = {"For": "loop_var", "LetStmt": "var"}
    bound = [getattr(node, names[kind_of(node)]) for node in statements(func.body) if kind_of(node) in names]
    wide = {var: tir.Var(var.name, "int64") for var in bound if str(var.dtype) == "int32"}

    known: dict[int, tuple[Any, Any]] = {}  # expressions and what they became; held, so that addresses stay theirs

    def widened(e: Any) -> Any:
        """Return an integer expression in 64 bits, widened down to its variables and constants."""
        if (found := known.get(address_of(e))) is None:
            found = known[address_of(e)] = e, made_wide(e)
        return found[1]

    def made_wide(e: Any) -> Any:
        kind, dtype = kind_of(e), dtype_of_node(e)
        if not _INT32.match(dtype):
            return e
        if kind in ("Var", "SizeVar") and e in wide:
            return wide[e]
        if kind == "IntImm":
            return tir.IntImm("int64", e.value)
        if kind in _ARITHMETIC:
            return type(e)(widened(e.a), widened(e.b))
        if kind == "Ramp":
            return tir.Ramp(widened(e.base), widened(e.stride), e.lanes)
        if kind == "Broadcast":
            return tir.Broadcast(widened(e.value), e.lanes)
        if kind == "Select":
            return tir.Select(e.condition, widened(e.true_value), widened(e.false_value))
        return tir.Cast(_INT32.sub("int64", dtype), e)

    def rewritten(node: Any) -> Any | None:
        kind = kind_of(node)
        if kind == "BufferLoad":
            return tir.BufferLoad(node.buffer, [widened(i) for i in node.indices], **masks(node))
        if kind == "BufferStore":
            return tir.BufferStore(node.buffer, node.value, [widened(i) for i in node.indices], **masks(node))
        if kind == "LetStmt" and node.var in wide:
            return tir.LetStmt(wide[node.var], widened(node.value), node.body)
        if kind == "For" and node.loop_var in wide:
            bounds = widened(node.min), widened(node.extent)
            return tir.For(wide[node.loop_var], *bounds, node.kind, node.body, node.thread_binding, node.annotations)
        return None

    body = dialect.with_nodes(func.body, rewritten, _KINDS)
    # Where a loop's variable is a number or stands in a condition.
    narrow = {var: tir.Cast("int32", own) for var, own in wide.items()}
    return func.with_body(tir.stmt_functor.substitute(body, narrow))


@cache
def _takes_masks(load: Any) -> bool:
    """Return whether this TVM's loads have masks: asking each load for what it lacks takes long."""
    return "predicate" in signature(load).parameters


def _mask(node: Any) -> dict[str, Any]:
    """Return the mask of a load or store as keyword arguments; TVM 0.18 and later mask vectors over an edge.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> _mask(SimpleNamespace(predicate=None)), _mask(SimpleNamespace(predicate="mask"))
    ({}, {'predicate': 'mask'})
    """
    predicate = getattr(node, "predicate", None)
    return {} if predicate is None else {"predicate": predicate}
