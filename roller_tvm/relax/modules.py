"""Modules with other functions; the given ones stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax


def is_prim_func(func: Any) -> bool:
    """Return True for a function of TensorIR, in whatever module a version of TVM has the class."""
    return type(func).__name__ == "PrimFunc"


def called_tir(call: Any) -> Any:
    """Return the variable of the PrimFunc that ``relax.call_tir`` calls; None of any other expression."""
    return call.args[0] if getattr(getattr(call, "op", None), "name", "") == "relax.call_tir" else None


def with_functions(mod: Any, functions: Mapping[Any, Any]) -> Any:
    """A module with functions added or replaced."""
    changed = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs, global_infos=mod.global_infos)
    for var, func in functions.items():
        changed[var] = func
    return changed


def each_prim_func(mod: Any, made: Callable[[Any], Any]) -> Any:
    """A module with what is made of each PrimFunc in its place.

    Examples
    --------
    >>> marked = each_prim_func(mod, lambda func: func.with_attr("seen", True))
    """
    prim_funcs = ((var, func) for var, func in mod.functions_items() if is_prim_func(func))
    return with_functions(mod, {var: made(func) for var, func in prim_funcs})


def each_function(mod: Any, made: Callable[[Any], Any], primitive: bool = True) -> Any:
    """A module with what is made of each Relax function in its place; the module itself if all stay the same.

    Parameters
    ----------
    primitive : bool
        False to leave functions out that ``FuseOps`` made.
    """
    changed = {}
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function) and (primitive or not (func.attrs and "Primitive" in func.attrs)):
            new = made(func)
            if not new.same_as(func):
                changed[var] = new
    return with_functions(mod, changed) if changed else mod


def changed_by(changer: Any, mod: Any) -> Any:
    """A module with what a ``PyExprMutator`` makes of each Relax function, and the functions that it adds.

    Examples
    --------
    >>> @relax.expr_functor.mutator
    ... class Unchanged(relax.PyExprMutator):
    ...     pass
    >>> same = changed_by(Unchanged(mod), mod)
    """
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function):
            changer.builder_.update_func(var, changer.visit_expr(func))
    return changer.builder_.get()
