"""Conditions of vectors as CUDA C++ can say them.

TVM's code for CUDA declares the condition of a vector select with the type of its values, which no compiler takes if
the condition is one value for all elements, and it writes the negation of a vector with ``!``, which CUDA's vectors
lack. Both TVM lines do so. TVM 0.27 stores a vector of truths as numbers of 16 bits, where each has a byte.
"""

from __future__ import annotations

from typing import Any

from ...te.numbering import dtype_of_node
from ..dialect import Dialect
from ..flat import kind_of


def with_vector_conditions(func: Any, dialect: Dialect) -> Any:
    """Return a flattened PrimFunc whose vectors choose by a scalar condition or element by element, and store bytes."""
    tir = dialect.tir

    def negated(node: Any) -> Any | None:
        inner, (_, _, lanes) = node.a, dtype_of_node(node).partition("x")
        if not lanes:
            return None
        if kind_of(inner) == "Broadcast":
            return tir.Broadcast(tir.Not(inner.value), inner.lanes)
        return tir.EQ(inner, tir.Broadcast(tir.const(False, "bool"), int(lanes)))

    def chosen(node: Any) -> Any | None:
        if kind_of(node.condition) != "Broadcast":
            return None
        return tir.if_then_else(node.condition.value, node.true_value, node.false_value)

    def stored(node: Any) -> Any | None:
        dtype, _, lanes = dtype_of_node(node.value).partition("x")
        if not lanes or dtype != "bool":
            return None
        numbers = tir.Cast(f"int8x{lanes}", node.value)
        return dialect.seen_as(node.buffer, "int8", lambda view: tir.BufferStore(view, numbers, node.indices))

    body = dialect.with_nodes(func.body, negated, dialect.negations)
    body = dialect.with_nodes(body, chosen, dialect.selects)
    body = dialect.with_nodes(body, stored, dialect.stores)
    return func if body is func.body or hash(body) == hash(func.body) else func.with_body(body)
