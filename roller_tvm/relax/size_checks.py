"""Checks of a model's open extents at each call: bounds, and sizes that the model assumes.

The conditions stand in an attribute of the function, in words (``p + n <= 2048``), so that passes that copy and rename
keep them. `CheckSizes` makes them the first statements of the function: a shape of ones that the virtual machine
compares, without a call of Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tvm
from tvm import relax, tirx

from ..models.size_checks import condition, names_of
from .dynamic import symbols_of
from .modules import with_functions

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
