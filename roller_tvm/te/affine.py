"""Index arithmetic of TVM as affine forms, with axes split where they are divided.

An index such as ``(oco*16 + oci) // 16`` or ``ic % 16`` is affine over *digits*: the digit
``(v, lo, hi)`` is ``v // lo % (hi // lo)``. The digits a stage uses tell how to split its axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..ir.affine import Index
from ..ir.stage import Axis

Digit = tuple[int, int, int]  # position of the TE axis in its stage, lo, hi


@dataclass(frozen=True)
class Affine:
    """``const + sum(coefficient * digit)``."""

    terms: dict[Digit, int] = field(default_factory=dict)
    const: int = 0

    def plus(self, other: Affine, sign: int = 1) -> Affine:
        terms = dict(self.terms)
        for digit, c in other.terms.items():
            terms[digit] = terms.get(digit, 0) + sign * c
        return Affine({d: c for d, c in terms.items() if c}, self.const + sign * other.const)

    def times(self, factor: int) -> Affine:
        return Affine({d: c * factor for d, c in self.terms.items()} if factor else {}, self.const * factor)

    def range(self) -> tuple[int, int]:
        """Return the least and the greatest value."""
        low = high = self.const
        for (_, lo, hi), c in self.terms.items():
            span = c * (hi // lo - 1)
            low, high = (low + span, high) if c < 0 else (low, high + span)
        return low, high

    def divide(self, k: int) -> tuple[Affine, Affine] | None:
        """Return floor quotient and remainder by `k`; None if they are not affine over digits."""
        whole = Affine({d: c // k for d, c in self.terms.items() if c % k == 0}, self.const // k)
        rest = Affine({d: c for d, c in self.terms.items() if c % k}, self.const % k)
        low, high = rest.range()
        if low >= 0 and high < k:
            return whole, rest
        # One digit may straddle k, if all else stays below its step.
        for digit, c in rest.terms.items():
            var, lo, hi = digit
            if c < 0 or k % c or (hi // lo) % (k // c):
                continue
            below = Affine({d: x for d, x in rest.terms.items() if d != digit}, rest.const)
            low, high = below.range()
            if low >= 0 and high < c:
                cut = lo * (k // c)
                return whole.plus(Affine({(var, cut, hi): 1})), below.plus(Affine({(var, lo, cut): c}))
        return None


def constant(node: Any) -> int | None:
    """Return the value of an integer immediate; None for anything else."""
    if isinstance(node, int):
        return node
    return int(node.value) if type(node).__name__ == "IntImm" else None


def type_of(node: Any) -> str:
    """Return the dtype of an expression as text, "" if it has none. The Relax line calls it ``ty``."""
    found = getattr(node, "dtype", None) or getattr(node, "ty", None)
    return "" if found is None else str(found)


def affine(node: Any, axis_of: Callable[[Any], tuple[int, int, int] | None]) -> Affine | None:
    """Return the affine form of an index expression; None if it has none.

    Parameters
    ----------
    node : PrimExpr
    axis_of : callable
        Variable -> (position of its axis, least value, extent), or None if it is no axis.
    """
    kind = type(node).__name__
    if kind in ("IntImm", "int"):
        return Affine(const=int(getattr(node, "value", node)))
    if kind in ("Var", "SizeVar"):
        found = axis_of(node)
        return None if found is None else Affine({(found[0], 1, found[2]): 1}, found[1])
    if kind == "Cast":
        return affine(node.value, axis_of) if "int" in type_of(node) else None
    if kind not in ("Add", "Sub", "Mul", "FloorDiv", "FloorMod", "Div", "Mod"):
        return None
    a, b = affine(node.a, axis_of), affine(node.b, axis_of)
    if a is None or b is None:
        return None
    if kind in ("Add", "Sub"):
        return a.plus(b, 1 if kind == "Add" else -1)
    if kind == "Mul":
        return a.times(b.const) if not b.terms else b.times(a.const) if not a.terms else None
    if b.terms or b.const <= 0 or (kind in ("Div", "Mod") and a.range()[0] < 0):
        return None
    parts = a.divide(b.const)
    return None if parts is None else parts["Mod" in kind]


class Splits:
    """Cuts of a stage's axes such that every index is affine over the parts."""

    def __init__(self, extents: list[int]) -> None:
        self.cuts = [[1, e] if e > 1 else [1] for e in extents]

    def accept(self, digits: Iterable[Digit]) -> bool:
        """Make the cuts that these digits need; return False, and change nothing, if they clash with earlier ones."""
        new: dict[int, list[int]] = {}
        for var, lo, hi in digits:
            cuts = sorted({*new.get(var, self.cuts[var]), lo, hi})
            if any(b % a for a, b in zip(cuts, cuts[1:], strict=False)):
                return False
            new[var] = cuts
        for var, cuts in new.items():
            self.cuts[var] = cuts
        return True

    def axes(self, var: int, name: str, extent: int, kind: str) -> tuple[Axis, ...]:
        """Return the axes that one TE axis becomes, outermost first."""
        cuts = self.cuts[var]
        if len(cuts) <= 2:
            return (Axis(name, extent, kind),)
        return tuple(
            Axis(part, high // low, kind, (name, low))
            for part, low, high in zip(
                _part_names(name, len(cuts) - 1), cuts[-2::-1], cuts[:0:-1], strict=True
            )
        )

    def index(self, form: Affine, names: list[tuple[str, ...]]) -> Index:
        """Return the form as an index over the parts; `names` holds each axis's parts, outermost first."""
        terms: dict[str, int] = {}
        for (var, lo, hi), c in form.terms.items():
            cuts = self.cuts[var]
            if len(cuts) == 1:
                terms[names[var][0]] = terms.get(names[var][0], 0) + c
                continue
            parts = dict(zip(cuts[:-1], reversed(names[var]), strict=True))
            for low in sorted((x for x in parts if lo <= x < hi), reverse=True):
                terms[parts[low]] = terms.get(parts[low], 0) + c * (low // lo)
        # One order for equal indices, that of the axes: accesses are compared and hashed.
        order = [part for axis in names for part in axis]
        return Index.of({n: terms[n] for n in order if n in terms}, form.const)


def _part_names(name: str, count: int) -> list[str]:
    middle = [f"{name}.m{i}" if count > 3 else f"{name}.m" for i in range(count - 2)]
    return [f"{name}.o", *middle, f"{name}.i"]
