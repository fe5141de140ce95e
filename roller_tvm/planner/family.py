"""Plans for open (symbolic) extents: a few tiles that make up any size, and the sizes that each serves.

A plan for a fixed tile, 8 rows say, serves every size from 8 on: a loop moves the tile along the axis, and the last
tile begins early enough to end with it. Smaller sizes, and sizes of which the last tile would compute much twice, have
smaller tiles. All tiles of a family read their constants packed in one way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, prod
from typing import Any

from ..device import DeviceSpec
from ..errors import UnsupportedOperator
from ..ir import TensorExpression
from ..ir.pattern import is_contraction
from ..roller.features import NO_FEATURES, Features
from ..roller.steps import Pack, Step
from .construction import RankedPlan
from .lower import lower
from .plan_cache import plan_cache

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
        return tuple(merged(step) if isinstance(step, Pack) else step for step in lower(self.ranked.plan))

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

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import matmul
    >>> family = next(plan_families(lambda m: matmul(m=m[0], n=64, k=64), ["m"], [True], load_device("cpu")))
    >>> family.member((20,)).extents[0] <= 20, family.member((1,)).extents
    (True, (1,))
    """

    axes: tuple[str, ...]
    sliced: tuple[bool, ...]
    members: tuple[Member, ...]
    rules: tuple[Rule, ...]
    parallel: bool = False

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
        member = self.member(sizes)
        tiles = prod(ceil(n / t) for n, t, s in zip(sizes, member.extents, self.sliced, strict=True) if s)
        grown = prod(n / t for n, t, s in zip(sizes, member.extents, self.sliced, strict=True) if not s)
        return member.seconds(tiles) * grown

    def explained(self) -> str:
        """Return the ranges and their tiles, one line each."""
        lines = []
        for rule in self.rules:
            member = self.members[rule.member]
            sizes = " and ".join(
                f"{self.axes[a]} {first if last == first else f'{first} to {last}' if last else f'from {first}'}"
                for a, first, last in rule.sizes
            )
            tile = " ".join(f"{n}={e}" for n, e, s in zip(self.axes, member.extents, self.sliced, strict=True) if s)
            recipes = " + ".join(dict.fromkeys(p.recipe for p in member.ranked.plan.programs))
            lines.append(f"{sizes or 'any size'}: {recipes}, tile {tile or 'whole'}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.explained()

    def to_json(self) -> dict[str, Any]:
        return {
            "axes": list(self.axes), "sliced": list(self.sliced), "members": [m.to_json() for m in self.members],
            "rules": [r.to_json() for r in self.rules], "parallel": self.parallel,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlanFamily:
        rules = tuple(Rule(m, tuple((a, first, last) for a, first, last in sizes)) for m, sizes in data["rules"])
        members = tuple(map(Member.from_json, data["members"]))
        return cls(tuple(data["axes"]), tuple(data["sliced"]), members, rules, data["parallel"])


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


#: The operator with extents of its open axes.
Operator = Callable[[Sequence[int]], TensorExpression]


def plan_families(
    operator: Operator, axes: Sequence[str], sliced: Sequence[bool], device: DeviceSpec,
    features: Features = NO_FEATURES, likely: int | Sequence[int] = LARGE, windows: bool = False,
) -> Iterator[PlanFamily]:  # fmt: skip
    """Yield families of plans of an operator, best first.

    Parameters
    ----------
    operator : function of extents
        Returns the operator with these extents of its open axes.
    axes : sequence of str
    sliced : sequence of bool
        Whether each axis can be computed in parts.
    device : DeviceSpec
    features : Features
    likely : int or sequence of int
        Size that the largest tiles are planned for, of all axes or of each.
    windows : bool
        True if tiles read more of an input than their own part: a convolution, a pooling.

    Examples
    --------
    >>> from roller_tvm.device import cpu_device
    >>> from roller_tvm.ir.operators import matmul
    >>> family = next(plan_families(lambda e: matmul(m=e[0], n=768, k=768), ["m"], [True], cpu_device()))
    >>> family.member([1]).extents
    (1,)
    """
    planning = _Planning(operator, tuple(axes), tuple(sliced), device, features)
    pictures = planning.pictures() if windows or planning.is_picture else None
    if pictures is not None and windows:
        yield pictures
    if not planning.product:
        yield from planning.others()
        return
    for family in planning.products([likely] * len(axes) if isinstance(likely, int) else likely):
        if pictures is not None and not windows:
            first = min(pictures, family, key=lambda f: f.seconds([TYPICAL // 2] * len(axes)))
            yield from (first, pictures if first is family else family)
            pictures = None
        else:
            yield family


@dataclass
class _Planning:
    operator: Operator
    axes: tuple[str, ...]
    sliced: tuple[bool, ...]
    device: DeviceSpec
    features: Features

    def __post_init__(self) -> None:
        if not all(self.sliced):  # lanes of unequal lengths go over an end that is not known
            self.features = replace(self.features, uneven_lanes=False)
        one = self.operator(self._all(2))
        self.product = is_contraction(self.operator(self._all(32)).anchor)
        self.output = one.output
        #: Axis of the anchor for each open axis, and of the result.
        self.of_anchor = [self._moved(lambda e: e.anchor, at) for at in range(len(self.axes))]
        self.of_output = [self._moved(lambda e: e.output, at) for at in range(len(self.axes))]

    def _all(self, extent: int) -> list[int]:
        return [extent if s else UNSLICED for s in self.sliced]

    def _moved(self, stage: Callable[[TensorExpression], Any], at: int) -> str:
        """Return the axis of a stage whose extent changes with that of an open axis, or ''."""
        few, more = self._all(2), self._all(2)
        more[at] += 1
        pairs = zip(stage(self.operator(few)).axes, stage(self.operator(more)).axes, strict=True)
        return next((a.name for a, b in pairs if a.extent != b.extent), "")

    def _plans(self, extents: Sequence[int], device: DeviceSpec | None = None) -> tuple[RankedPlan, ...]:
        try:
            found = plan_cache().construct(self.operator(extents), device or self.device, LOOKED_AT, self.features)
        except UnsupportedOperator:
            return ()
        return found.plans

    @property
    def is_picture(self) -> bool:
        """True for a product by constants with two open axes of its result: a convolution of one element."""
        constant = any(t.constant for t in self.operator(self._all(2)).inputs)
        return self.product and constant and len([a for a in self.of_anchor if a]) > 1

    def pictures(self) -> PlanFamily | None:
        """Return the family of tiles of rows and columns."""
        from .family_windows import window_family

        sides = [n for n, s in enumerate(self.sliced) if s and self.of_output[n]]
        if not sides:
            return None
        alone = replace(self.device, units=1)
        return window_family(
            self.axes, self.sliced, sides, lambda extents: self._plans(extents, alone), self._all, self._register,
            self.device.units,
        )  # fmt: skip

    def products(self, likely: Sequence[int]) -> Iterator[PlanFamily]:
        """Yield families for a product: register tiles that are best for a large size, moved along the axes."""
        known: set[tuple[int, ...]] = set()
        large = [size if s else UNSLICED for size, s in zip(likely, self.sliced, strict=True)]
        for ranked in self._plans(large):
            tile = self._register(ranked)
            if tile is None or tile in known or len(known) >= TRIED:
                continue
            known.add(tile)
            if family := self._product(tile, ranked):
                yield family
        yield from self.others()

    def _register(self, ranked: RankedPlan) -> tuple[int, ...] | None:
        """Return the extents of a plan's register tile along the open axes; None if it has none."""
        program = next((p for p in ranked.plan.programs if p.recipe in ("cpu.tiled", "cpu.window")), None)
        if program is None or program.anchor != ranked.plan.expression.anchor.name:
            return None
        tile = program.tile("register")
        return tuple(tile[a] if s and a else UNSLICED for a, s in zip(self.of_anchor, self.sliced, strict=True))

    def _product(self, tile: tuple[int, ...], large: RankedPlan) -> PlanFamily | None:
        packs = packs_of(large)
        members: list[Member] = []
        for extents in self._tiles(tile):
            plans = [p for p in self._plans(extents) if packs_of(p) == packs]
            ranked = next((p for p in plans if self._register(p) == extents), plans[0] if plans else None)
            if ranked is None:
                continue
            members.append(Member(extents, ranked, self._next(extents, ranked)))
        if not members or any(s and e > 1 for e, s in zip(members[-1].extents, self.sliced, strict=True)):
            return None
        return PlanFamily(self.axes, self.sliced, tuple(members), self._rules(members))

    def _tiles(self, tile: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the tiles of a family, the largest first, one element of each axis last."""
        lanes = self.device.vector_width
        vectors = [a == self._last() for a in self.of_anchor]
        found = [tile]
        for wide, few in ((None, FEW), (lanes, None), (lanes, 1), (1, 1)):
            made = tuple(
                e if not s or limit is None else min(e, limit)
                for e, s, v in zip(tile, self.sliced, vectors, strict=True)
                for limit in (wide if v else few,)
            )
            found.append(made)
        if not any(v and s for v, s in zip(vectors, self.sliced, strict=True)):
            found = [tile, found[1], found[-1]]
        return list(dict.fromkeys(found))

    def _last(self) -> str:
        spatial = self.operator(self._all(32)).anchor.spatial
        return spatial[-1].name

    def _next(self, extents: tuple[int, ...], ranked: RankedPlan) -> float:
        """Return the predicted time of a tile that finds its constants in the cache: one of many."""
        rows = next((n for n, s in enumerate(self.sliced) if s), None)
        if rows is None:
            return ranked.seconds
        many = list(extents)
        many[rows] *= MANY
        same = [p for p in self._plans(many) if self._register(p) == extents]
        return min(same[0].seconds / MANY, ranked.seconds) if same else ranked.seconds

    def _rules(self, members: Sequence[Member]) -> tuple[Rule, ...]:
        open_axes = [n for n, s in enumerate(self.sliced) if s]
        if len(open_axes) != 1:
            return tuple(
                Rule(n, tuple((a, m.extents[a], None) for a in open_axes if m.extents[a] > 1))
                for n, m in enumerate(members)
            )
        (axis,) = open_axes

        def seconds(n: int, size: int) -> float:
            tile = members[n].extents[axis]
            return members[n].seconds(ceil(size / tile)) if tile <= size else inf

        def best(size: int) -> int:
            return min(range(len(members)), key=lambda n: (seconds(n, size), n))

        rules: list[Rule] = []
        first, own = 1, best(1)
        for size in range(2, EACH + 1):
            if seconds(own, size) > TOLERATED * seconds(best(size), size):
                rules.append(Rule(own, ((axis, first, size - 1),)))
                first, own = size, best(size)
        return (*rules, Rule(own, ((axis, first, None),)))

    def others(self) -> Iterator[PlanFamily]:
        """Yield the family of an operator whose elements, or rows, are computed one by one: tiles in parallel."""
        alone = replace(self.device, units=1)
        last = self.output.spatial[-1].name if self.output.spatial else ""
        members: list[Member] = []
        for wide in (self.device.vector_width, 1):
            unsliced = wide * VECTORS if wide > 1 else UNSLICED
            extents = tuple(
                (wide if a == last else 1) if s else unsliced
                for a, s in zip(self.of_output, self.sliced, strict=True)
            )
            if members and members[-1].extents == extents:
                continue
            # Along an open axis that is not sliced: vectors of whole lanes, or none.
            device = alone if wide > 1 or all(self.sliced) else replace(alone, vector_width=1, vector_bytes=4)
            first = packs_of(members[0].ranked) if members else None
            same = [p for p in self._plans(extents, device) if first is None or packs_of(p) == first]
            if same:
                members.append(Member(extents, same[0], same[0].seconds / self.device.units))
        if members and all(e == 1 for e, s in zip(members[-1].extents, self.sliced, strict=True) if s):
            rules = tuple(
                Rule(n, tuple((a, e if self.sliced[a] else e // VECTORS, None) for a, e in enumerate(m.extents)
                              if e > 1 and e != UNSLICED))
                for n, m in enumerate(members)
            )  # fmt: skip
            yield PlanFamily(self.axes, self.sliced, tuple(members), rules, True)


def packs_of(ranked: RankedPlan) -> tuple[Pack, ...]:
    """Return the packings of a plan's constants, in the family's way."""
    constants = {t.name for t in ranked.plan.expression.inputs if t.constant}
    found = [merged(s) for s in lower(ranked.plan) if isinstance(s, Pack) and s.stage in constants]
    return tuple(sorted(found, key=lambda step: step.stage))
