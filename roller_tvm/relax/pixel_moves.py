"""Calls that move the pixels of pictures, whatever arrangement these have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from ..tir.nodes import analyzer_of_tvm
from .arrangement import Arrangement
from .modules import called_tir

#: Attribute of a function that moves pixels: the fields of its `Move`.
MOVE = "roller_pixels"
#: TVM's kInjective: what treats every element alike is fused into it, and a transpose.
_INJECTIVE = 2
SQUARES, APART, TOGETHER = "squares", "apart", "together"


@dataclass(frozen=True)
class Move:
    """A move of pixels.

    Parameters
    ----------
    kind : {'squares', 'apart', 'together'}
        The channels of a pixel become a square of pixels; each pixel of a square goes to a picture of its own, the
        smaller ones filled with zeros; and the way back from these.
    high, wide : int
        Rows and columns of a square.
    rows, columns : int
        Of the pictures that 'together' makes.
    """

    kind: str
    high: int
    wide: int
    rows: int = 0
    columns: int = 0

    def shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """Return the shape of the result of plain pictures.

        Examples
        --------
        >>> Move("apart", 2, 2).shape((1, 64, 7, 8)), Move("together", 2, 2, 7, 8).shape((4, 64, 4, 4))
        ((4, 64, 4, 4), (1, 64, 7, 8))
        """
        n, c, h, w = shape
        square, simplify = self.high * self.wide, analyzer_of_tvm().simplify
        if self.kind == SQUARES:
            return n, int(c) // square, simplify(h * self.high), simplify(w * self.wide)
        if self.kind == APART:
            return simplify(n * square), c, -(-h // self.high), -(-w // self.wide)
        return simplify(n // square), c, self.rows, self.columns

    def source(self, place: Sequence[Any], channels: Any) -> tuple[Any, Any, Any, Any]:
        """Return the place in the plain operand of an element of the result, which has so many channels."""
        n, c, y, x = place
        high, wide = self.high, self.wide
        if self.kind == SQUARES:
            return n, (y % high * wide + x % wide) * channels + c, y // high, x // wide
        if self.kind == APART:
            return n // (high * wide), c, y * high + n // wide % high, x * wide + n % wide
        return (n * high + y % high) * wide + x % wide, c, y // high, x // wide

    def call(self, builder: Any, pictures: Any, arrangement: Arrangement | None, shape: Sequence[Any]) -> Any:
        """Return the call that moves pictures.

        Parameters
        ----------
        builder : relax.BlockBuilder
        pictures : relax.Expr
            In the arrangement, or plain.
        shape : sequence of extents
            Of the plain pictures.
        """
        whole = self.shape(shape)
        filled = self.kind == APART and (shape[2] % self.high or shape[3] % self.wide)

        def moved(pictures: Any) -> Any:
            def element(*at: Any) -> Any:
                n, c, y, x = self.source(at if arrangement is None else arrangement.plain_place(*at), whole[1])
                value = pictures[(n, c, y, x) if arrangement is None else arrangement.place(n, c, y, x)]
                if not filled:
                    return value
                return tirx.if_then_else(te.all(y < shape[2], x < shape[3]), value, tirx.const(0, value.dtype))

            return te.compute(whole if arrangement is None else arrangement.shape(whole), element, name=self.kind)

        told = [self.kind, self.high, self.wide, self.rows, self.columns]
        attrs = {"op_pattern": _INJECTIVE, MOVE: told}
        return builder.call_te(moved, pictures, primfunc_name_hint=self.kind, primfunc_attrs=attrs)


def move_of(mod: Any, call: Any) -> Move | None:
    """Return the move that a call makes; None of another call."""
    func = called_tir(call)
    attrs = None if func is None else mod[func].attrs
    if attrs is None or MOVE not in attrs:
        return None
    kind, *numbers = attrs[MOVE]
    return Move(str(kind), *map(int, numbers))
