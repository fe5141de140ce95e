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


def plain_of(relation: Any, domain: Any) -> Any:
    """Return a relation without quotients, if its affine hull is a function on the same domain.

    Then the hull is the relation: it holds all of it, and no more than one element an iteration.
    """
    hull = library().Map.from_basic_map(relation.affine_hull()).intersect_domain(domain)
    return hull if hull.is_single_valued() and domain.is_subset(relation.domain()) else relation
