"""Index expressions over iteration axes: affine, divided, clamped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import gcd


@dataclass(frozen=True)
class Index:
    """One dimension of an access: ``floor((const + sum(coefficient * axis)) / divisor)``.

    Parameters
    ----------
    terms : tuple of (axis name, coefficient)
        Non-zero coefficients, each axis once, in the order written.
    const : int
        Constant offset (negative for padding).
    opaque : bool
        True if nothing is known of the index (a gather): the tile is then taken to touch the whole dimension.
    divisor : int
        Above 1 if the index is a floor quotient: a dilated tensor, nearest-neighbour resizing.
    clamped : bool
        True if the index follows the formula only in the interior: clamped, mirrored or wrapped at a border.
    axes : tuple of str
        Names of `terms`.

    Examples
    --------
    >>> Index.of({"oh": 2, "kh": 1}, -1)
    Index(2*oh + kh - 1)
    >>> Index.of({"h": 1}, 1, divisor=2)
    Index((h + 1)//2)
    """

    terms: tuple[tuple[str, int], ...] = ()
    const: int = 0
    opaque: bool = False
    divisor: int = 1
    clamped: bool = False
    axes: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple([name for name, _ in self.terms]))
        if len(set(self.axes)) != len(self.terms):
            raise ValueError(f"an axis occurs twice in the index {self.terms}")
        if 0 in [coefficient for _, coefficient in self.terms]:
            raise ValueError(f"a coefficient of 0 in the index {self.terms}")
        if self.divisor < 1:
            raise ValueError(f"the divisor of an index must be >= 1 (got {self.divisor})")
        if self.opaque and (self.terms or self.const or self.divisor > 1 or self.clamped):
            raise ValueError("an opaque index carries no terms")

    @classmethod
    def of(
        cls, terms: Mapping[str, int] | None = None, const: int = 0, divisor: int = 1, clamped: bool = False
    ) -> Index:
        """Return the index of a mapping axis -> coefficient; drops zero coefficients and reduces the quotient."""
        kept = tuple((n, c) for n, c in (terms or {}).items() if c)
        if (common := gcd(divisor, *(c for _, c in kept)) if divisor > 1 else 1) > 1:
            kept, const, divisor = tuple((n, c // common) for n, c in kept), const // common, divisor // common
        return cls(kept, const, False, divisor, clamped)

    @classmethod
    def axis(cls, name: str) -> Index:
        """Return the index that is just one axis."""
        return _axis(name)

    @classmethod
    def whole(cls) -> Index:
        """Return the opaque index: nothing is known of it, so tiles touch the whole dimension."""
        return cls(opaque=True)

    @property
    def is_affine(self) -> bool:
        """True if the index equals its sum everywhere: neither opaque, nor divided, nor clamped."""
        return not self.opaque and self.divisor == 1 and not self.clamped

    def coefficient(self, axis: str) -> int:
        """Return the coefficient of an axis, 0 if it does not occur."""
        return dict(self.terms).get(axis, 0)

    def value(self, point: Mapping[str, int]) -> int:
        """Return the index at one iteration point of the interior."""
        return (self.const + sum(c * point[n] for n, c in self.terms)) // self.divisor

    def extent(self, tile: Mapping[str, int]) -> int:
        """Return the number of elements from the first to the last that a tile touches, both counted.

        For a quotient: the largest number over the positions of aligned tiles.

        Examples
        --------
        >>> Index.of({"h": 2, "kh": 1}).extent({"h": 4, "kh": 3})
        9
        >>> Index.of({"h": 1, "kh": 1}, -1, divisor=2).extent({"h": 4, "kh": 3})
        4
        """
        span = sum(abs(c) * (tile[n] - 1) for n, c in self.terms)
        return 1 + (span + (self.phases(tile)[-1] if self.divisor > 1 else 0)) // self.divisor

    def phases(self, tile: Mapping[str, int]) -> range:
        """Return the possible remainders, by the divisor, of the first element of an aligned tile."""
        step = gcd(self.divisor, *(c * tile[n] for n, c in self.terms))
        first = self.const + sum(c * (tile[n] - 1) for n, c in self.terms if c < 0)
        return range(first % step, self.divisor, step)

    def substitute(self, inner: Mapping[str, Index]) -> Index:
        """Replace axes by indices over other axes (composition of access maps)."""
        if self.opaque:
            return self
        used = [inner.get(name, Index.axis(name)) for name in self.axes]
        divided = [(c, i) for (_, c), i in zip(self.terms, used, strict=True) if i.divisor > 1]
        # floor((floor(n / e) + r) / d) is floor((n + e*r) / (d*e)); a multiple of a quotient is no quotient.
        if any(i.opaque for i in used) or len(divided) > 1 or any(abs(c) != 1 for c, _ in divided):
            return Index.whole()
        scale = divided[0][1].divisor if divided else 1
        total: dict[str, int] = {}
        const = self.const * scale
        for (_, coefficient), replacement in zip(self.terms, used, strict=True):
            factor = coefficient * (scale // replacement.divisor)
            # -floor(n / e) is floor((-n + e - 1) / e).
            const += factor * replacement.const + (replacement.divisor - 1 if factor < 0 else 0)
            for axis, c in replacement.terms:
                total[axis] = total.get(axis, 0) + factor * c
        clamped = self.clamped or any(i.clamped for i in used)
        return Index.of(total, const, self.divisor * scale, clamped)

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
        if self.divisor > 1:
            text = f"({text})//{self.divisor}" if " " in text or "*" in text else f"{text}//{self.divisor}"
        return f"clamp({text})" if self.clamped else text

    def __repr__(self) -> str:
        return f"Index({self})"

    def to_json(self) -> dict | str:
        if self.opaque:
            return "?"
        data: dict = {"terms": [list(t) for t in self.terms], "const": self.const}
        if self.divisor > 1:
            data["divisor"] = self.divisor
        return {**data, "clamped": True} if self.clamped else data

    @classmethod
    def from_json(cls, data: dict | str) -> Index:
        if data == "?":
            return cls.whole()
        assert isinstance(data, dict)
        terms = tuple((str(n), int(c)) for n, c in data["terms"])
        return cls(terms, int(data["const"]), False, int(data.get("divisor", 1)), bool(data.get("clamped", False)))

    def without(self, axes: frozenset[str]) -> Index:
        """Return the index with these axes set to 0."""
        if self.opaque or axes.isdisjoint(self.axes):
            return self
        return replace(self, terms=tuple(t for t in self.terms if t[0] not in axes))


@lru_cache(maxsize=1024)
def _axis(name: str) -> Index:
    return Index(((name, 1),))
