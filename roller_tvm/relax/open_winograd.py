"""Winograd's algorithm for pictures with open sides: two kernels, of squares and of the picture.

Squares of all images are one open axis of the first. Its tiles are some squares each, so that what lies between its
sums stays in a core's cache (`planner/family_blocks.py`). Squares go over the edge, the second
kernel leaves out the pixels behind it. Element-wise operators are fused into that one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te

from ..te.winograd import WINDOW, constant, matrices
from ..tir.nodes import analyzer_of_tvm
from .arrangement import Arrangement, Convolution
from .constants import array_of

#: TVM's kOutEWiseFusable: what treats every element alike is fused into it; kOpaque: FuseOps leaves it as it is.
_FUSIBLE, _OPAQUE = 4, 8


def open_winograd(
    builder: Any, data: Any, weights: Any, conv: Convolution, arrangement: Arrangement, tile: int
) -> Any:  # fmt: skip
    """Return the call that ends a convolution, whose kernels before are emitted.

    Parameters
    ----------
    builder : relax.BlockBuilder
    data : relax.Expr
        A picture in the arrangement, with open sides.
    weights : relax.Constant
        See `te.winograd.transformed_weights`.
    conv : Convolution
    arrangement : Arrangement
    tile : int
        Rows and columns of a square.
    """

    sides = _Sides.of(data, conv, arrangement, tile)
    edge, channels, filters = tile + WINDOW - 1, conv.data[1], conv.weights[0]
    a, b, _ = matrices(tile)

    def squares(data: Any, weights: Any) -> Any:
        def pixel(t: Any, y: Any, x: Any, ch: Any) -> Any:
            return sides.pixel(data, t, y, x, ch)

        there, back = (constant(matrix.astype(conv.dtype), name) for matrix, name in ((b, "there"), (a, "back")))
        p, q, r, s = (te.reduce_axis((0, edge), name=name) for name in "pqrs")
        c = te.reduce_axis((0, channels), name="rc")
        read = te.compute((sides.count, edge, edge, channels), pixel, name="read")
        moved = te.compute(
            (edge, edge, sides.count, channels),
            lambda x, y, t, ch: te.sum(read[t, p, q, ch] * there[x, p] * there[y, q], axis=[p, q]),
            name="transformed",
        )
        multiplied = te.compute(
            (edge, edge, sides.count, filters),
            lambda x, y, t, f: te.sum(moved[x, y, t, c] * weights[x, y, c, f], axis=[c]),
            name="product",
        )
        return te.compute(
            (sides.count, tile, tile, filters),
            lambda t, u, v, f: te.sum(multiplied[r, s, t, f] * back[r, u] * back[s, v], axis=[r, s]),
            name="returned",
        )

    def picture(made: Any) -> Any:
        def element(*at: Any) -> Any:
            n, f, y, x = arrangement.plain_place(*at)
            return made[sides.square(n, y // tile, x // tile), y % tile, x % tile, f]

        return te.compute(arrangement.shape((sides.images, filters, *sides.result)), element, name="winograd")

    def called(name: str, pattern: int, made: Callable[..., Any], *arguments: Any) -> Any:
        return builder.call_te(made, *arguments, primfunc_name_hint=name, primfunc_attrs={"op_pattern": pattern})

    # Filters last, as tiles of any rows read them.
    turned = np.ascontiguousarray(array_of(weights).transpose(0, 1, 3, 2))
    made = builder.emit(called("winograd_squares", _OPAQUE, squares, data, relax.const(turned, conv.dtype)))
    return called("winograd", _FUSIBLE, picture, made)


class _Sides:
    """Sides of a picture and of its squares, expressions or numbers."""

    def __init__(self, images: Any, data: tuple[Any, Any], conv: Convolution, arrangement: Arrangement, tile: int):
        simplify = analyzer_of_tvm().simplify
        top, left, bottom, right = conv.padding
        self.images, self.arrangement, self.data, self.tile = images, arrangement, data, tile
        self.before, self.dtype = (top, left), conv.dtype
        padded = [side + more for side, more in zip(data, (top + bottom, left + right), strict=True)]
        self.result = tuple(simplify(side - (WINDOW - 1)) for side in padded)
        self.down, self.right = (simplify((side + tile - 1) // tile) for side in self.result)
        self.count = simplify(images * self.down * self.right)

    @classmethod
    def of(cls, data: Any, conv: Convolution, arrangement: Arrangement, tile: int) -> _Sides:
        shape = list(data.ty.shape.values)
        first, second = arrangement.axes([2, 3])
        return cls(shape[0], (shape[first], shape[second]), conv, arrangement, tile)

    def square(self, image: Any, down: Any, right: Any) -> Any:
        """Return the number of a square."""
        return (image * self.down + down) * self.right + right

    def pixel(self, data: Any, square: Any, row: Any, column: Any, channel: Any) -> Any:
        """Return an element of the pixels that a square reads, 0 around the picture."""
        from tvm import tirx

        image, place = square // (self.down * self.right), square % (self.down * self.right)
        if self.images == 1:
            image, place = 0, square
        first = [place // self.right * self.tile, place % self.right * self.tile]
        y, x = (start + own - b for start, own, b in zip(first, (row, column), self.before, strict=True))
        inside = [y >= 0, y < self.data[0], x >= 0, x < self.data[1]]
        value = data[self.arrangement.place(image, channel, y, x)]
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0.0, self.dtype))
