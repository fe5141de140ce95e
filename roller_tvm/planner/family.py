"""Plans for open (symbolic) extents: a few tiles that make up any size, and the sizes that each serves.

A plan for a fixed tile, 8 rows say, serves every size from 8 on: a loop moves the tile along the axis, and the last
tile begins early enough to end with it. Smaller sizes, and sizes of which the last tile would compute much twice, have
smaller tiles. All tiles of a family read their constants packed in one way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from ..device import DeviceSpec
from ..errors import UnsupportedOperator
from ..ir import Stage, TensorExpression, dtype_bytes
from ..ir.pattern import is_contraction
from ..micro_perf.cpu_caches import near_seconds, passing_seconds
from ..roller.features import NO_FEATURES, Features
from .construct import construct
from .construction import RankedPlan
from .family_batches import batch_family
from .family_blocks import block_family
from .family_values import (
    FEW,
    LARGE,
    LOOKED_AT,
    MANY,
    TRIED,
    TYPICAL,
    UNSLICED,
    VECTORS,
    Member,
    Operator,
    PlanFamily,
    Rule,
    longer_axes,
    packs_of,
    rules_for,
)
from .family_windows import window_family

#: Axes of more than one element that an image has: rows and columns, or pixels and channels.
SIDES = 2
#: Sizes of a batch that families are compared at; how much slower tiles of images may be predicted: the model takes
#: weights for nearer than they are (512 to 512 channels, 3x3, eight images one by one: 1.6 times the time of a batch).
BATCHES, NEARLY = (1, 2, 3, 5, 8, 13), 1.05


def plan_families(
    operator: Operator, axes: Sequence[str], sliced: Sequence[bool], device: DeviceSpec,
    features: Features = NO_FEATURES, likely: int | Sequence[int] = LARGE, windows: bool = False,
    pixels: bool = False,
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
    pixels : bool
        True if the axis is of all pixels of a picture.

    Examples
    --------
    >>> from roller_tvm.device import cpu_device
    >>> from roller_tvm.ir.operators import matmul
    >>> family = next(plan_families(lambda e: matmul(m=e[0], n=768, k=768), ["m"], [True], cpu_device()))
    >>> family.member([1]).extents
    (1,)
    """
    planning = _Planning(operator, tuple(axes), tuple(sliced), device, features, pixels)
    if (blocks := planning.blocks()) is not None:
        yield blocks
    if planning.product:
        rest = planning.products([likely] * len(axes) if isinstance(likely, int) else likely)
    else:
        rest = planning.others()
    pictures = planning.pictures() if windows or planning.is_picture else None
    if windows and pictures is not None:
        yield pictures
    elif pictures is not None:
        rest = _put_in(pictures, rest, [(TYPICAL // 2) ** 2 if pixels else TYPICAL // 2])
    yield from _put_in(planning.batches(), rest, BATCHES, NEARLY)


def _put_in(
    own: PlanFamily | None, others: Iterator[PlanFamily], sizes: Sequence[int], alike: float = 1.0
) -> Iterator[PlanFamily]:
    """Yield a family among others: before the first of which it is predicted faster, the mean of these sizes.

    `alike` is how much slower it may be predicted all the same.
    """

    def cost(family: PlanFamily) -> float:
        return sum(family.seconds([size] * len(family.axes)) / size for size in sizes)

    for family in others:
        if own is not None and cost(own) <= alike * cost(family):
            yield own
            own = None
        yield family
    if own is not None:
        yield own


@dataclass
class _Planning:
    operator: Operator
    axes: tuple[str, ...]
    sliced: tuple[bool, ...]
    device: DeviceSpec
    features: Features
    pixels: bool = False

    def __post_init__(self) -> None:
        if not all(self.sliced):  # lanes of unequal lengths go over an end that is not known
            self.features = replace(self.features, uneven_lanes=False)
        self.small = self.operator(self._all(2))
        self.product = is_contraction(self.operator(self._all(32)).anchor)
        self.output = self.small.output
        #: Axis of the anchor for each open axis, and of the result.
        self.of_anchor = [self._moved(lambda e: e.anchor, at) for at in range(len(self.axes))]
        self.of_output = [self._moved(lambda e: e.output, at) for at in range(len(self.axes))]

    def _all(self, extent: int) -> list[int]:
        return [extent if s else UNSLICED for s in self.sliced]

    def _moved(self, stage: Callable[[TensorExpression], Stage], at: int) -> str:
        """Return the axis of a stage whose extent changes with that of an open axis, or ''."""
        few, more = self._all(2), self._all(2)
        more[at] += 1
        return next(iter(longer_axes(stage(self.operator(few)), stage(self.operator(more)))), "")

    def _plans(
        self, extents: Sequence[int], device: DeviceSpec | None = None, features: Features | None = None
    ) -> tuple[RankedPlan, ...]:
        operator, own = self.operator(extents), features or self.features
        try:
            found = construct(operator, device or self.device, LOOKED_AT, own)  # what is kept is the kernel made of it
        except UnsupportedOperator:
            return ()
        return found.plans

    @property
    def is_picture(self) -> bool:
        """True for a product by constants with two open axes of its result: a convolution of one element."""
        constant = any(t.constant for t in self.small.inputs)
        return self.product and constant and (self.pixels or len([a for a in self.of_anchor if a]) > 1)

    def pictures(self) -> PlanFamily | None:
        """Return the family of tiles of rows and columns."""
        sides = [n for n, s in enumerate(self.sliced) if s and self.of_output[n]]
        if not sides:
            return None
        alone, features = self.device.one_unit(), replace(self.features, open_sides=True)
        return window_family(
            self.axes, self.sliced, sides, lambda extents: self._plans(extents, alone, features), self._all,
            self._register, self._passing, self.device.units,
        )  # fmt: skip

    def _passing(self, ranked: RankedPlan) -> float:
        """Return the seconds in which a core moves what the nests of a tile's plan hand on."""
        between, output = _between(ranked), ranked.plan.expression.output
        return near_seconds(between, between + _bytes([output]), self.device)

    def batches(self) -> PlanFamily | None:
        """Return the family of tiles of images; None if one element of the axis is no picture, or several are open."""
        if self.sliced != (True,) or not self.of_output[0]:
            return None
        anchor = self.operator([1]).anchor
        long = {a.name for a in anchor.spatial if a.extent > 1}
        constants = {t.name for t in self.small.inputs if t.constant}
        weights = [a.axes for a in anchor.reads if a.tensor in constants]
        if len(long) < SIDES or (weights and not long - frozenset().union(*weights)):
            return None  # an element without pixels is a row of a product, or of several
        return batch_family(self.axes[0], lambda n: self._plans([n]), self.device.launch_overhead_us * 1e-6)

    def blocks(self) -> PlanFamily | None:
        """Return the family of blocks of an operator of several sums; None if no block stays in a core's cache."""
        if self.sliced != (True,) or not self.of_output[0]:
            return None
        alone = self.device.one_unit()

        def near(ranked: RankedPlan) -> bool:
            """Return whether sums hand on more than the operator returns, in a core's cache."""
            stages, programs = ranked.plan.expression, ranked.plan.programs
            between = _between(ranked)
            sums = [p for p in programs if stages.stage(p.anchor).reduce]
            return len(sums) > 1 and between > _bytes([stages.output]) and not passing_seconds(between, self.device)

        def plans(elements: int) -> list[RankedPlan]:
            return [p for p in self._plans([elements], alone) if near(p)]

        return block_family(self.axes[0], plans, self.device.units)

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
        tile = dict(program.tile("register").extents)
        if not all(a in tile for a, s in zip(self.of_anchor, self.sliced, strict=True) if s and a):
            return None  # fused with another axis
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
        return PlanFamily(self.axes, self.sliced, tuple(members), rules_for(self.sliced, members))

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
        """Return the predicted time of a tile that finds its constants in the cache: one of many.

        A loop over tiles stands around all nests of a plan; by the time the next tile comes, the cache holds others.
        """
        if len(ranked.plan.programs) > 1:
            return ranked.seconds
        rows = next((n for n, s in enumerate(self.sliced) if s), None)
        if rows is None:
            return ranked.seconds
        many = list(extents)
        many[rows] *= MANY
        same = [p for p in self._plans(many) if self._register(p) == extents]
        return min(same[0].seconds / MANY, ranked.seconds) if same else ranked.seconds

    def _sliced_outputs(self) -> set[str]:
        """The axes of the result that tiles move along."""
        return {a for a, s in zip(self.of_output, self.sliced, strict=True) if s and a}

    def others(self) -> Iterator[PlanFamily]:
        """Yield the family of an operator whose elements, or rows, are computed one by one: tiles in parallel."""
        alone = self.device.one_unit()
        element = max(dtype_bytes(t.dtype) for t in self.small.tensors.values())
        last = self.output.spatial[-1].name if self.output.spatial else ""
        moving = [a.name for a in self.output.spatial if a.name in self._sliced_outputs()]
        if len(moving) > 1 and not self.small.anchor.reduce:
            last = moving[-1]  # a picture's rows run in parallel; some columns of all channels, then the next
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
            device = alone
            if wide == 1 and not all(self.sliced):
                device = replace(alone, vector_width=wide, vector_bytes=element)
            first = packs_of(members[0].ranked) if members else None
            same = [p for p in self._plans(extents, device) if first is None or packs_of(p) == first]
            if same:
                members.append(Member(extents, same[0], same[0].seconds / self.device.units))
        if members and all(e == 1 for e, s in zip(members[-1].extents, self.sliced, strict=True) if s):
            rules = tuple(
                Rule(n, tuple((a, e if self.sliced[a] else e // VECTORS, None) for a, e in enumerate(m.extents)
                              if e not in (1, UNSLICED)))
                for n, m in enumerate(members)
            )  # fmt: skip
            yield PlanFamily(self.axes, self.sliced, tuple(members), rules, True)


def _bytes(stages: Sequence[Stage]) -> int:
    return sum(prod(a.extent for a in s.spatial) * dtype_bytes(s.dtype) for s in stages)


def _between(ranked: RankedPlan) -> int:
    """Return the bytes that a plan's nests hand on to each other."""
    return _bytes([ranked.plan.expression.stage(p.output) for p in ranked.plan.programs[:-1]])
