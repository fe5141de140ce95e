"""Quotients of float32 vectors by one number, as products with its reciprocal.

A row of softmax is divided by its sum. A division of a vector takes as long as ten multiplications; of the sum, LLVM
takes the reciprocal once, before the loop over the row. The quotient is within 1.5 units in the last place, where a
division is within 0.5. A product with a power of two comes first, so that no reciprocal leaves float32.
"""

from __future__ import annotations

from typing import Any

from ...te.numbering import dtype_of_node
from ..dialect import Dialect
from ..flat import OURS, kind_of
from ..vector_functions import RECIPROCAL

_FLOAT = "float32"


def with_reciprocals(func: Any, dialect: Dialect) -> Any:
    """Return a flattened PrimFunc in which vectors are multiplied by the reciprocal of one number.

    `vector_math.with_vector_math`, later, brings the functions along.
    """
    tir = dialect.tir

    def one(quotient: Any) -> Any | None:
        divisor = quotient.b
        if kind_of(divisor) != "Broadcast" or dtype_of_node(divisor.value) != _FLOAT:
            return None
        parts = (dialect.extern(_FLOAT, OURS + name, [divisor.value]) for name in RECIPROCAL)
        product = quotient.a
        for part in parts:
            product = tir.Mul(product, tir.Broadcast(part, divisor.lanes))
        return product

    return func.with_body(dialect.with_nodes(func.body, one, dialect.quotients))
