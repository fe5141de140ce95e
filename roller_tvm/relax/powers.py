"""PowersAsProducts: ``x ** 2`` and ``x ** 3`` become products, which are vectors; a power is a call an element.

GPT-2's activation is such a power. torch and onnxruntime compute both as products, too.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from .constants import array_of
from .dataflow import rewritten

#: Exponents that become products.
EXPONENTS = (2, 3)


@tvm.transform.module_pass(opt_level=0, name="PowersAsProducts")
class PowersAsProducts:
    """Replace powers of floating-point tensors by the constants 2 and 3; functions that write in place stay.

    Put it before ``LegalizeOps``.

    Examples
    --------
    >>> mod = PowersAsProducts()(mod)
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its functions rewritten."""
        return rewritten(mod, _Rewriter)


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def visit_call_(self, op: Any) -> Any:
        op = super().visit_call_(op)
        if getattr(op.op, "name", "") != "relax.power" or (exponent := _exponent(op)) is None:
            return op
        x = op.args[0]
        square = relax.op.multiply(x, x)
        return square if exponent == 2 else relax.op.multiply(self.builder_.emit(square), x)


def _exponent(power: Any) -> int | None:
    """Return the exponent of a power that is to be a product, or None."""
    x, value = power.args[0], array_of(power.args[1])
    if value is None or not str(getattr(x.ty, "dtype", "")).startswith("float"):
        return None
    fits = value.size == 1 and value.ndim <= x.ty.ndim and value.item() in EXPONENTS
    return int(value.item()) if fits else None
