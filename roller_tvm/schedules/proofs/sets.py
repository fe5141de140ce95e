"""isl, the library of integer sets, by islpy; without it, one error with the remedy."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ...errors import RollerError


class NoIntegerSets(RollerError):
    """A proof was asked for and islpy is not installed."""


def library() -> ModuleType:
    """Return islpy; raise ``NoIntegerSets`` without it.

    Examples
    --------
    >>> library().Set("{ [i] : 0 <= i < 4 }").is_empty()
    False
    """
    try:
        import islpy
    except ImportError as error:
        remedy = "pip install 'roller-tvm[proof]'"
        raise NoIntegerSets("proofs need islpy, which is not installed", "prove", remedy) from error
    return islpy


def whole(value: Any) -> int:
    """Return a number of isl's; raise its error where its limit of work was met on the way."""
    try:
        return int(value.to_python())
    except TypeError:  # a text that isl did not finish
        raise library().Error("a number failed") from None


def plain_of(relation: Any, domain: Any) -> Any:
    """Return a relation without quotients, if its affine hull is a function on the same domain.

    Then the hull is the relation: it holds all of it, and no more than one element an iteration.
    """
    hull = library().Map.from_basic_map(relation.affine_hull()).intersect_domain(domain)
    return hull if hull.is_single_valued() and domain.is_subset(relation.domain()) else relation


def by_digits(relation: Any) -> bool:
    """Return whether a map is injective because its outputs are numbers whose digits are its inputs.

    False says nothing. isl's own test looks for two inputs with one output, which takes long where many are summed.

    Examples
    --------
    >>> isl = library()
    >>> by_digits(isl.Map("{ [i, j, k] -> [8*i + j, j + k] : 0 <= i < 4 and 0 <= j < 8 and 0 <= k < 3 }"))
    True
    >>> by_digits(isl.Map("{ [i, j] -> [7*i + j] : 0 <= i < 4 and 0 <= j < 8 }"))
    False
    """
    isl = library()
    parts, domain = relation.get_basic_maps(), relation.domain()
    if not parts:
        return True
    basic = parts[0] if len(parts) == 1 else relation.affine_hull()
    count = basic.dim(isl.dim_type.in_)
    ends = [(domain.dim_min_val(n), domain.dim_max_val(n)) for n in range(count)]  # for all parameters
    if not all(end.is_int() for both in ends for end in both):
        return False
    ranges = [whole(most - least) for least, most in ends]
    known, sums = {n for n in range(count) if not ranges[n]}, []
    for rule in basic.get_constraints():
        if rule.is_equality() and not any(_factors(rule, isl.dim_type.div, basic)):
            sums.append({n: abs(f) for n, f in enumerate(_factors(rule, isl.dim_type.in_, basic)) if f})
    while len(known) < count:
        found = {n for one in sums for n in _digits_of({n: f for n, f in one.items() if n not in known}, ranges)}
        if not found:
            return False
        known |= found
    return True


def maps_of(union: Any) -> list[Any]:
    """Return the maps of an isl.UnionMap."""
    found: list[Any] = []
    union.foreach_map(found.append)
    return found


def _factors(rule: Any, kind: Any, basic: Any) -> list[int]:
    return [whole(rule.get_coefficient_val(kind, n)) for n in range(basic.dim(kind))]


def _digits_of(factors: dict[int, int], ranges: list[int]) -> set[int]:
    """Return the terms of a sum that follow from it: each is larger than all smaller ones together."""
    most = 0
    for n, factor in sorted(factors.items(), key=lambda item: item[1]):
        if factor <= most:
            return set()
        most += factor * ranges[n]
    return set(factors)
