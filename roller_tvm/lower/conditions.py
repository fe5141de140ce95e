"""Conditions in flattened functions of either TVM line, as sums that must be below 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .flat_loops import Sum, called, counts, kind_of, number_of, parts_of, sum_of


def conjuncts(condition: Any) -> Iterator[Any]:
    """Yield the parts of a conjunction; a condition that is none yields itself."""
    if kind_of(condition) == "And":
        yield from conjuncts(condition.a)
        yield from conjuncts(condition.b)
    elif called(condition) == "likely":
        yield from conjuncts(condition.args[0])
    else:
        yield condition


def below_zero(condition: Any, named: Mapping[int, Any], lane: Any) -> Sum | None:
    """Return the sum that is below 0 exactly if the condition holds; None if there is no such sum.

    TVM divides by a whole number if that divides the rest: ``4 t + n // 4 < 25`` stands for ``16 t + n < 100``.
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
    """Return the divisor of a lane's number; 0 if the node divides nothing or anything but the lane's number."""
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
