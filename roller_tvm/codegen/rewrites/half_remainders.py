"""Remainders of float16 for CUDA C++, of which TVM's code has those of float32 and float64 alone, on both lines.

The remainder of two numbers of float16 is one itself: computed in float32 it is exact.
"""

from __future__ import annotations

from typing import Any

from ...te.numbering import dtype_of_node
from ..dialect import Dialect


def with_half_remainders(func: Any, dialect: Dialect) -> Any:
    """Return a flattened PrimFunc that takes remainders of float16 in float32."""
    tir = dialect.tir

    def wide(node: Any) -> Any | None:
        dtype, x, lanes = dtype_of_node(node).partition("x")
        if dtype != "float16":
            return None
        a, b = (tir.Cast(f"float32{x}{lanes}", operand) for operand in (node.a, node.b))
        return tir.Cast(dtype_of_node(node), tir.Mod(a, b))

    body = dialect.with_nodes(func.body, wide, dialect.remainders)
    return func if hash(body) == hash(func.body) else func.with_body(body)
