"""Families of operators of several sums: a tile is a block of which all that lies between the sums stays near.

Each core computes blocks, from the first sum to the last. Transforms, products and transforms back of Winograd's
algorithm hand on more than twice what the operator reads and writes; as kernels of their own they would pass it through
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, inf

from ..roller.steps import Pack
from .construction import RankedPlan
from .family_values import Member, PlanFamily, Rule, packs_of, ranges, shared_packs

#: Elements of the blocks. Larger ones are no faster: 96 to 24 channels, 1280 squares, 8 or 16 of them a block: 1.7 ms.
SQUARES = (16, 4, 1)

#: From elements of a block to plans for one core, best first.
Plans = Callable[[int], Sequence[RankedPlan]]


def block_family(axis: str, plans: Plans, units: int) -> PlanFamily | None:
    """Return the family of blocks with the least predicted time, None if there is none.

    Parameters
    ----------
    axis : str
    plans : function of int
    units : int
        Cores.

    Examples
    --------
    >>> block_family("t", lambda elements: [], 2) is None
    True
    """
    found: list[dict[tuple[Pack, ...], RankedPlan]] = []
    for size in SQUARES:
        found.append({packs_of(p): p for p in sorted(plans(size), key=lambda p: -p.seconds)})
        if not found[-1]:
            return None
    packs = shared_packs(found)
    if packs is None:
        return None
    times = [by[packs].seconds for by in found]

    def seconds(member: int, elements: int) -> float:
        size = SQUARES[member]
        return ceil(ceil(elements / size) / units) * times[member] if size <= elements else inf

    members = [Member((size,), by[packs], by[packs].seconds / units) for size, by in zip(SQUARES, found, strict=True)]
    rules = tuple(Rule(n, ((0, first, last),)) for n, first, last in ranges(len(members), seconds))
    return PlanFamily((axis,), (True,), tuple(members), rules, True)
