"""Conditions of either TVM line's flattened functions, as sums that are below 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .flat_loops import Sum, called, counts, kind_of, number_of, parts_of, sum_of


def conjuncts(condition: Any) -> Iterator[Any]:
    """Conditions that hold together where this one does."""
    if kind_of(condition) == "And":
        yield from conjuncts(condition.a)
        yield from conjuncts(condition.b)
    elif called(condition) == "likely":
        yield from conjuncts(condition.args[0])
    else:
        yield condition


def below_zero(condition: Any, named: Mapping[int, Any], lane: Any) -> Sum | None:
    """What is below 0 where a condition holds.

    Where a whole number divides the rest of it, TVM has divided: ``4 t + n // 4 < 25`` is ``16 t + n < 100``.
    """
    if kind_of(condition) not in ("LT", "LE") or not counts(condition.a) or not counts(condition.b):
        return None
    sides = condition.a, condition.b
    parts = [part for side in sides for part in parts_of(side)]
    divided = [(hash(part), n) for part in parts if (n := _divisor(part, lane))]
    quotients = dict(divided)
    if len(set(quotients.values())) > 1 or divided and sum(hash(part) == hash(lane) for part in parts) > len(divided):
        return None
    a, b = (sum_of(side, {**named, **dict.fromkeys(quotients, lane)}, {hash(lane)}) for side in sides)
    if a is None or b is None:
        return None
    found = a.plus(b, -1).plus(Sum(-int(kind_of(condition) == "LE")))
    if not quotients:
        return found
    alone = Sum(0, {hash(lane): (lane, 1)})
    return alone.plus(found.plus(alone, -1), next(iter(quotients.values()))) if found.of(lane) == 1 else None


def _divisor(node: Any, lane: Any) -> int:
    """What a lane's number is divided by; 0 where it is not, or not it alone."""
    shifted = called(node) == "shift_right"
    if kind_of(node) != "FloorDiv" and not shifted:
        return 0
    value, by = node.args if shifted else (node.a, node.b)
    while kind_of(value) == "Cast" and counts(value) and counts(value.value):
        value = value.value
    number = number_of(by)
    if hash(value) != hash(lane) or number is None or number < 0:
        return 0
    return 1 << number if shifted else number
