"""PoolsOfPixels: pooling with windows of one element each is no operator, as VGG's adaptive one of 224 pixels."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from .dataflow import rewritten

_POOLS = tuple(f"relax.nn.{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3))


@tvm.transform.module_pass(opt_level=0, name="PoolsOfPixels")
class PoolsOfPixels:
    """Replace pooling by its data where each result is one of their elements; functions that write in place stay.

    Put it before ``LegalizeOps``.

    Examples
    --------
    >>> mod = PoolsOfPixels()(mod)
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its functions rewritten."""
        return rewritten(mod, _Rewriter)


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def visit_call_(self, op: Any) -> Any:
        op = super().visit_call_(op)
        return op.args[0] if getattr(op.op, "name", "") in _POOLS and _of_pixels(op.attrs) else op


def _of_pixels(attrs: Any) -> bool:
    ones = [*attrs.pool_size, *attrs.strides]
    return all(int(n) == 1 for n in ones) and not any(map(int, attrs.padding)) and attrs.out_layout == attrs.layout
