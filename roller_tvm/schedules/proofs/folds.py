"""Copies in the coordinates of their tiles: threads and loops that go along a tile are one number, read as digits.

A copy goes along a tile by ``trip * threads + thread``, and divides that by the tile's lengths; what reads the tile
divides the thread by others. One choice of digits of the thread serves one of them alone. So a copy gets digits of its
own: the number that goes along its tile takes the place of the thread and the loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...codegen.flat import direct_parts, kind_of, parts_of
from .kernel import Axis, Dim, Fold, value_of
from .sums import QUOTIENTS, Part, Sum, sum_of

_SIGNS = {"LT": "<", "LE": "<=", "GT": ">", "GE": ">="}
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Unfoldable(Exception):
    """A copy uses its loops in other ways than by one number and its digits."""


@dataclass
class _Group:
    """A number that goes along a tile, and where its digits have to begin."""

    axes: tuple[Axis, ...]  # the one that goes in the smallest steps first
    count: int
    cuts: set[int] = field(default_factory=lambda: {1})
    dims: tuple[Dim, ...] = ()

    def runs(self, factors: Mapping[int, int]) -> list[tuple[int, int, int]]:
        """Return a sum of axes as (factor, low, high): factors times parts of the number."""
        found: list[list[int]] = []
        last = None
        for axis in self.axes:
            by = factors.get(axis.var, 0)
            if by and last is not None and by * last[1] == last[0] * axis.factor and found[-1][2] == axis.factor:
                found[-1][2] = axis.factor * axis.extent
            elif by:
                found.append([by, axis.factor, axis.factor * axis.extent])
            last = (by, axis.factor) if by else None
        return [(by, low, high if high < self.count else 0) for by, low, high in found]

    def run_of(self, part: Part) -> tuple[int, int] | None:
        """Return (low, high) of the number for a part of a sum of axes; None if it is no part of the number."""
        factors = dict(part.base)
        runs = self.runs(factors)
        if len(runs) > 1 and part.high:
            for low in (axis.factor for axis in self.axes):  # the number // low, but for multiples of what is cut off
                if all((factors.get(a.var, 0) - a.factor // low) % part.high == 0 for a in self.axes):
                    return low * part.low, low * part.high
            runs = self.runs({var: by % part.high for var, by in factors.items()})
        if len(runs) != 1 or runs[0][0] != 1:
            return None
        _, low, high = runs[0]
        if not part.high:
            return low * part.low, high
        if not high or not (high // low) % part.high:
            return low * part.low, low * part.high
        return (low * part.low, high) if high // low <= part.high else None

    def has(self, part: Part) -> bool:
        """Return whether a part of a sum of axes is one of the number."""
        return self.run_of(part) is not None

    def digits(self, low: int, high: int) -> list[tuple[int, Dim]]:
        """Return the digits of ``number % high // low``, each with its factor; once chosen, they begin nowhere else."""
        cuts = {n for n in (low, high) if 1 < n < self.count}
        if self.dims and not cuts <= self.cuts:
            raise Unfoldable
        self.cuts |= cuts
        return [(d.stride // low, d) for d in self.dims if d.stride >= low and (not high or d.stride < high)]

    def below(self, limit: int) -> str:
        """Return the rule by which the number is below a limit."""
        if limit >= self.count or limit <= 0:
            return "true" if limit > 0 else "false"
        stride = max((d.stride for d in self.dims if not limit % d.stride), default=1)
        return f"{_told([(by, d) for by, d in self.digits(stride, 0)])} < {limit // stride}"

    def settle(self, first: int, loop: int, kind: str, name: str) -> None:
        """Choose the digits: each begins where one is needed."""
        strides = sorted(self.cuts, reverse=True)
        if any(a % b for a, b in zip(strides, strides[1:], strict=False)):
            raise Unfoldable
        outer = self.count
        dims = []
        for n, stride in enumerate(strides):
            dims.append(Dim(first + n, name, kind, -(-outer // stride), loop, stride))
            outer = stride
        self.dims = tuple(dims)


class Folding:
    """The folds of one statement while it is read.

    Parameters
    ----------
    groups : sequence of sequence of Axis
    values : mapping
        Hash of a bound variable -> its value.
    other : function of (hash of a variable, low, high)
        Returns a part of a variable that is in no fold as terms, None where it is no sum of digits.
    """

    def __init__(self, groups: Iterable[Sequence[Axis]], values: Mapping[int, Any], other: Other) -> None:
        self.values, self.other = values, other
        self.groups = [_Group(tuple(axes), axes[-1].factor * axes[-1].extent) for axes in groups]
        self.group_of = {axis.var: group for group in self.groups for axis in group.axes}

    @property
    def folded(self) -> set[Dim]:
        """Dimensions that are not the statement's."""
        return {dim for group in self.groups for axis in group.axes for dim in axis.dims}

    def __contains__(self, dim: Dim) -> bool:
        return dim in self.folded

    def settle(self, number: int, loop: int, kind: str, name: str) -> None:
        """Choose the digits, after all texts were asked for once; `number` and `loop` are the first new ones."""
        for n, group in enumerate(self.groups):
            group.settle(number, loop + n, kind, name)
            number += len(group.dims)

    @property
    def folds(self) -> tuple[Fold, ...]:
        return tuple(Fold(group.dims, group.axes) for group in self.groups)

    @property
    def rules(self) -> list[str]:
        """Ranges of the digits."""
        found = []
        for group in self.groups:
            found += [f"0 <= {d.var} < 0 + {d.extent}" for d in group.dims]
            if group.count % group.dims[0].stride:
                found.append(f"{value_of(group.dims)} < {group.count}")
        return found

    def terms(self, node: Any) -> tuple[list[Term], int] | None:
        """Return an expression as digits, each with its factor, and a constant."""
        found, terms = sum_of(node, self.values), list[Term]()
        if found is None:
            return None
        plain: dict[int, dict[int, int]] = {}
        for one in self.groups:
            found = found.widened({axis.var for axis in one.axes}.__contains__)
            found = found.joined({axis.var: axis.extent for axis in one.axes}, one.has)
        for part, factor in found.parts.items():
            groups = {id(self.group_of.get(var)): self.group_of.get(var) for var, _ in part.base}
            if len(groups) != 1:
                return None
            (group,) = groups.values()
            if group is None:
                if len(part.base) > 1 or part.base[0][1] != 1:
                    return None
                other = self.other(part.base[0][0], part.low, part.high)
                if other is None:
                    return None
                terms += [(name, factor * by, extent) for name, by, extent in other]
            elif part.plain:
                own = plain.setdefault(self.groups.index(group), {})
                for var, by in part.base:
                    own[var] = own.get(var, 0) + factor * by
            else:
                run = group.run_of(part)
                if run is None:
                    return None
                terms += [(d.var, factor * by, d.extent) for by, d in group.digits(*run)]
        for n, factors in plain.items():
            for by, low, high in self.groups[n].runs(factors):
                terms += [(d.var, by * step, d.extent) for step, d in self.groups[n].digits(low, high)]
        return terms, found.start

    def covers(self, node: Any) -> bool:
        """Return whether an expression uses folded variables as the number that goes along a tile alone."""
        kind = kind_of(node)
        if kind in ("LT", "LE", "GT", "GE") and self.compared(node.a, _SIGNS[kind], node.b) is not None:
            return True
        if kind in ("Var", "SizeVar", "Add", "Sub", "Mul", "Cast", *QUOTIENTS) and self.text(node) is not None:
            return True
        if kind in ("Var", "SizeVar"):
            return hash(node) not in self.group_of
        return all(self.covers(part) for part in direct_parts(node))

    def text(self, node: Any) -> str | None:
        """Return an expression in isl's notation; None if it is no sum of digits and whole variables."""
        found = self.terms(node)
        if found is None:
            return None
        terms, start = found
        told = [*_factors((by, name) for name, by, _ in terms), *([str(start)] if start else [])]
        return f"({' + '.join(told)})" if told else "0"

    def compared(self, a: Any, sign: str, b: Any) -> str | None:
        """Return a comparison of the number that goes along a tile, from a digit on, with a constant; else None."""
        one, other = sum_of(a, self.values), sum_of(b, self.values)
        if one is None or other is None or sign not in _OPPOSITE:
            return None
        total = one.plus(other, -1)
        if set(total.parts.values()) == {-1}:
            total, sign = Sum({}).plus(total, -1), _TURNED[sign]
        bases = {var for part in total.parts for var, _ in part.base}
        groups = [self.group_of.get(var) for var in bases]
        if not groups or groups[0] is None or any(group is not groups[0] for group in groups):
            return None
        group, part = groups[0], total.one()
        if part is None or (run := group.run_of(part)) is None or run[1]:
            return None
        limit = run[0] * (-total.start + (sign in ("<=", ">")))
        told = group.below(limit)
        if sign in ("<", "<="):
            return told
        return {"true": "false", "false": "true"}.get(told) or told.replace(" < ", " >= ")


#: A digit: its name, its factor, its number of values (0: open).
Term = tuple[str, int, int]
Other = Callable[[int, int, int], list[Term] | None]


def _factors(terms: Iterable[tuple[int, str]]) -> list[str]:
    return [f"{by}*{name}" if by != 1 else name for by, name in terms]


def _told(terms: Iterable[tuple[int, Dim]]) -> str:
    return " + ".join(_factors((by, d.var) for by, d in terms)) or "0"


def groups_of(
    nodes: Iterable[Any], values: Mapping[int, Any], axes: Mapping[int, Axis], threads: set[int], wide: bool
) -> list[list[Axis]] | None:  # fmt: skip
    """Return the axes that go along tiles together, each with its factor: those that are divided with a thread.

    None if there are none, or if some go along no tile.

    Parameters
    ----------
    nodes : iterable
        Indices and conditions of a statement.
    values : mapping
        Hash of a bound variable -> its value.
    axes : mapping
        Hash of a variable -> it, for those that may be folded.
    threads : set of int
        Those of them that are threads.
    wide : bool
        Whether loops that are added to a quotient go along with it, as in ``2*x + y // 4``.
    """
    bases: list[dict[int, int]] = []
    for node in nodes:
        for inner in parts_of(node):
            if kind_of(inner) not in ("Add", *QUOTIENTS) or (found := sum_of(inner, values)) is None:
                continue
            if wide:
                cut = [dict(part.base) for part in found.widened(axes.__contains__).parts if not part.plain]
                bases += [base for base in cut if set(base) <= set(axes) and _tile([base], axes)]
            if kind_of(inner) != "Add":
                bases += [dict(part.base) for part in found.parts]
    groups: list[set[int]] = []
    for base in bases:
        joined = set(base).union(*(g for g in groups if not g.isdisjoint(base)))
        groups = [g for g in groups if g.isdisjoint(base)] + [joined]
    found_groups = []
    for group in groups:
        if group.isdisjoint(threads):
            continue
        if not group <= set(axes):
            return None
        tile = _tile([base for base in bases if set(base) == group], axes)
        if tile is None:
            return None
        found_groups.append(tile)
    return found_groups or None


def _tile(bases: Iterable[Mapping[int, int]], axes: Mapping[int, Axis]) -> list[Axis] | None:
    """Return the axes of the first sum of all of them in which each goes on where the smaller ones end."""
    for base in bases:
        found, step = [], 1
        for var, factor in sorted(base.items(), key=lambda item: item[1]):
            if factor != step:
                break
            axis = axes[var]
            found.append(Axis(var, axis.name, axis.dims, factor, axis.extent))
            step *= axis.extent
        else:
            return found
    return None
