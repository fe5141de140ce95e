"""Ways of values: the operations that an element passes until it reaches an output, in either TVM line's names."""

from __future__ import annotations

from math import inf
from typing import Any

from ...codegen.flat import called, kind_of
from ...te.numbering import dtype_of_node

#: Operations, the outermost first.
Way = tuple[str, ...]
#: All ways by which one value gets to another.
Ways = frozenset[Way]
AS_IT_IS: Ways = frozenset({()})
#: Steps of what decides which value is taken, and of what tells where it stands.
CHOICE, INDEX = "choice", "index"
#: The first of these where data decide.
DATA = "choice by data"
#: Operations of which it is the same which part stands left. One in the other is one with more parts.
EITHER = ("Add", "Mul", "Max", "Min", "And", "Or")
#: Largest numbers of types of values (float16, bfloat16, float32, float64, int32, int64), with which a maximum starts.
LARGEST = (65504.0, 3.3895313892515355e38, 3.4028234663852886e38, 1.7976931348623157e308, 2147483648.0, 2.0**63, inf)
#: Stands for the number of a loop that is a value, of which nothing is compared.
PLACE = "a place"
#: Constants.
IMMEDIATE = ("FloatImm", "IntImm")
#: These hand a value on.
_SAME = ("Broadcast", "Ramp", "Shuffle")


def step_of(node: Any, number: int, parts: int) -> Way:
    """Return the step from a part of an expression, by its number, to the expression."""
    kind = kind_of(node)
    if kind == "Cast":
        return (f"to {dtype_of_node(node)}",)
    if kind in _SAME:
        return ()
    name = operation_of(node)
    return (name if kind in EITHER or parts < 2 else f"{name}.{number}",)


def operation_of(node: Any) -> str:
    """Return the operation of an expression: its kind, or the function that it calls."""
    if kind_of(node) != "Call":
        return kind_of(node)
    told = [called(node) or str(node.op), *(str(part.value) for part in node.args if kind_of(part) == "StringImm")]
    return " ".join([*told, dtype_of_node(node)] if told[0] == "reinterpret" else told)


def joined(outer: Way, inner: Way) -> Way:
    """Return one way after another.

    Examples
    --------
    >>> joined(("Add",), ("Add", "exp"))
    ('Add', 'exp')
    >>> joined(("Sub.1",), ("Sub.1",))
    ('Sub.1', 'Sub.1')
    """
    if outer and inner and outer[-1] == inner[0] and inner[0] in EITHER:
        return (*outer, *inner[1:])
    return (*outer, *inner)


def both_of(outer: Ways, inner: Ways) -> Ways:
    """Return each of the outer ways after each of the inner ones."""
    return frozenset(joined(one, other) for one in outer for other in inner)


def is_neutral(number: str, way: Way) -> bool:
    """Return whether a constant tells nothing about a value.

    A schedule may set and pad with what changes nothing where its way begins. Whole numbers in conditions and indices
    are places, which a schedule computes in other ways.

    Examples
    --------
    >>> is_neutral("0.0", ("Add",)), is_neutral("0.0", ("Add", "Mul")), is_neutral("0.0", ("Max",))
    (True, True, False)
    """
    value = float(number)
    if INDEX in way or (CHOICE in way and number.lstrip("-").isdigit()):
        return True
    if way[-1:] == ("Add",) or way[-2:] == ("Add", "Mul"):
        return value == 0
    if way[-1:] == ("Mul",):
        return value == 1
    first = way[-1:] in (("Max",), ("Min",)) and (value < 0) == (way[-1] == "Max")
    return first and min(abs(value), abs(value + 1)) in LARGEST  # 2^31 - 1 is the largest of int32


def text_of(ways: Ways) -> str:
    """Return ways in words.

    Examples
    --------
    >>> text_of(frozenset({("Mul",), ("Add", "exp")}))
    'Add exp | Mul'
    """
    return " | ".join(sorted(" ".join(way) for way in ways))


def combiner_of(reducer: Any) -> str:
    """Return the operation of a reduction over threads, 'reducer' if it is none of TVM's own."""
    results = list(getattr(reducer, "result", ()))
    if len(results) != 1 or kind_of(results[0]) not in EITHER:
        return "reducer"
    wanted = [hash(reducer.lhs[0]), hash(reducer.rhs[0])]
    return kind_of(results[0]) if [hash(results[0].a), hash(results[0].b)] == wanted else "reducer"
