"""Choice of K candidates: the best by the model, and beside them the best of other kinds.

Neighbours in the ranking often share one inner kernel, and the model's error about it then applies to all of them: a
compiler that spends instructions on its addresses, say. A third of the K is therefore kept for other kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

T = TypeVar("T")
#: Share of the K for kinds that would not be among them by time alone.
OTHERS = 1 / 3
#: Largest predicted slowdown of such a candidate: about the error of the model for an aligned tile.
WITHIN = 1.25


def portfolio(
    ranked: Sequence[T], top: int, seconds: Callable[[T], float], kind: Callable[[T], Hashable]
) -> list[T]:
    """Return `top` of the candidates, which are sorted by time: the best, and some of other kinds.

    Examples
    --------
    >>> ranked = [(1.0, "a"), (1.1, "a"), (1.2, "a"), (1.21, "b"), (9.0, "c")]
    >>> portfolio(ranked, 3, lambda c: c[0], lambda c: c[1])
    [(1.0, 'a'), (1.1, 'a'), (1.21, 'b')]
    """
    if len(ranked) <= top:
        return list(ranked)
    chosen = list(range(top))
    seen = {kind(ranked[at]) for at in chosen}
    spare = int(top * OTHERS)
    for at in range(top, len(ranked)):
        if not spare or seconds(ranked[at]) > WITHIN * seconds(ranked[0]):
            break
        if kind(ranked[at]) in seen:
            continue
        # The slowest whose kind is there more than once makes room.
        last = next((c for c in reversed(chosen) if _often(ranked, chosen, kind, c)), None)
        if last is None:
            break
        chosen.remove(last)
        chosen.append(at)
        seen.add(kind(ranked[at]))
        spare -= 1
    return [ranked[at] for at in chosen]


def _often(ranked: Sequence[T], chosen: list[int], kind: Callable[[T], Hashable], at: int) -> bool:
    return sum(kind(ranked[c]) == kind(ranked[at]) for c in chosen) > 1
