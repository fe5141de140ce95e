"""Tensors of more elements than TVM 0.17's 32-bit indices reach: refused, because they would wrap around."""

from __future__ import annotations

from math import prod
from typing import Any

from roller_tvm.errors import UnsupportedOperator

#: Elements of a tensor at most.
LARGEST = 2**31 - 1


def check_index_range(mod: Any, where: str) -> None:
    """Refuse a typed module with a tensor of more than `LARGEST` elements.

    Raises
    ------
    UnsupportedOperator
    """
    import tvm
    from tvm import relay

    def check(expr: Any) -> None:
        kinds = [] if isinstance(expr, tvm.ir.Op) else [expr.checked_type]
        while kinds:
            kind = kinds.pop()
            if isinstance(kind, relay.TupleType):
                kinds += list(kind.fields)
            elif isinstance(kind, relay.TensorType):
                shape = [int(e) for e in kind.shape if isinstance(e, tvm.tir.IntImm)]
                if len(shape) == len(kind.shape) and prod(shape) > LARGEST:
                    what = f"a tensor of {shape} has {prod(shape)} elements, and TVM 0.17's indices end at {LARGEST}"
                    raise UnsupportedOperator(what, where, "cut the tensor, or take the Relax line")

    relay.analysis.post_order_visit(mod["main"], check)
