"""Families of convolutions and poolings with open sides: tiles of some rows and columns, in parallel, one core each.

A tile of several rows keeps a panel of weights near while its rows pass. Few sizes are a multiple of the tile: the
last one of a row begins early, so how much is computed twice decides which tile serves a width.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import ceil, inf

from ..roller.steps import Pack
from .construction import RankedPlan
from .family_values import LARGE, MANY, Member, PlanFamily, Rule, packs_of, ranges

#: Rows of a tile, columns in register tiles; the tile of a small picture.
HEIGHTS, REGISTERS, PICTURE_TILE = (2, 4, 8), (1, 2), (2, 4)
#: Register tiles of a run of pixels.
RUNS = (2, 4, 8)
#: Narrower tiles, as parts of the widest; rows of the last band, in which how many do not matter any more.
NARROWER, BAND = (2, 4), 64
#: Columns of a tile where a plan has no register tile, and sides of the picture that the register tile is taken from.
COLUMNS, PICTURE = 8, 56

#: From extents of the open axes to plans for one core, best first.
Plans = Callable[[Sequence[int]], Sequence[RankedPlan]]
#: A plan's register tile along the open axes.
Register = Callable[[RankedPlan], tuple[int, ...] | None]


def window_family(
    axes: Sequence[str], sliced: Sequence[bool], sides: Sequence[int], plans: Plans, all_of: Callable[[int], list[int]],
    register: Register, passing: Callable[[RankedPlan], float], units: int,
) -> PlanFamily | None:  # fmt: skip
    """Return the family of tiles with the least predicted time, None if there is none.

    Parameters
    ----------
    axes, sliced
        See `PlanFamily`.
    sides : sequence of int
        Open axes that the result has, columns last, rows before.
    plans : function of extents
    all_of : function of int
        The same extent for all axes.
    register : function of RankedPlan
        A plan's register tile along the open axes.
    passing : function of RankedPlan
        Seconds of moving what its nests hand on, such as a copy with its padding, beside the plan's own.
    units : int
        Cores.
    """
    *_, columns = sides
    rows = sides[-2] if len(sides) > 1 else None

    def tile(high: int, wide: int) -> list[int]:
        extents = all_of(1)
        extents[columns] = wide
        if rows is not None:
            extents[rows] = high
        return extents

    def area(extents: Sequence[int]) -> int:
        return extents[columns] * (extents[rows] if rows is not None else 1)

    large = plans(tile(PICTURE, PICTURE if rows is not None else LARGE))
    if not large:
        return None
    best_tile = register(large[0])
    wide = best_tile[columns] if best_tile is not None else COLUMNS
    highs, registers = (HEIGHTS, REGISTERS) if rows is not None else ((1,), RUNS)
    ones = tile(1, 1)
    one = {packs_of(p): p for p in reversed(plans(ones))}  # all tiles read constants that are packed in one way
    tried = [
        (t, p) for t in (tile(h, n * wide) for h in highs for n in registers)
        if (p := _first(plans(t), one)) is not None
    ]  # fmt: skip
    if not tried:
        return None
    extents, best = min(tried, key=lambda pair: (pair[1].seconds + passing(pair[1])) / area(pair[0]))
    packs, wide = packs_of(best), extents[columns]
    found = {tuple(extents): best}
    narrow = [wide // part for part in NARROWER if wide // part > 1]
    smaller = [[width if at == columns else extent for at, extent in enumerate(extents)] for width in narrow]
    for own in (*smaller, tile(*PICTURE_TILE)):
        same = _first(plans(own), (packs,))
        found |= {tuple(own): same} if same is not None else {}
    found |= {tuple(ones): one[packs]}
    members = [
        Member(own, ranked, (_many(own, ranked, rows, plans, register) + passing(ranked)) / units)
        for own, ranked in found.items()
        if all(e <= most for e, most in zip(own, extents, strict=True))
    ]
    return PlanFamily(tuple(axes), tuple(sliced), tuple(members), _rules(members, rows, columns, units), True)


def _first(plans: Sequence[RankedPlan], packs: Collection[tuple[Pack, ...]]) -> RankedPlan | None:
    """Return the fastest plan that packs its constants in one of these ways; lowered are those up to it."""
    return next((p for p in sorted(plans, key=lambda p: p.seconds) if packs_of(p) in packs), None)


def _many(own: Sequence[int], ranked: RankedPlan, rows: int | None, plans: Plans, register: Register) -> float:
    """The seconds of a tile that finds its weights in the cache: one of many with the same register tile."""
    many, tile = list(own), register(ranked)
    many[0 if rows is None else rows] *= MANY
    found = next((p for p in plans(many) if register(p) == tile), None) if tile is not None else None
    return min(found.seconds / MANY, ranked.seconds) if found is not None else ranked.seconds


def _rules(members: Sequence[Member], rows: int | None, columns: int, units: int) -> tuple[Rule, ...]:
    """Ranges of the columns, in bands of the rows: a band's last number of rows is twice its first, less one."""

    def each(n: int, band: Sequence[int]) -> float:
        """Seconds of a column of tiles, for each row of the picture."""
        own = members[n].extents
        pixels = own[rows] if rows is not None else 1
        if pixels > band[0]:
            return inf
        return members[n].next_seconds * sum(ceil(ceil(high / pixels) / units) / high for high in band)

    rules: list[Rule] = []
    first = BAND if rows is not None else 1
    while first:
        band = range(first, 2 * first)
        limits = () if rows is None else ((rows, first, None if first == BAND else band[-1]),)
        of_column = [each(n, band) for n in range(len(members))]

        def seconds(n: int, size: int, of_column: Sequence[float] = of_column) -> float:
            wide = members[n].extents[columns]
            return inf if wide > size else ceil(size / wide) * of_column[n]

        rules += [Rule(n, (*limits, (columns, low, high))) for n, low, high in ranges(len(members), seconds)]
        first //= 2
    return tuple(rules)
