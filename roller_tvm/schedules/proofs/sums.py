"""Expressions as sums of parts: what is divided, and reduced, is a sum of variables, each with its factor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...codegen.flat import address_of, direct_parts, kind_of, number_of
from ...te.numbering import dtype_of_node

#: Kinds of quotients and rests.
QUOTIENTS = ("FloorDiv", "FloorMod", "Div", "Mod")


@dataclass(frozen=True)
class Part:
    """``base % high // low`` of a sum of variables, each by its hash with its factor; `high` is 0 if nothing is cut."""

    base: tuple[tuple[int, int], ...]
    low: int = 1
    high: int = 0

    @property
    def plain(self) -> bool:
        return self.low == 1 and not self.high


@dataclass(frozen=True)
class Sum:
    """A constant and parts, each with its factor.

    Examples
    --------
    >>> x, y = ((1, 112),), ((2, 1),)  # 112 times one variable, and another
    >>> quotient = Sum({Part(x): 1, Part(y): 1}).divided(16, False)
    >>> quotient.parts == {Part((*x, *y), 16): 1}
    True
    >>> Sum({Part(((1, 7),)): 1, Part(y, 16): 1}).widened(lambda variable: True).parts == quotient.parts
    True
    """

    parts: Mapping[Part, int]
    start: int = 0

    def plus(self, other: Sum, factor: int = 1) -> Sum:
        parts = dict(self.parts)
        for part, by in other.parts.items():
            parts[part] = parts.get(part, 0) + factor * by
        return Sum({part: by for part, by in parts.items() if by}, self.start + factor * other.start)

    def divided(self, by: int, rest: bool, extents: Mapping[int, int] | None = None) -> Sum | None:
        """Return the quotient by a number, or the rest; None if it is no such sum."""
        part = self.one() or self.joined(extents or {}).one()
        if part is None or self.start % by or (part.high and part.high % (part.low * by)):
            return None
        if rest:
            return Sum({Part(part.base, part.low, part.low * by): 1})
        return Sum({Part(part.base, part.low * by, part.high): 1}, self.start // by)

    def widened(self, allowed: Callable[[int], bool]) -> Sum:
        """Return the same with allowed variables within what is cut, if they go on there: ``2*x + y // 4``."""
        cut = [part for part, factor in self.parts.items() if not (part.plain or part.high) and factor == 1]
        if len(cut) != 1 or not all(allowed(var) for var, _ in cut[0].base):
            return self
        base, rest = dict(cut[0].base), dict(self.parts)
        del rest[cut[0]]
        for part, factor in self.parts.items():
            if part.plain and len(part.base) == 1 and allowed(part.base[0][0]):
                var, by = part.base[0]
                base[var] = base.get(var, 0) + cut[0].low * factor * by
                del rest[part]
        wide = Part(tuple(sorted(base.items())), cut[0].low)
        return Sum({**rest, wide: 1}, self.start)

    def joined(self, extents: Mapping[int, int], allowed: Callable[[Part], bool] = lambda part: True) -> Sum:
        """Return the same with what fits between the steps of a rest in it: ``2*(y % 9) + x`` is ``(2*y + x) % 18``.

        Parameters
        ----------
        extents : mapping
            Variable -> its number of values, from 0.
        allowed : function of a part
            Whether it may stand for others.

        Examples
        --------
        >>> rest = Sum({Part(((2, 1),), 1, 9): 2, Part(((1, 1),)): 1})
        >>> rest.joined({1: 2}).parts == {Part(((1, 1), (2, 2)), 1, 18): 1}
        True
        >>> rest.joined({1: 3}).parts == rest.parts
        True
        """
        for part, step in self.parts.items():
            if part.low != 1 or not part.high or step < 2:
                continue
            own = [p for p, by in self.parts.items() if p.plain and 0 < by < step and len(p.base) == 1]
            most = [self.parts[p] * p.base[0][1] * (extents.get(p.base[0][0], 0) - 1) for p in own]
            if not own or min(most) < 0 or sum(most) >= step:
                continue
            base = Counter({var: step * by for var, by in part.base})
            for plain in own:
                base.update({var: self.parts[plain] * by for var, by in plain.base})
            made = Part(tuple(sorted(base.items())), 1, step * part.high)
            if allowed(made):
                kept = {p: by for p, by in self.parts.items() if p is not part and p not in own}
                return Sum({**kept, made: kept.get(made, 0) + 1}, self.start)
        return self

    def one(self) -> Part | None:
        """Return this, but for the constant, as one part: ``7*x + y // 16`` is ``(112*x + y) // 16``."""
        cut = [part for part in self.parts if not part.plain]
        if len(cut) > 1 or any(self.parts[part] != 1 for part in cut):
            return None
        low, high = (cut[0].low, cut[0].high) if cut else (1, 0)
        if high and len(self.parts) > 1:
            return None
        base = dict(cut[0].base) if cut else {}
        for part, factor in self.parts.items():
            for var, by in part.base if part.plain else ():
                base[var] = base.get(var, 0) + low * factor * by
        return Part(tuple(sorted(base.items())), low, high)


class Values(dict[int, Any]):
    """Values of bound names by the names' hashes, and expressions as sums of parts, kept until a value changes."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: dict[int, tuple[Any, Sum | None]] = {}  # by the address of a node, which is held
        self.extents: dict[int, int] = {}  # loop variable -> its number of values, from 0

    def ranged(self, var: int, extent: int) -> None:
        """Note how many values a loop variable has, from 0; 0 if that is not known. It is no name of another one."""
        if self.extents.get(var, 0) != extent or var in self:
            self.sums.clear()
            self.pop(var, None)
            self.extents[var] = extent

    def __setitem__(self, name: int, value: Any) -> None:
        self.sums.clear()
        super().__setitem__(name, value)

    def __ior__(self, others: Any) -> Values:  # type: ignore[override,misc]
        self.sums.clear()
        self.update(others)
        return self


def sum_of(node: Any, values: Mapping[int, Any]) -> Sum | None:
    """Return an expression as a sum of parts; None for what is none."""
    if not isinstance(values, Values):
        return _sum_of(node, values)
    key = address_of(node)
    if (found := values.sums.get(key)) is None:
        found = values.sums[key] = node, _sum_of(node, values)
    return found[1]


def _sum_of(node: Any, values: Mapping[int, Any]) -> Sum | None:
    kind, number = kind_of(node), number_of(node)
    if number is not None:
        return Sum({}, number)
    if kind in ("Var", "SizeVar"):
        known = values.get(var := hash(node))
        return Sum({Part(((var, 1),)): 1}) if known is None else sum_of(known, values)
    if kind == "Cast" and dtype_of_node(node.value).startswith(("int", "uint")):
        return sum_of(node.value, values)
    if kind in ("Add", "Sub", "Mul", *QUOTIENTS):
        a, b = (sum_of(part, values) for part in direct_parts(node))
        if a is None or b is None:
            return None
        if kind in ("Add", "Sub"):
            return a.plus(b, 1 if kind == "Add" else -1)
        if kind == "Mul":
            a, b = (b, a) if not a.parts else (a, b)
            return None if b.parts else Sum({}).plus(a, b.start)
        extents = values.extents if isinstance(values, Values) else None
        return None if b.parts or b.start < 1 else a.divided(b.start, "Mod" in kind, extents)
    return None
