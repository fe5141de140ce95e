"""Open (symbolic) extents: a static function for each size that is named, behind a guard, else the open one.

What is planned are static shapes. Which sizes a service sees is known to who runs it: `Buckets` copies the function
once for each of them, and the whole of the pipeline (fusion, layouts, records, schedules, memory) sees static shapes
there. Any other size runs the function as it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.relax.utils import copy_with_new_vars

from ..errors import BadInput, UsageError, must_be
from ..tir.nodes import structurally_equal

#: Name of the function that chooses, until it takes the old one's place.
_CHOOSING = "roller_tvm_choosing"

Sizes = Mapping[str, Sequence[int]]


def symbols_of(func: Any) -> dict[str, Any]:
    """Return the variables of a Relax function's open extents, by name, in the order of its parameters.

    Examples
    --------
    >>> list(symbols_of(mod["main"]))
    ['n']
    """
    found: dict[str, Any] = {}
    for param in func.params:
        shape = getattr(param.ty, "shape", None)
        for extent in shape.values if isinstance(shape, relax.ShapeExpr) else ():
            for var in tvm.tirx.analysis.undefined_vars(tvm.tirx.Evaluate(extent), []):
                found.setdefault(str(var.name), var)
    return found


@tvm.transform.module_pass(opt_level=0, name="Buckets")
class Buckets:
    """Give a function with open extents a static copy for each of some sizes.

    Put it first: before legalization, so that everything after it sees static shapes.

    Parameters
    ----------
    sizes : mapping of variable to sizes, or sequence of int
        Sizes for which there is a copy; several variables make a copy for each combination. A plain sequence is
        for the only variable there is.
    func_name : str

    Raises
    ------
    UsageError
        A size is not from 1, or it is not said which variable is meant.
    BadInput
        The function has no such variable, or none at all.

    Examples
    --------
    >>> mod = Buckets({"n": (1, 8)})(mod)
    >>> [v.name_hint for v in mod.get_global_vars()]
    ['main', 'main_any', 'main_n1', 'main_n8']
    """

    def __init__(self, sizes: Sizes | Sequence[int], func_name: str = "main") -> None:
        self.sizes, self.func_name = _checked(sizes), func_name

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with the copies, and the function choosing among them."""
        names = [str(v.name_hint) for v, f in mod.functions_items() if isinstance(f, relax.Function)]
        if self.func_name not in names:
            what = f"the module has no function '{self.func_name}'"
            raise BadInput(what, "buckets", f"it has {', '.join(names) or 'none'}: Buckets(sizes, func_name=...)")
        func = mod[self.func_name]
        known = symbols_of(func)
        sizes = _named(self.sizes, known, self.func_name)
        builder = relax.BlockBuilder(mod)
        plain = func.without_attr("global_symbol") if func.attrs and "global_symbol" in func.attrs else func
        copies = []
        for values in itertools.product(*sizes.values()):
            chosen = dict(zip(sizes, values, strict=True))
            name = "_".join([self.func_name, *(f"{n}{v}" for n, v in chosen.items())])
            own = relax.transform.BindSymbolicVars(chosen)(tvm.IRModule({self.func_name: plain}))[self.func_name]
            own = copy_with_new_vars(own)  # what depends on no open extent would be one variable in all copies
            copies.append((chosen, builder.add_func(own, name), own))
        default = builder.add_func(copy_with_new_vars(plain), f"{self.func_name}_any")
        _add_dispatcher(builder, _CHOOSING, func, known, copies, default)
        made = builder.get()
        functions = {v: f for v, f in made.functions_items() if v.name_hint != _CHOOSING}
        result = tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
        # Under the old one's variable, which others may call.
        result.update_func(
            mod.get_global_var(self.func_name), made[_CHOOSING].with_attr("global_symbol", self.func_name)
        )
        return relax.transform.Normalize()(result)


def _add_dispatcher(
    builder: Any, name: str, func: Any, known: Mapping[str, Any], copies: Sequence[tuple[Any, Any, Any]], default: Any
) -> None:
    """The function under its old name: the copy whose sizes the inputs have, else the open one."""
    params = [relax.Var(str(p.name), p.ty) for p in func.params]
    with builder.function(name, params, attrs=dict(func.attrs or {}) or None):
        body = _call(default, params, func)
        for chosen, var, own in reversed(copies):
            equal = [known[symbol] == size for symbol, size in chosen.items()]
            condition = equal[0] if len(equal) == 1 else tvm.tirx.all(*equal)
            body = _body(relax.If(condition, _call(var, params, func, own), body), func.ret_ty)
        builder.emit_func_output(builder.emit(body.blocks[0].bindings[0].value))


def _body(node: Any, ty: Any) -> Any:
    """An expression as the body of a branch."""
    result = relax.Var("result", ty)
    return relax.SeqExpr([relax.BindingBlock([relax.VarBinding(result, node)])], result)


def _call(callee: Any, params: Sequence[Any], func: Any, own: Any | None = None) -> Any:
    """A call as the body of a branch; a copy's arguments and result change types (the guard has looked)."""
    if own is None:
        return _body(relax.Call(callee, list(params)), func.ret_ty)
    bindings: list[Any] = []
    arguments = []
    for param, wanted in zip(params, own.params, strict=True):
        argument = param
        if not structurally_equal(wanted.ty, param.ty):
            argument = relax.Var(str(param.name), wanted.ty)
            bindings.append(relax.MatchCast(argument, param, wanted.ty))
        arguments.append(argument)
    static, result = relax.Var("static", own.ret_ty), relax.Var("result", func.ret_ty)
    bindings.append(relax.VarBinding(static, relax.Call(callee, arguments)))
    bindings.append(relax.MatchCast(result, static, func.ret_ty))
    return relax.SeqExpr([relax.BindingBlock(bindings)], result)


def _checked(sizes: Sizes | Sequence[int]) -> dict[str | None, tuple[int, ...]]:
    given: Iterable[tuple[str | None, Any]] = sizes.items() if isinstance(sizes, Mapping) else [(None, sizes)]
    result: dict[str | None, tuple[int, ...]] = {}
    for name, values in given:
        own = tuple(dict.fromkeys(values)) if isinstance(values, Iterable) else ()
        if not own or not all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in own):
            raise UsageError(must_be("buckets", "sizes from 1", values), remedy='give them: {"n": (1, 8)}')
        result[name] = own
    if not result:
        raise UsageError(must_be("buckets", "sizes from 1", sizes), remedy='give them: {"n": (1, 8)}')
    return result


def _named(
    sizes: Mapping[str | None, tuple[int, ...]], known: Mapping[str, Any], func_name: str
) -> dict[str, tuple[int, ...]]:
    """Sizes by the name of their variable."""
    if not known:
        raise BadInput("has no open extent", f"function '{func_name}'", "leave the buckets out")
    if None in sizes:
        if len(known) > 1:
            example = "{" + ", ".join(f'"{n}": (1, 8)' for n in known) + "}"
            raise UsageError(f"buckets for which of {', '.join(known)}?", remedy=f"name them: {example}")
        return {next(iter(known)): sizes[None]}
    named = {str(name): values for name, values in sizes.items()}
    for name in named:
        if name not in known:
            raise BadInput(f"has no open extent '{name}'", f"function '{func_name}'", f"it has {', '.join(known)}")
    return named
