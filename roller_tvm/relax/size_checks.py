"""Checks of a model's open extents at each call: bounds, and sizes that the model assumes.

The conditions stand in an attribute of the function, in words (``p + n <= 2048``), so that passes that copy and rename
keep them. `CheckSizes` makes them the first statements of the function: a shape of ones that the virtual machine
compares, without a call of Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from ..models.size_checks import condition, names_of
from ..tir.nodes import tensors_of
from .dynamic import symbols_of
from .modules import is_prim_func, with_functions
from .tasks import arguments_of, each_binding

#: Attributes of a Relax function: conditions on its sizes, and likely sizes (``n=128``).
CHECKS, LIKELY = "roller_tvm.checks", "roller_tvm.likely"


def checks_of(func: Any) -> list[str]:
    """Return the checks of a Relax function."""
    return [str(c) for c in func.attrs[CHECKS]] if func.attrs and CHECKS in func.attrs else []


def with_checks(mod: Any, checks: Iterable[str]) -> Any:
    """Return the module with further checks of the sizes of 'main'.

    Examples
    --------
    >>> mod = with_checks(mod, ["n <= 512"])
    """
    found = list(dict.fromkeys([*checks_of(mod["main"]), *checks]))
    return _changed(mod, {mod.get_global_var("main"): mod["main"].with_attr(CHECKS, found)}) if found else mod


def with_bounds(mod: Any, bounds: Mapping[str, tuple[int, int]], likely: Mapping[str, int]) -> Any:
    """Return the module with bounds and likely sizes of the open extents of 'main'.

    Examples
    --------
    >>> mod = with_bounds(mod, {"n": (1, 512)}, {"n": 128})
    """
    if not bounds and not likely:
        return mod
    checks = [c for name, (least, most) in bounds.items() for c in (f"{least} <= {name}", f"{name} <= {most}")]
    mod = with_checks(mod, checks)
    sizes = {name: most for name, (_, most) in bounds.items()} | dict(likely)
    told = [f"{name}={size}" for name, size in sizes.items()]
    return _changed(mod, {mod.get_global_var("main"): mod["main"].with_attr(LIKELY, told)})


def likely_sizes(mod: Any) -> tuple[tuple[str, int], ...]:
    """Return the likely sizes of a module's open extents."""
    for _, func in mod.functions_items():
        if isinstance(func, relax.Function) and func.attrs and LIKELY in func.attrs:
            pairs = (str(told).split("=") for told in func.attrs[LIKELY])
            return tuple((name, int(size)) for name, size in pairs)
    return ()


def kernel_checks(mod: Any) -> dict[str, tuple[str, ...]]:
    """Return the checks of each PrimFunc's sizes, in its own names: those that hold wherever it is called."""
    found: dict[str, tuple[str, ...]] = {}
    kernels = {str(var.name_hint): func for var, func in mod.functions_items() if is_prim_func(func)}
    for _, func in mod.functions_items():
        if not isinstance(func, relax.Function):
            continue
        checks, known = checks_of(func), symbols_of(func)

        def visit(node: Any, checks: Any = checks, known: Any = known) -> None:
            if not isinstance(node, relax.Call) or not (given := arguments_of(node)):
                return
            name = str(node.args[0].name_hint)
            if name not in kernels:
                return
            own = _own_names(kernels[name], node, given, known)
            told = tuple(re.sub(r"[A-Za-z_]\w*", lambda word: own.get(word[0], word[0]), check)
                         for check in checks if names_of(check) <= own.keys())  # fmt: skip
            found[name] = tuple(c for c in found[name] if c in told) if name in found else told

        each_binding(func, visit)
    return found


def _own_names(kernel: Any, call: Any, given: Sequence[Any], known: Mapping[str, Any]) -> dict[str, str]:
    """Return a size of the model -> its name in a kernel that is called."""
    numbered = [a for a in (*given, *call.args[2:]) if not isinstance(a.ty, relax.TensorType)]
    sizes = [size for a in numbered for size in getattr(a, "values", (getattr(a, "value", a),))]
    buffers = tensors_of(kernel)
    numbers = (p for p in kernel.params if not any(p.same_as(buffer) for buffer in buffers))
    pairs = list(zip(numbers, sizes, strict=False))
    types = [a.ty for a in given if isinstance(a.ty, relax.TensorType)]
    if call.op.name == "relax.call_tir":
        types += call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
    for buffer, kind in zip(buffers, types, strict=False):
        if isinstance(kind.shape, relax.ShapeExpr):
            pairs += zip(buffer.shape, kind.shape.values, strict=True)
    found: dict[str, str] = {}
    for own, extent in pairs:
        if isinstance(own, tirx.Var) and isinstance(extent, tirx.Var) and extent.same_as(known.get(str(extent.name))):
            found.setdefault(str(extent.name), str(own.name))
    return found


@tvm.transform.module_pass(opt_level=0, name="CheckSizes")
class CheckSizes:
    """Put the checks of each Relax function in front of what it does.

    Examples
    --------
    >>> mod = CheckSizes()(mod)
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its functions checking their sizes."""
        found = ((v, f) for v, f in mod.functions_items() if isinstance(f, relax.Function))
        return _changed(mod, {v: _checking(f) for v, f in found if checks_of(f)})


def _checking(func: Any) -> Any:
    known = symbols_of(func)
    calls = {"min": tirx.min, "max": tirx.max}
    holds = [
        tirx.Select(condition(check, known, lambda n: tirx.const(n, "int64"), calls), one, tirx.const(0, "int64"))
        for check in checks_of(func)
        if names_of(check) <= set(known)  # else of a copy for fixed sizes
        for one in (tirx.const(1, "int64"),)
    ]
    if not holds:
        return func
    ones = [tirx.const(1, "int64")] * len(holds)
    shape = relax.Var("sizes_hold", relax.ShapeType(ndim=len(holds)))
    bindings = [
        relax.VarBinding(shape, relax.ShapeExpr(holds)),
        relax.MatchCast(relax.Var("sizes_held", relax.ShapeType(ones)), shape, relax.ShapeType(ones)),
    ]
    body = relax.SeqExpr([relax.BindingBlock(bindings), *func.body.blocks], func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)


def _changed(mod: Any, functions: dict[Any, Any]) -> Any:
    return with_functions(mod, functions) if functions else mod


__all__ = ["CHECKS", "CheckSizes", "checks_of", "likely_sizes", "with_bounds", "with_checks"]
