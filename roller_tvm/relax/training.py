"""NormsInTraining: batch normalisation by the statistics of its batch, which no pass for inference may take over."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from .modules import with_functions


@tvm.transform.module_pass(opt_level=0, name="NormsInTraining")
class NormsInTraining:
    """Write each ``batch_norm(training=True)`` as the function that it is.

    Put it before ``DecomposeOpsForInference``, which takes every batch normalisation for one of known statistics.

    Examples
    --------
    >>> mod = NormsInTraining()(mod)
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its functions rewritten."""
        writer = _Writer(mod)
        changed = {}
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function):
                made = writer.visit_expr(func)
                if not made.same_as(func):
                    changed[mod.get_global_var(var.name_hint)] = made
        return with_functions(writer.builder_.get(), changed) if changed else mod


@relax.expr_functor.mutator
class _Writer(relax.PyExprMutator):
    def visit_call_(self, op: Any) -> Any:
        call = super().visit_call_(op)
        if getattr(call.op, "name", "") == "relax.nn.batch_norm" and call.attrs.training:
            return call.op.get_attr("FLegalize")(self.builder_, call)
        return call
