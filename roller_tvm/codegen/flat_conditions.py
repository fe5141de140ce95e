"""Conditions of flattened functions as sums that are below 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .flat import Sum, called, counts, kind_of, number_of, parts_of, sum_of

#: No names.
EMPTY: Mapping[int, Any] = {}


def conjuncts(condition: Any, named: Mapping[int, Any] = EMPTY) -> Iterator[Any]:
    """Yield the parts of a conjunction; a condition that is none yields itself, a name the parts of its value."""
    condition = named.get(hash(condition), condition)
    if kind_of(condition) == "And":
        yield from conjuncts(condition.a, named)
        yield from conjuncts(condition.b, named)
    elif called(condition) == "likely":
        yield from conjuncts(condition.args[0], named)
    else:
        yield condition


def below_zero(condition: Any, named: Mapping[int, Any], lane: Any) -> Sum | None:
    """Return the sum that is below 0 exactly if the condition holds; None if there is no such sum.

    TVM divides by a whole number if that divides the rest: ``4 t + (n + 1) // 4 < 25`` stands for
    ``16 t + n + 1 < 100``, and ``1 <= 5 t + 3 n // 2`` for ``2 <= 10 t + 3 n``.
    """
    if kind_of(condition) not in ("LT", "LE") or not counts(condition.a) or not counts(condition.b):
        return None
    sides = condition.a, condition.b
    quotients: dict[int, tuple[Sum, int]] = {}
    for part in (part for side in sides for part in _named_parts(side, named)):
        if (of_part := _quotient(part, named, lane)) is not None:
            quotients[hash(part)] = of_part

    def difference(quotient: Any) -> Sum | None:
        known = {**named, **dict.fromkeys(quotients, quotient)}
        a, b = (sum_of(side, known, {hash(lane)}) for side in sides)
        return None if a is None or b is None else a.plus(b, -1).plus(Sum(-int(kind_of(condition) == "LE")))

    found, rest = difference(lane), difference(0)
    if found is None or rest is None or not quotients:
        return found
    (divided, by), *others = quotients.values()
    if rest.of(lane) or any(n != by or not value.same(divided) for value, n in others):
        return None
    if found.of(lane) == 1:
        return divided.plus(rest, by)
    return Sum(by - 1).plus(divided, -1).plus(rest, by) if found.of(lane) == -1 else None


def _named_parts(expression: Any, named: Mapping[int, Any]) -> Iterator[Any]:
    """Yield the parts of an expression, and those of the values that its names stand for."""
    for part in parts_of(expression):
        yield part
        if (value := named.get(hash(part))) is not None:
            yield from _named_parts(value, named)


def _quotient(node: Any, named: Mapping[int, Any], lane: Any) -> tuple[Sum, int] | None:
    """Return a multiple of a lane's number plus a constant, and its divisor; None if the node divides no such sum."""
    shifted = called(node) == "shift_right"
    if kind_of(node) not in ("FloorDiv", "Div") and not shifted:
        return None
    value, by = node.args if shifted else (node.a, node.b)
    number, divided = number_of(by), sum_of(value, named, {hash(lane)})
    if number is None or number < 0 or divided is None:
        return None
    if divided.of(lane) < 1 or not divided.without(lane).is_number:
        return None
    if kind_of(node) == "Div" and divided.number < 0:  # rounds towards 0
        return None
    return divided, 1 << number if shifted else number
