"""Callbacks: functions that a caller hands over are called even if nothing reads what they return."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from .modules import each_function


@tvm.transform.module_pass(opt_level=0, name="KeepCallbacks")
class KeepCallbacks:
    """Make each call of a function's own parameter a call that `KeepPackedCalls` keeps.

    ``R.Callable`` is declared pure unless told otherwise, so that passes take a call away whose result nobody reads;
    TVM's default pipeline has no such pass.
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with calls of its closures."""

        def kept(func: Any) -> Any:
            return _Keeper(func.params).visit_expr(func) if any(_is_function(p) for p in func.params) else func

        return each_function(mod, kept)


def _is_function(var: Any) -> bool:
    return isinstance(var.ty, relax.FuncType) and bool(var.ty.purity)


@relax.expr_functor.mutator
class _Keeper(relax.PyExprMutator):
    def __init__(self, params: Any) -> None:
        super().__init__()
        self._params = [param for param in params if _is_function(param)]

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        if any(call.op.same_as(param) for param in self._params):
            return relax.op.invoke_pure_closure(call.op, relax.Tuple(list(call.args)), [call.op.ty.ret])
        return call
