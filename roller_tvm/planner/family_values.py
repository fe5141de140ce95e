"""Families of plans as values: members, the rules that choose one for a size, and how constants are packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, prod
from typing import Any

from ..ir import Stage, TensorExpression
from ..roller.steps import Pack, Step
from .construction import RankedPlan
from .lower import lower

#: The operator with extents of its open axes.
Operator = Callable[[Sequence[int]], TensorExpression]
#: Size that stands for the large ones: the extents of many tiles divide it.
LARGE = 336
#: Size whose time is told.
TYPICAL = 128
#: Tiles of which the time of a further tile is taken.
MANY = 16
#: Stands for an axis that is not sliced: nothing divides it; and for one of vectors, their number.
UNSLICED, VECTORS = 251, 17
#: Rows of the tile for a few rows.
FEW = 4
#: Plans looked at for a tile; register tiles tried.
LOOKED_AT, TRIED = 48, 4
#: Sizes up to which each one is looked at; a range goes on while its tile takes at most this share more than the best.
EACH, TOLERATED = 256, 1.1


def longer_axes(few: Stage, more: Stage) -> list[str]:
    """Return the axes of a stage that are longer, or shorter, for other extents of the open axes."""
    return [a.name for a, b in zip(few.axes, more.axes, strict=True) if a.extent != b.extent]


@dataclass(frozen=True)
class Member:
    """A plan of a tile.

    Parameters
    ----------
    extents : tuple of int
        Extent of the tile along each open axis; along one that is not sliced, a stand-in.
    ranked : RankedPlan
        Plan of the tile.
    next_seconds : float
        Predicted time of each further tile.
    """

    extents: tuple[int, ...]
    ranked: RankedPlan
    next_seconds: float

    def seconds(self, tiles: int) -> float:
        """Return the predicted time of a number of tiles."""
        return self.ranked.seconds + (tiles - 1) * self.next_seconds

    def steps(self) -> tuple[Step, ...]:
        """Return the schedule steps of the tile, its constants packed in the family's way."""
        made = (merged(step) if isinstance(step, Pack) else step for step in lower(self.ranked.plan))
        return tuple(step for step in made if not (isinstance(step, Pack) and keeps_order(step)))

    def to_json(self) -> dict[str, Any]:
        return {"extents": list(self.extents), "ranked": self.ranked.to_json(), "next_seconds": self.next_seconds}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Member:
        return cls(tuple(data["extents"]), RankedPlan.from_json(data["ranked"]), data["next_seconds"])


@dataclass(frozen=True)
class Rule:
    """Sizes for which a member is used.

    Parameters
    ----------
    member : int
    sizes : tuple of (axis, first, last)
        All of them hold; a `last` of None is any size.
    """

    member: int
    sizes: tuple[tuple[int, int, int | None], ...]

    def holds(self, sizes: Sequence[int]) -> bool:
        return all(first <= sizes[axis] and (last is None or sizes[axis] <= last) for axis, first, last in self.sizes)

    def to_json(self) -> list[Any]:
        return [self.member, [list(s) for s in self.sizes]]


@dataclass(frozen=True)
class PlanFamily:
    """Plans of an operator with open extents.

    Parameters
    ----------
    axes : tuple of str
        Names of the open axes.
    sliced : tuple of bool
        Whether tiles move along each of them; the others are computed whole.
    members : tuple of Member
    rules : tuple of Rule
        The first that holds for a size names its member; one holds for every size.
    parallel : bool
        True if tiles run in parallel, each on one core; False if each tile is computed by all cores.
    in_turn : bool
        True if a member leaves what is less than its tile to the next one; the extents divide each other.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import matmul
    >>> from roller_tvm.planner.family import plan_families
    >>> family = next(plan_families(lambda m: matmul(m=m[0], n=64, k=64), ["m"], [True], load_device("cpu")))
    >>> family.member((20,)).extents[0] <= 20, family.member((1,)).extents
    (True, (1,))
    """

    axes: tuple[str, ...]
    sliced: tuple[bool, ...]
    members: tuple[Member, ...]
    rules: tuple[Rule, ...]
    parallel: bool = False
    in_turn: bool = False

    def __post_init__(self) -> None:
        if not self.members or not self.rules or len(self.axes) != len(self.sliced):
            raise ValueError("a family needs axes, members and rules")
        for member in self.members:
            if len(member.extents) != len(self.axes):
                raise ValueError(f"a tile {member.extents} for the axes {', '.join(self.axes)}")
        for rule in self.rules:
            extents = self.members[rule.member].extents
            least = {axis: first for axis, first, _ in rule.sizes}
            if any(s and least.get(axis, 1) < extents[axis] for axis, s in enumerate(self.sliced)):
                raise ValueError(f"a tile of {extents} would serve smaller sizes: {rule.sizes}")
        if not all(any(rule.holds([n] * len(self.axes)) for rule in self.rules) for n in range(1, EACH + 2)):
            raise ValueError("a size has no member")

    def member(self, sizes: Sequence[int]) -> Member:
        """Return the member for sizes of all open axes."""
        return self.members[next(rule for rule in self.rules if rule.holds(sizes)).member]

    def seconds(self, sizes: Sequence[int]) -> float:
        """Return the predicted time for sizes of all open axes."""
        if self.in_turn:
            (left,), total = sizes, 0.0
            for member in self.members:
                total, left = total + left // member.extents[0] * member.next_seconds, left % member.extents[0]
            return total
        member = self.member(sizes)
        tiles = prod(ceil(n / t) for n, t, s in zip(sizes, member.extents, self.sliced, strict=True) if s)
        grown = prod(n / t for n, t, s in zip(sizes, member.extents, self.sliced, strict=True) if not s)
        return member.seconds(tiles) * grown

    def explained(self) -> str:
        """Return the ranges and their tiles, one line each."""
        lines: list[str] = []
        for rule in self.rules:
            member = self.members[rule.member]
            sizes = " and ".join(
                f"{self.axes[a]} {first if last == first else f'{first} to {last}' if last else f'from {first}'}"
                for a, first, last in rule.sizes
            )
            tile = " ".join(f"{n}={e}" for n, e, s in zip(self.axes, member.extents, self.sliced, strict=True) if s)
            recipes = " + ".join(dict.fromkeys(p.recipe for p in member.ranked.plan.programs))
            left = f", what is left of {self.members[rule.member - 1].extents[0]}" if self.in_turn and lines else ""
            lines.append(f"{sizes or 'any size'}{left}: {recipes}, tile {tile or 'whole'}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.explained()

    def to_json(self) -> dict[str, Any]:
        return {
            "axes": list(self.axes), "sliced": list(self.sliced), "members": [m.to_json() for m in self.members],
            "rules": [r.to_json() for r in self.rules], "parallel": self.parallel,
            "in_turn": self.in_turn,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlanFamily:
        rules = tuple(Rule(m, tuple((a, first, last) for a, first, last in sizes)) for m, sizes in data["rules"])
        members = tuple(map(Member.from_json, data["members"]))
        return cls(tuple(data["axes"]), tuple(data["sliced"]), members, rules, data["parallel"], data["in_turn"])


def rules_for(sliced: Sequence[bool], members: Sequence[Member]) -> tuple[Rule, ...]:
    """Return the sizes for which each member is used: along one axis by predicted time, else the largest that fits."""
    moving = [n for n, s in enumerate(sliced) if s]
    if len(moving) != 1:
        return tuple(
            Rule(n, tuple((a, m.extents[a], None) for a in moving if m.extents[a] > 1)) for n, m in enumerate(members)
        )
    (axis,) = moving

    def seconds(n: int, size: int) -> float:
        tile = members[n].extents[axis]
        return members[n].seconds(ceil(size / tile)) if tile <= size else inf

    return tuple(Rule(n, ((axis, first, last),)) for n, first, last in ranges(len(members), seconds))


def ranges(count: int, seconds: Callable[[int, int], float]) -> list[tuple[int, int, int | None]]:
    """Return ranges of sizes, the last one open: a member, the first and the last size that it serves.

    Parameters
    ----------
    count : int
        Of members.
    seconds : function of member and size
        Infinite if a member does not serve a size.

    Examples
    --------
    >>> ranges(2, lambda n, size: (0.9 * size, 4.0)[n])
    [(0, 1, 4), (1, 5, None)]
    """

    def best(size: int) -> int:
        return min(range(count), key=lambda n: (seconds(n, size), n))

    found: list[tuple[int, int, int | None]] = []
    first, own = 1, best(1)
    for size in range(2, EACH + 1):
        if seconds(own, size) > TOLERATED * seconds(best(size), size):
            found.append((own, first, size - 1))
            first, own = size, best(size)
    return [*found, (own, first, None)]


def merged(step: Pack) -> Pack:
    """Return a packing with neighbouring digits of one dimension as one digit: the same order of elements.

    Examples
    --------
    >>> merged(Pack("w", "C", (1, 1, 0, 1, 1), (2, 8, 768, 3, 16)))
    Pack(stage='w', reader='C', dims=(1, 0, 1), lengths=(16, 768, 48))
    """
    digits: list[tuple[int, int]] = []
    for dim, length in zip(step.dims, step.lengths, strict=True):
        if digits and digits[-1][0] == dim:
            digits[-1] = (dim, digits[-1][1] * length)
        else:
            digits.append((dim, length))
    return Pack(step.stage, step.reader, tuple(d for d, _ in digits), tuple(n for _, n in digits))


def keeps_order(step: Pack) -> bool:
    """Return whether a packing leaves each element in its place: plans that need none read the same."""
    dims = merged(step).dims
    return list(dims) == sorted(set(dims))  # dimensions of one element have no digit


def packs_of(ranked: RankedPlan) -> tuple[Pack, ...]:
    """Return the packings of a plan's constants, in the family's way."""
    constants = {t.name for t in ranked.plan.expression.inputs if t.constant}
    found = [merged(s) for s in lower(ranked.plan) if isinstance(s, Pack) and s.stage in constants]
    return tuple(sorted((step for step in found if not keeps_order(step)), key=lambda step: step.stage))


def shared_packs(found: Sequence[Mapping[tuple[Pack, ...], RankedPlan]]) -> tuple[Pack, ...] | None:
    """Return the packings that plans of every size have, of those with the least product of times; None without."""
    shared = set.intersection(*map(set, found))
    return min(shared, key=lambda own: (prod(by[own].seconds for by in found), str(own))) if shared else None
