"""Least and largest values of index expressions: where a machine's number is the whole number that it stands for.

A cast to a lesser type, or a sum that its type does not hold, wraps around; ``Div`` and ``Mod`` of numbers below 0
round up. isl's numbers do neither.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ...codegen.flat import address_of, called, choice_of, direct_parts, kind_of, number_of
from ...te.numbering import dtype_of_node

#: The least and the largest value.
Span = tuple[int, int]
_WIDEST = -(2**64), 2**64
_SUMS: Mapping[str, Callable[[Span, Span], tuple[int, ...]]] = {
    "Add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "Sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "Mul": lambda a, b: tuple(x * y for x in a for y in b),
    "Min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "Max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}


class _Known(NamedTuple):
    span: Span
    fits: bool
    whole: bool


class Spans:
    """Spans of expressions.

    Parameters
    ----------
    values : mapping
        Hash of a bound variable -> its value.
    largest : int
        Of sizes.
    """

    def __init__(self, values: Mapping[int, Any], largest: int) -> None:
        self.values, self.largest = values, largest
        self.loops: dict[int, Span] = {}
        self._known: dict[int, tuple[Any, _Known]] = {}

    def add(self, var: int, span: Span) -> None:
        """Note the values of a loop's variable, by its hash."""
        if self.loops.get(var, span) != span:  # in another loop before
            self._known.clear()
        self.loops[var] = span

    def of(self, node: Any) -> Span:
        """Return the least and the largest value that an expression may have."""
        return self._of(node).span

    def fits(self, node: Any) -> bool:
        """Return whether an operation's type holds what it makes of its operands."""
        return self._of(node).fits

    def whole(self, node: Any) -> bool:
        """Return whether an expression is the same in whole numbers, all quotients of which are rounded down."""
        return self._of(node).whole

    def holds_lanes(self, base: Any, lanes: int, step: int) -> bool:
        """Return whether the type of a vector's first element holds all of them."""
        (least, most), limits, last = self.of(base), limits_of(dtype_of_node(base)), step * (lanes - 1)
        return limits is not None and limits[0] <= least + min(0, last) and most + max(0, last) <= limits[1]

    def _of(self, node: Any) -> _Known:
        if isinstance(node, int):
            return _Known((node, node), True, True)
        key = address_of(node)
        if key not in self._known:
            self._known[key] = node, self._made(node)
        return self._known[key][1]

    def _made(self, node: Any) -> _Known:
        limits = limits_of(dtype_of_node(node))
        if limits is None:
            return _Known(_WIDEST, False, False)
        found = self._found(node)
        if found is None:
            return _Known(limits, True, False)
        (least, most), whole = found
        fits = limits[0] <= least and most <= limits[1]
        return _Known((least, most) if fits else limits, fits, fits and whole)

    def _found(self, node: Any) -> tuple[Span, bool] | None:
        """Return an expression's span, as if its type held each number, and whether its operands are whole."""
        kind, number = kind_of(node), number_of(node)
        if number is not None:
            return (number, number), True
        if kind in ("Var", "SizeVar"):
            known = self.values.get(hash(node))
            if known is not None:
                return self.of(known), self.whole(known)
            limits = limits_of(dtype_of_node(node)) or _WIDEST
            return self.loops.get(hash(node), (1, min(self.largest, limits[1]))), True
        if kind == "Cast" and limits_of(dtype_of_node(node.value)) is not None:
            return self.of(node.value), self.whole(node.value)
        if kind in _SUMS:
            ends = _SUMS[kind](self.of(node.a), self.of(node.b))
            return (min(ends), max(ends)), self.whole(node.a) and self.whole(node.b)
        if kind in ("FloorDiv", "FloorMod", "Div", "Mod"):
            return self._quotient(kind, node.a, number_of(node.b))
        if choice := choice_of(node):
            (_, yes, no) = choice
            return (min(self.of(yes)[0], self.of(no)[0]), max(self.of(yes)[1], self.of(no)[1])), False
        if bits := bits_of(node):
            name, inner, by = bits
            least, most = self.of(inner)
            spans = {"*": (least * by, most * by), "/": (least // by, most // by), "%": (0, by - 1)}
            return spans[name], False
        return None

    def _quotient(self, kind: str, a: Any, by: int | None) -> tuple[Span, bool] | None:
        if by is None or by < 1:
            return None
        (least, most), up = self.of(a), not kind.startswith("Floor")
        whole = self.whole(a) and not (up and least < 0)
        if kind.endswith("Div"):
            ends = [-(-end // by) if up and end < 0 else end // by for end in (least, most)]
            return (ends[0], ends[1]), whole
        if least >= 0 and most < by:
            return (least, most), whole
        return (1 - by if up and least < 0 else 0, by - 1), whole


#: Operations on bits, nodes or calls -> what they do with a power of two.
_BITS = {"LShift": "*", "shift_left": "*", "RShift": "/", "shift_right": "/", "BitwiseAnd": "%", "bitwise_and": "%"}


def bits_of(node: Any) -> tuple[str, Any, int] | tuple[()]:
    """Return an operation on bits as one with a power of two: ``*``, ``/`` or ``%``, its operand and the power."""
    name = _BITS.get(called(node) or kind_of(node))
    if name is None:
        return ()
    first, second = direct_parts(node)
    number = number_of(second)
    by = 0 if number is None or number < 0 else number + 1 if name == "%" else 1 << number
    return (name, first, by) if by and not by & (by - 1) else ()


def limits_of(dtype: str) -> Span | None:
    """Return the least and the largest number of a type, None if it is none of whole numbers.

    Examples
    --------
    >>> limits_of("int8"), limits_of("uint8"), limits_of("float32"), limits_of("int32x4")
    ((-128, 127), (0, 255), None, None)
    """
    found = re.fullmatch(r"(u?)int(\d+)", dtype)
    if found is None:
        return None
    bits = int(found[2])
    return (0, 2**bits - 1) if found[1] else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
