"""SumsAsAdditions: the sum of a stack of tensors becomes additions, which fuse with what is before and after them.

ONNX's ``Sum`` is imported as ``sum(stack(broadcast_to(a), broadcast_to(b), ...), axis=0)``: a copy of every operand and
a reduction, where a residual connection is one addition in its convolution's epilogue.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..tir.nodes import structurally_equal
from .dataflow import rewritten
from .dead_code import without_dead_code


@tvm.transform.module_pass(opt_level=0, name="SumsAsAdditions")
class SumsAsAdditions:
    """Replace sums over a stack by additions, and take away broadcasts to the shape that a tensor has.

    Functions that write in place are left as they are.
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its functions rewritten."""
        result = rewritten(mod, _Rewriter)
        return result if result is mod else without_dead_code(result)


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self.stacks: dict[Any, list[Any]] = {}

    def visit_var_binding_(self, binding: Any) -> None:
        var, value = binding.var, binding.value
        name = getattr(getattr(value, "op", None), "name", "")
        if name == "relax.stack" and int(value.attrs.axis) == 0 and isinstance(value.args[0], relax.Tuple):
            self.stacks[var] = list(value.args[0].fields)
        super().visit_var_binding_(binding)

    def visit_call_(self, op: Any) -> Any:
        name = getattr(op.op, "name", "")
        if name == "relax.broadcast_to" and _same_type(op, op.args[0]):
            return self.visit_expr(op.args[0])
        if name == "relax.sum" and op.args[0] in self.stacks and not op.attrs.keepdims:
            axes = op.attrs.axis
            if axes is not None and [int(a) for a in axes] == [0]:
                total, *rest = (self.visit_expr(field) for field in self.stacks[op.args[0]])
                for other in rest:
                    total = self.builder_.normalize(relax.op.add(total, other))
                    total = total if other is rest[-1] else self.builder_.emit(total)
                return total
        return super().visit_call_(op)


def _same_type(a: Any, b: Any) -> bool:
    ty, other = getattr(a, "ty", None), getattr(b, "ty", None)
    return ty is not None and other is not None and structurally_equal(ty, other)
