"""Families of operators of which one element of an axis is work for all cores: images of a batch.

Each image by itself would read all weights again. So some images are one tile, planned like a batch of that size, and
what they leave over has smaller tiles in turn: 13 images are 3 tiles of 4 and one of 1, none is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..roller.steps import Pack
from .construction import RankedPlan
from .family_values import Member, PlanFamily, Rule, packs_of, shared_packs

#: Images of a tile.
IMAGES = (1, 4)
#: How many launches of a kernel one image must be worth.
WORTH = 8

#: From the extent of the axis to plans for all cores, best first.
Plans = Callable[[int], Sequence[RankedPlan]]


def batch_family(axis: str, plans: Plans, launch: float) -> PlanFamily | None:
    """Return the family of tiles of images with the least predicted time, None if there is none.

    Parameters
    ----------
    axis : str
    plans : function of int
    launch : float
        Seconds of a kernel's launch.
    """
    one, *larger = IMAGES
    single = plans(one)
    if not single or single[0].seconds < WORTH * launch:
        return None
    found: dict[int, dict[tuple[Pack, ...], RankedPlan]] = {}
    for size in IMAGES:
        found[size] = {packs_of(p): p for p in reversed(plans(size) if size > one else single)}
    packs = shared_packs(list(found.values()))
    if packs is None:
        return None
    members = [_member(one, found[one][packs])]
    for size in larger:
        made = _member(size, found[size][packs])
        if _gains(made, members[0]):
            members.insert(0, made)
    rules = tuple(Rule(n, ((0, m.extents[0], None),) if m.extents[0] > 1 else ()) for n, m in enumerate(members))
    return PlanFamily((axis,), (True,), tuple(members), rules, in_turn=True)


def _gains(large: Member, small: Member) -> bool:
    return large.ranked.seconds < small.seconds(large.extents[0] // small.extents[0])


def _member(size: int, ranked: RankedPlan) -> Member:
    return Member((size,), ranked, ranked.seconds)
