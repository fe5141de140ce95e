"""Small tools for this package's values: an immutable mapping, and checks whose errors name the faulty value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from roller_tvm.errors import SpecError

V = TypeVar("V")


class FrozenMap(Mapping[str, V], Generic[V]):
    """A hashable mapping that cannot change; keeps the order it was given.

    Examples
    --------
    >>> peak = FrozenMap({"float32": 15700.0})
    >>> peak["float32"], hash(peak) == hash(FrozenMap({"float32": 15700.0}))
    (15700.0, True)
    """

    __slots__ = ("_items", "_hash")

    def __init__(self, items: Mapping[str, V] | None = None) -> None:
        self._items: dict[str, V] = dict(items or {})
        self._hash = hash(frozenset(self._items.items()))

    def __getitem__(self, key: str) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"FrozenMap({self._items!r})"


def check(ok: bool, what: str, where: str, remedy: str = "") -> None:
    if not ok:
        raise SpecError(what, where=where, remedy=remedy or "correct this number in the spec file")


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
