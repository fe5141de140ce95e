"""Affine index expressions over iteration axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Index:
    """One dimension of an access: ``const + sum(coefficient * axis)``.

    Parameters
    ----------
    terms : tuple of (axis name, coefficient)
        Non-zero coefficients, each axis once, in the order written.
    const : int
        Constant offset (negative for padding).
    opaque : bool
        True where the index is not affine in the axes (a gather, a resize): the whole dimension
        is then taken to be touched.

    Examples
    --------
    >>> Index.of({"oh": 2, "kh": 1}, -1)
    Index(2*oh + kh - 1)
    """

    terms: tuple[tuple[str, int], ...] = ()
    const: int = 0
    opaque: bool = False

    def __post_init__(self) -> None:
        names = [name for name, _ in self.terms]
        if len(set(names)) != len(names):
            raise ValueError(f"an axis occurs twice in the index {self.terms}")
        if any(coefficient == 0 for _, coefficient in self.terms):
            raise ValueError(f"a coefficient of 0 in the index {self.terms}")
        if self.opaque and (self.terms or self.const):
            raise ValueError("an opaque index carries no terms")

    @classmethod
    def of(cls, terms: Mapping[str, int] | None = None, const: int = 0) -> Index:
        """An index from a mapping axis -> coefficient; zero coefficients are dropped."""
        return cls(tuple((n, c) for n, c in (terms or {}).items() if c), const)

    @classmethod
    def axis(cls, name: str) -> Index:
        """The index that is just one axis."""
        return cls(((name, 1),))

    @classmethod
    def whole(cls) -> Index:
        """An index that no affine map describes: the whole dimension."""
        return cls(opaque=True)

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.terms)

    def coefficient(self, axis: str) -> int:
        """The coefficient of one axis, 0 if it does not occur."""
        return dict(self.terms).get(axis, 0)

    def value(self, point: Mapping[str, int]) -> int:
        """The index at one iteration point."""
        return self.const + sum(c * point[n] for n, c in self.terms)

    def substitute(self, inner: Mapping[str, Index]) -> Index:
        """Replace axes by indices over other axes (composition of access maps)."""
        if self.opaque:
            return self
        total: dict[str, int] = {}
        const = self.const
        for name, coefficient in self.terms:
            replacement = inner.get(name, Index.axis(name))
            if replacement.opaque:
                return Index.whole()
            const += coefficient * replacement.const
            for axis, c in replacement.terms:
                total[axis] = total.get(axis, 0) + coefficient * c
        return Index.of(total, const)

    def __str__(self) -> str:
        if self.opaque:
            return "?"
        text = ""
        for name, c in self.terms:
            sign = " - " if c < 0 else " + "
            body = name if abs(c) == 1 else f"{abs(c)}*{name}"
            text += (sign if text else ("-" if c < 0 else "")) + body
        if self.const or not text:
            sign = " - " if self.const < 0 else " + "
            text += f"{sign}{abs(self.const)}" if text else str(self.const)
        return text

    def __repr__(self) -> str:
        return f"Index({self})"

    def to_json(self) -> dict | str:
        return "?" if self.opaque else {"terms": [list(t) for t in self.terms], "const": self.const}

    @classmethod
    def from_json(cls, data: dict | str) -> Index:
        if data == "?":
            return cls.whole()
        assert isinstance(data, dict)
        return cls(tuple((str(n), int(c)) for n, c in data["terms"]), int(data["const"]))
