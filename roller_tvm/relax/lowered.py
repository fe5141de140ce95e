"""Is a module ready to be scheduled: legalized and fused? The error says which pass to run first."""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
from tvm import relax

from ..errors import BadInput

#: Operators that stay in a legalized module: views, which the virtual machine makes without a kernel.
_VIEWS = ("relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset")
PREPARE = "roller_tvm.relax.pipeline.prepare(mod, target)"


def require_lowered(mod: Any) -> None:
    """Raise unless every Relax function calls PrimFuncs only.

    A module without Relax functions, and one that is legalized but not fused, pass: what is not fused is scheduled
    as it stands.

    Raises
    ------
    BadInput
        Naming the operators left, and the passes to run first.

    Examples
    --------
    >>> require_lowered(mod)  # doctest: +SKIP
    """
    found = _Operators()
    groups = 0
    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            groups += bool(func.attrs and "Primitive" in func.attrs and "Codegen" not in func.attrs)
            found.visit_expr(func)
    if found.names:
        told = ", ".join(f"{name} ({count}x)" for name, count in found.names.most_common(4))
        more = f" and {len(found.names) - 4} more" if len(found.names) > 4 else ""
        raise BadInput(
            f"is not legalized: it calls {told}{more}",
            "module",
            f"run LegalizeOps, AnnotateTIROpPattern, FuseOps and FuseTIR first: {PREPARE}",
        )
    if groups:
        raise BadInput(
            f"is fused half: {groups} groups of FuseOps are not PrimFuncs yet", "module", "run FuseTIR first"
        )


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
