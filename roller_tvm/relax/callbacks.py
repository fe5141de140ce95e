"""Callbacks: functions that a caller hands over are called even if nothing reads what they return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from .modules import each_function

#: The call of a closure, which is kept.
CLOSURE = "relax.invoke_pure_closure"


@tvm.transform.module_pass(opt_level=0, name="KeepCallbacks")
class KeepCallbacks:
    """Make each call of a function's own parameter a call that `KeepPackedCalls` keeps.

    ``R.Callable`` is declared pure unless told otherwise, so that passes take a call away whose result nobody reads;
    TVM's default pipeline has no such pass.
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with calls of its closures."""
        return _changed(mod, _closure)


@tvm.transform.module_pass(opt_level=0, name="CallsOfCallbacks")
class CallsOfCallbacks:
    """Turn the calls that `KeepCallbacks` made into those of the function itself, once nothing is taken away any more.

    TVM's call of a closure loses the type of its result, which a kernel that reads it needs.
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with plain calls."""
        return _changed(mod, _plain)


def _changed(mod: Any, change: Callable[[Any, list[Any]], Any]) -> Any:
    def changed(func: Any) -> Any:
        return _Changer(func.params, change).visit_expr(func) if any(_is_function(p) for p in func.params) else func

    return each_function(mod, changed)


def _is_function(var: Any) -> bool:
    return isinstance(var.ty, relax.FuncType) and bool(var.ty.purity)


@relax.expr_functor.mutator
class _Changer(relax.PyExprMutator):
    """Changes the calls of a function: `change` returns another call, or None."""

    def __init__(self, params: Any, change: Callable[[Any, list[Any]], Any]) -> None:
        super().__init__()
        self._params, self._change = [param for param in params if _is_function(param)], change

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        changed = self._change(call, self._params)
        return call if changed is None else changed


def _closure(call: Any, params: list[Any]) -> Any:
    if any(call.op.same_as(param) for param in params):
        return relax.op.invoke_pure_closure(call.op, relax.Tuple(list(call.args)), [call.op.ty.ret])
    return None


def _plain(call: Any, params: list[Any]) -> Any:
    if str(getattr(call.op, "name", "")) == CLOSURE and any(call.args[0].same_as(param) for param in params):
        return relax.Call(call.args[0], list(call.args[1].fields))
    return None
