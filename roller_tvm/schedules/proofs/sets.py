"""isl, the library of integer sets, by islpy; without it, one error with the remedy."""

from __future__ import annotations

from types import ModuleType

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
