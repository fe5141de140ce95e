"""LinesAsPictures: one-dimensional convolutions, of sound or of text, as those of pictures one row high.

`PlanLayout` then arranges their channels as it does those of pictures. As planes, each step of the sum over channels
reads another page, and a stride of two picks every second lane. What treats all elements alike goes on with the
pictures, so that no transpose comes between two convolutions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from .arranging import ALIKE
from .constants import array_of, is_constant
from .dataflow import extents_of, operator_name, rewritten

#: Place of the row among a picture's axes.
_ROW = 2


@tvm.transform.module_pass(opt_level=0, name="LinesAsPictures")
class LinesAsPictures:
    """Compute one-dimensional convolutions of known extents by constant weights as two-dimensional ones.

    Put it before the layout is planned.

    Examples
    --------
    >>> mod = LinesAsPictures()(mod)
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its functions rewritten."""
        return rewritten(mod, _Rewriter)


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        #: Variable -> the variable that has it as a picture.
        self.pictures: dict[Any, Any] = {}
        #: Of these, those that exist as lines too.
        self.as_lines: set[Any] = set()
        #: Line that was none before -> its picture, for the next that reads it.
        self.reshaped: dict[Any, Any] = {}
        self.in_dataflow = False

    def visit_dataflow_block_(self, block: Any) -> Any:
        """One block of bindings; a picture is not known outside."""
        self.pictures.clear()
        self.as_lines.clear()
        self.reshaped.clear()
        self.in_dataflow = True
        made = super().visit_dataflow_block_(block)
        self.in_dataflow = False
        return made

    def visit_dataflow_var_(self, op: Any) -> Any:
        """A variable that something else reads, as a line again."""
        if op in self.pictures and op not in self.as_lines:
            self.as_lines.add(op)
            self.set_var_remap(op, self.builder_.emit(self._line(op)))
        return super().visit_dataflow_var_(op)

    def visit_var_binding_(self, binding: Any) -> None:
        var, value = binding.var, binding.value
        made = self._picture(value) if self.in_dataflow else None
        if made is not None:
            self.pictures[var] = self.builder_.emit(made)
            if not isinstance(var, relax.DataflowVar):  # others read it outside
                self.set_var_remap(var, self.builder_.emit_output(self._line(var)))
            return
        super().visit_var_binding_(binding)

    def _line(self, var: Any) -> Any:
        return relax.op.reshape(self.pictures[var], extents_of(var))

    def _picture(self, call: Any) -> Any | None:
        """Return the call on pictures; None where it stays as it is."""
        shape = extents_of(call) if isinstance(call, relax.Call) else None
        if shape is None or len(shape) != 3 or not all(isinstance(extent, int) for extent in shape):
            return None
        if (name := operator_name(call)) == "relax.nn.conv1d":
            return self._convolution(call)
        if name not in ALIKE or not any(arg in self.pictures for arg in call.args if isinstance(arg, relax.Var)):
            return None
        forms = [self._form(arg) if isinstance(arg.ty, relax.TensorType) else arg for arg in call.args]
        return None if any(form is None for form in forms) else relax.Call(call.op, forms, call.attrs, call.ty_args)

    def _convolution(self, call: Any) -> Any | None:
        a, (data, weights) = call.attrs, call.args
        plain = (a.data_layout, a.kernel_layout) == ("NCW", "OIW") and a.out_layout in ("NCW", "")
        if not plain or not is_constant(weights) or (form := self._form(data)) is None:
            return None
        first, last = (int(n) for n in a.padding)
        return relax.op.nn.conv2d(
            form, self._form(weights), [1, int(a.strides[0])], [0, first, 0, last], [1, int(a.dilation[0])],
            int(a.groups), "NCHW", "OIHW", "NCHW", a.out_dtype or None,
        )  # fmt: skip

    def _form(self, node: Any) -> Any | None:
        """Return a tensor of at most three known extents as a picture; numbers stay."""
        if isinstance(node, relax.Var) and node in self.pictures:
            return self.pictures[node]
        shape = extents_of(node)
        if shape is None or len(shape) > 3 or not all(isinstance(extent, int) for extent in shape):
            return None
        if not shape:
            return node
        shape = (*[1] * (3 - len(shape)), *shape)
        picture = (*shape[:_ROW], 1, *shape[_ROW:])
        if (values := array_of(node)) is not None:
            return relax.const(np.reshape(values, picture), node.ty.dtype)
        if node not in self.reshaped:
            self.reshaped[node] = self.builder_.emit(relax.op.reshape(self.visit_expr(node), picture))
        return self.reshaped[node]
