"""Transposed convolutions whose window is their stride: products of pixels, each a small square of the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te

from ..tir.nodes import analyzer_of_tvm
from .arrangement import Arrangement
from .constants import array_of
from .modules import called_tir, changed_by

#: Attribute of a function that makes squares of channels: rows and columns of a square.
SQUARES = "roller_squares"
#: TVM's kInjective: what treats every element alike is fused into it, and a transpose.
_INJECTIVE = 2


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
        return in_squares(self.builder_, pixels, (high, wide), None, list(pixels.ty.shape.values))


def in_squares(
    builder: Any, pixels: Any, window: Sequence[int], arrangement: Arrangement | None, shape: Sequence[Any]
) -> Any:
    """Return the call that makes a square of each pixel: its channels are those of the square's pixels.

    Parameters
    ----------
    builder : relax.BlockBuilder
    pixels : relax.Expr
        In the arrangement, or plain.
    window : sequence of int
        Rows and columns of a square.
    arrangement : Arrangement, optional
    shape : sequence of extents
        Of the plain pixels.
    """
    high, wide = window
    n, c, h, w = shape
    simplify, channels = analyzer_of_tvm().simplify, int(c) // (high * wide)
    whole = (n, channels, simplify(h * high), simplify(w * wide))

    def squares(pixels: Any) -> Any:
        def element(*at: Any) -> Any:
            n, c, y, x = at if arrangement is None else arrangement.plain_place(*at)
            own = (n, (y % high * wide + x % wide) * channels + c, y // high, x // wide)
            return pixels[own if arrangement is None else arrangement.place(*own)]

        return te.compute(whole if arrangement is None else arrangement.shape(whole), element, name="squares")

    attrs = {"op_pattern": _INJECTIVE, SQUARES: [high, wide]}
    return builder.call_te(squares, pixels, primfunc_name_hint="squares", primfunc_attrs=attrs)


def window_of(mod: Any, call: Any) -> tuple[int, int] | None:
    """Return the rows and columns of the squares that a call of `in_squares` makes; None of another call."""
    if (func := called_tir(call)) is None:
        return None
    attrs = mod[func].attrs
    if attrs is None or SQUARES not in attrs:
        return None
    high, wide = map(int, attrs[SQUARES])
    return high, wide


__all__ = ["SquaresOfPixels", "in_squares", "window_of"]
