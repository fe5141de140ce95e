"""Names of inputs that a kernel's parameters can have: CUDA C++ cannot spell ``gpu_0/data_0``."""

from __future__ import annotations

import re
from typing import Any

import tvm
from tvm import relax


def spell(name: str, taken: set[str]) -> str:
    """An identifier like `name` that is not taken, which it then is.

    Examples
    --------
    >>> taken = {"x_1"}
    >>> spell("x.1", taken), spell("0", taken), spell("y", taken)
    ('x_1_', 'p0', 'y')
    """
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    plain = plain if not plain[:1].isdigit() else f"p{plain}"
    while plain in taken:
        plain += "_"
    taken.add(plain)
    return plain


def plain_names(mod: Any) -> Any:
    """The module with each parameter of 'main' called by an identifier; their order stays."""
    main = mod["main"]
    names = [str(p.name) for p in main.params]
    if all(name.isascii() and name.isidentifier() for name in names):
        return mod
    taken: set[str] = set()
    renamer = _Renamer(mod)
    params = [relax.Var(spell(name, taken), p.ty) for name, p in zip(names, main.params, strict=True)]
    for old, new in zip(main.params, params, strict=True):
        renamer.set_var_remap(old, new)
    result = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs, global_infos=mod.global_infos)
    body = renamer.visit_expr(main.body)
    result.update_func(
        next(v for v in mod.get_global_vars() if v.name_hint == "main"),
        relax.Function(params, body, main.ret_ty, main.is_pure, main.attrs),
    )
    return result


@relax.expr_functor.mutator
class _Renamer(relax.PyExprMutator):
    """Puts new variables in the place of the parameters."""
