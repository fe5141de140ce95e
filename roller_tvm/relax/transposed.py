"""Transposed convolutions whose window is their stride: products of pixels, each a small square of the result."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from .constants import array_of
from .modules import changed_by
from .pixel_moves import SQUARES, Move


@tvm.transform.module_pass(opt_level=0, name="SquaresOfPixels")
class SquaresOfPixels:
    """Rewrite transposed convolutions without overlaps as a convolution of single pixels and a copy.

    Others stay: `cpu.dilated` plans them.

    Examples
    --------
    >>> mod = SquaresOfPixels()(mod)
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with these calls rewritten."""
        return changed_by(_Squares(mod), mod)


@relax.expr_functor.mutator
class _Squares(relax.PyExprMutator):
    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        return made if (made := self._made(call)) is not None else call

    def _made(self, call: Any) -> Any | None:
        if getattr(call.op, "name", "") != "relax.nn.conv2d_transpose":
            return None
        a, weights, shape = call.attrs, array_of(call.args[1]), getattr(call.args[0].ty, "shape", None)
        if weights is None or not isinstance(shape, relax.ShapeExpr):
            return None
        if (a.data_layout, a.kernel_layout) != ("NCHW", "IOHW"):
            return None
        inputs, outputs, high, wide = weights.shape
        apart = [int(s) for s in a.strides] == [high, wide] and a.out_layout in ("", "NCHW") and int(a.groups) == 1
        plain = all(int(e) == 0 for e in (*a.padding, *a.output_padding)) and all(int(e) == 1 for e in a.dilation)
        if not apart or not plain:
            return None
        # The channels of one pixel of a square are neighbours, as they are in the result where channels come last.
        squares = np.ascontiguousarray(weights.transpose(2, 3, 1, 0).reshape(high * wide * outputs, inputs, 1, 1))
        own = relax.const(squares, str(call.args[1].ty.dtype))
        pixels = self.builder_.emit(relax.op.nn.conv2d(call.args[0], own, out_dtype=a.out_dtype))
        return Move(SQUARES, high, wide).call(self.builder_, pixels, None, list(pixels.ty.shape.values))
