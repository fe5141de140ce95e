"""Winograd's algorithm for pictures with open sides: transforms, products and the picture as kernels of their own.

One kernel of all, as for known sides, would read tiles of squares in parts of open rows and columns. Here each kernel
has whole axes, of the squares or of the picture. Squares go over the edge: the last kernel leaves out what is behind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, topi

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

    def called(name: str, pattern: int, made: Callable[..., Any], *arguments: Any) -> Any:
        return builder.call_te(made, *arguments, primfunc_name_hint=name, primfunc_attrs={"op_pattern": pattern})

    def emitted(made: Callable[..., Any], *arguments: Any) -> Any:
        return builder.emit(called(f"winograd_{made.__name__}", _OPAQUE, made, *arguments))

    sides = _Sides.of(data, conv, arrangement, tile)
    edge, channels, filters = tile + WINDOW - 1, conv.data[1], conv.weights[0]
    a, b, _ = matrices(tile)

    def squares(data: Any) -> Any:
        padded = sides.padded(data)
        there = constant(b.astype(conv.dtype), "there")
        p, q = te.reduce_axis((0, edge), name="p"), te.reduce_axis((0, edge), name="q")

        def square(x: Any, y: Any, n: Any, i: Any, j: Any, c: Any) -> Any:
            value = padded[arrangement.place(n, c, i * tile + p, j * tile + q)]
            return te.sum(value * there[x, p] * there[y, q], axis=[p, q])

        shape = (edge, edge, sides.images, sides.down, sides.right, channels)
        return te.compute(shape, square, name="transformed")

    def products(moved: Any, weights: Any) -> Any:
        c = te.reduce_axis((0, channels), name="rc")
        return te.compute(
            (edge, edge, sides.count, filters),
            lambda x, y, t, f: te.sum(moved[x, y, t, c] * weights[x, y, c, f], axis=[c]),
            name="product",
        )

    def returned(multiplied: Any) -> Any:
        back = constant(a.astype(conv.dtype), "back")
        r, s = te.reduce_axis((0, edge), name="r"), te.reduce_axis((0, edge), name="s")

        def square(u: Any, v: Any, n: Any, i: Any, j: Any, f: Any) -> Any:
            at = (n * sides.down + i) * sides.right + j
            return te.sum(multiplied[r, s, at, f] * back[r, u] * back[s, v], axis=[r, s])

        shape = (tile, tile, sides.images, sides.down, sides.right, filters)
        return te.compute(shape, square, name="returned")

    def picture(made: Any) -> Any:
        def element(*at: Any) -> Any:
            n, f, y, x = arrangement.plain_place(*at)
            return made[y % tile, x % tile, n, y // tile, x // tile, f]

        return te.compute(arrangement.shape((sides.images, filters, *sides.result)), element, name="winograd")

    moved = emitted(squares, data)
    rows = builder.emit(relax.op.reshape(moved, (edge, edge, sides.count, channels)))
    # Filters last, as tiles of any rows read them.
    turned = np.ascontiguousarray(array_of(weights).transpose(0, 1, 3, 2))
    multiplied = emitted(products, rows, relax.const(turned, conv.dtype))
    return called("winograd", _FUSIBLE, picture, emitted(returned, multiplied))


class _Sides:
    """Sides of a picture and of its squares, expressions or numbers."""

    def __init__(self, images: Any, data: tuple[Any, Any], conv: Convolution, arrangement: Arrangement, tile: int):
        simplify = analyzer_of_tvm().simplify
        top, left, bottom, right = conv.padding
        self.images, self.arrangement, self.before = images, arrangement, (top, left)
        padded = [side + more for side, more in zip(data, (top + bottom, left + right), strict=True)]
        self.result = tuple(simplify(side - (WINDOW - 1)) for side in padded)
        self.down, self.right = (simplify((side + tile - 1) // tile) for side in self.result)
        self.count = simplify(images * self.down * self.right)
        read = [squares * tile + WINDOW - 1 for squares in (self.down, self.right)]
        self.after = tuple(
            simplify(most - side - before) for most, side, before in zip(read, data, self.before, strict=True)
        )

    @classmethod
    def of(cls, data: Any, conv: Convolution, arrangement: Arrangement, tile: int) -> _Sides:
        shape = list(data.ty.shape.values)
        first, second = arrangement.axes([2, 3])
        return cls(shape[0], (shape[first], shape[second]), conv, arrangement, tile)

    def padded(self, data: Any) -> Any:
        """Return a picture with zeros around, as far as squares go."""
        axes = self.arrangement.axes([2, 3])
        before, after = ([0] * len(data.shape) for _ in range(2))
        for axis, low, high in zip(axes, self.before, self.after, strict=True):
            before[axis], after[axis] = low, high
        return topi.nn.pad(data, before, after, name="padded")
