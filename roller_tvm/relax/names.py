"""Names that kernels can have: CUDA C++ cannot spell ``gpu_0/data_0``, TVM's matrix instructions not ``Constant``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from ..tir.nodes import key
from .modules import each_prim_func, with_functions


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
    own = next(v for v in mod.get_global_vars() if v.name_hint == "main")
    body = renamer.visit_expr(main.body)
    return with_functions(mod, {own: relax.Function(params, body, main.ret_ty, main.is_pure, main.attrs)})


@relax.expr_functor.mutator
class _Renamer(relax.PyExprMutator):
    """Puts new variables in the place of the parameters."""


@tvm.transform.module_pass(opt_level=0, name="LowerCaseBuffers")
class LowerCaseBuffers:
    """Spell the buffers of all PrimFuncs in lower case; nothing else changes.

    TVM puts the operands of a matrix instruction into its text letter by letter, A to D: in a buffer that is called
    ``Constant_12`` it finds the accumulator.
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its PrimFuncs changed."""
        return each_prim_func(mod, with_lower_case)


def with_lower_case(func: Any) -> Any:
    """A PrimFunc whose buffers are spelt in lower case."""
    import tvm_ffi

    made: dict[int, Any] = {}

    def spelt(var: Any) -> Any:
        kind: Any = getattr(var, "ty", None)
        if not hasattr(kind, "data_alignment") or str(var.name) == str(var.name).lower():
            return var
        if key(var) not in made:
            made[key(var)] = tvm.tirx.decl_buffer(
                list(kind.shape), kind.dtype, str(var.name).lower(), None, list(kind.strides), kind.elem_offset,
                var.scope(), kind.data_alignment, kind.offset_factor, layout=kind.layout,
            )  # fmt: skip
        return made[key(var)]

    return tvm_ffi.structural_map(func, (tvm.tirx.Var, spelt), order="post")


def with_names(mod: Any, names: Mapping[str, str]) -> Any:
    """Return the module with other names of functions; one that has its new name's place taken keeps the old one.

    Parameters
    ----------
    names : mapping
        From names of functions to new ones.

    Examples
    --------
    >>> mod = with_names(mod, {"mean11": "mean"})
    """
    taken = {str(var.name_hint) for var in mod.get_global_vars()}
    renamed: dict[str, str] = {}
    for name, new in sorted(names.items()):
        if new not in taken:
            taken.add(new)
            renamed[name] = new
    if not renamed:
        return mod
    old = {name: mod.get_global_var(name) for name in renamed}
    made = {key(old[name]): tvm.ir.GlobalVar(new) for name, new in renamed.items()}
    for var in old.values():
        relax.expr._update_type(made[key(var)], var.ty)
    renamer = _GlobalRenamer(made)
    functions = {}
    for var, func in mod.functions_items():
        own = renamer.visit_expr(func) if isinstance(func, relax.Function) else func
        functions[made.get(key(var), var)] = own
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


@relax.expr_functor.mutator
class _GlobalRenamer(relax.PyExprMutator):
    """Puts new names of functions in the place of old ones."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        self.made = made

    def visit_global_var_(self, op: Any) -> Any:
        return self.made.get(key(op), op)
