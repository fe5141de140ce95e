"""Is a module ready to be scheduled: legalized and fused? The error says which pass to run first."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import tvm
from tvm import relax

from ..errors import BadInput

#: Operators that stay in a legalized module: views, which the virtual machine makes without a kernel.
_VIEWS = ("relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset")
PREPARE = "roller_tvm.relax.pipeline.prepare(mod, target)"
#: Attribute of a PrimFunc that FuseOps goes by.
_PATTERN = "op_pattern"
#: How FuseOps names what it put together, from which FuseTIR takes the attribute.
_FUSED = "fused_"
_SHOWN = 4


class NotFused(UserWarning):
    """A module is scheduled operator by operator, though FuseOps would make one kernel of several."""


def require_lowered(mod: Any) -> None:
    """Raise unless every Relax function calls PrimFuncs only.

    A module without Relax functions passes. One that is legalized but not fused passes with a warning: it is
    scheduled as it stands.

    Raises
    ------
    BadInput
        Naming the operators left, and the passes to run first.

    Warns
    -----
    NotFused
        Naming the operators that FuseOps would put together.
    """
    found = _Operators()
    groups = 0
    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            groups += bool(func.attrs and "Primitive" in func.attrs and "Codegen" not in func.attrs)
            found.visit_expr(func)
    if found.names:
        told = ", ".join(f"{name} ({count}x)" for name, count in found.names.most_common(_SHOWN))
        more = f" and {len(found.names) - _SHOWN} more" if len(found.names) > _SHOWN else ""
        raise BadInput(
            f"is not legalized: it calls {told}{more}",
            "module",
            f"run LegalizeOps, AnnotateTIROpPattern, FuseOps and FuseTIR first: {PREPARE}",
        )
    if groups:
        raise BadInput(
            f"is fused half: {groups} groups of FuseOps are not PrimFuncs yet", "module", "run FuseTIR first"
        )
    fusible = fusible_groups(mod)
    if fusible:
        told = "; ".join(" + ".join(names) for names in fusible[:_SHOWN])
        more = f" and {len(fusible) - _SHOWN} more" if len(fusible) > _SHOWN else ""
        warnings.warn(
            f"the module is not fused: each operator is scheduled alone, where one kernel would do for {told}{more}."
            f" Run AnnotateTIROpPattern, FuseOps and FuseTIR first: {PREPARE}",
            NotFused, stacklevel=2,
        )  # fmt: skip


def fusible_groups(mod: Any) -> list[list[str]]:
    """PrimFuncs that FuseOps would still put together, by name; none where it was run."""
    funcs = {var: f for var, f in mod.functions_items() if type(f).__name__ == "PrimFunc"}
    if len(funcs) == len(mod.functions):
        return []
    tried = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs, global_infos=mod.global_infos)
    try:
        if not any(f.attrs and _PATTERN in f.attrs for f in funcs.values()):
            tried = relax.transform.AnnotateTIROpPattern()(tried)
            for var, func in funcs.items():
                if str(var.name_hint).startswith(_FUSED):
                    tried.update_func(var, func)
        fused = relax.transform.FuseOps()(tried)
    except Exception:  # whatever keeps TVM's pass from this module, it would not have fused it
        return []
    found = []
    for var, func in fused.functions_items():
        if isinstance(func, relax.Function) and var not in mod.functions:
            calls = [b.value for block in func.body.blocks for b in block.bindings if isinstance(b.value, relax.Call)]
            found.append([str(c.args[0].name_hint) for c in calls if c.args and hasattr(c.args[0], "name_hint")])
    return [names for names in found if len(names) > 1]


@relax.expr_functor.visitor
class _Operators(relax.PyExprVisitor):
    """Operators with a legalization."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def visit_call_(self, call: Any) -> None:
        op = call.op
        if isinstance(op, tvm.ir.Op) and op.name not in _VIEWS and op.get_attr("FLegalize") is not None:
            self.names[op.name] += 1
        for argument in call.args:
            self.visit_expr(argument)
