"""Growth of rTiles: aligned steps along one axis at a time, those of best data reuse first (Roller, section 3.3).

Many growths run side by side, one for each register tile: all their next steps are scored as one table.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..micro_perf.geometry import Tile
from ..micro_perf.gpu_nest import Array, GpuNest, ceil_div, columns


@dataclass(frozen=True)
class Growth:
    """One growth: where it starts, and the extents that each axis may take.

    Parameters
    ----------
    start : Tile
    unit : Tile
        Tile of one thread.
    options : sequence of sequence of int
        For each axis, its aligned extents, smallest first.
    """

    start: Tile
    unit: Tile
    options: Sequence[Sequence[int]]


@dataclass(frozen=True)
class Grown:
    """Tiles of one growth, round by round, the best of a round first; and the tiles that broke a rule."""

    tiles: list[Tile]
    refused: list[Tile]


class Steps:
    """Next extents along one axis, from each of its options: any larger one, and one that divides the axis.

    Examples
    --------
    >>> Steps([1, 2, 4, 7, 8, 14, 28], extent=28).next(4, divisor=True)
    7
    >>> Steps([7, 14, 28], extent=28).next(28, divisor=False) is None
    True
    """

    def __init__(self, options: Sequence[int], extent: int) -> None:
        self._any: dict[int, int | None] = {}
        self._dividing: dict[int, int | None] = {}
        larger = divisor = None
        for option in reversed(options):
            self._any[option], self._dividing[option] = larger, divisor
            larger = option
            divisor = divisor if extent % option else option

    def next(self, own: int, divisor: bool) -> int | None:
        """Return the next extent above `own`; None if there is none."""
        return (self._dividing if divisor else self._any)[own]


def reuse_scores(nest: GpuNest, tiles: Array, larger: Array, of: Array) -> Array:
    """Return the data-reuse score of growing tiles: traffic saved per byte of footprint (Roller, section 3.3).

    Parameters
    ----------
    tiles, larger : array of (axes, N) and of (axes, M)
    of : array
        For each larger tile, the number of the tile that it grows from.
    """
    moved, held = nest.traffic_and_footprint(np.concatenate([tiles, larger], axis=1))
    count = tiles.shape[1]
    return (moved[:count][of] - moved[count:]) / np.maximum(1, held[count:] - held[:count][of])


def grown(
    nest: GpuNest, growths: Sequence[Growth], beam: int, branches: int, refused: Callable[[Array], Array],
    most_threads: int | None = None,
) -> list[Grown]:  # fmt: skip
    """Return the tiles of each growth, without its start.

    From each of the `beam` best tiles of a round, the `branches` best steps go on. A step takes one axis to its next
    extent; if an axis stands over its edge, the others grow to divisors only.

    Parameters
    ----------
    refused : callable
        From a table of tiles: True for those that break a rule.
    most_threads : int, optional
        Most threads of a tile.
    """
    extents, spatial, axes = nest.geometry.extents, nest.spatial, len(nest.geometry.extents)
    made: dict[tuple[int, int], Steps] = {}
    steps = [
        [made.setdefault((i, id(g.options[i])), Steps(g.options[i], extents[i])) for i in spatial] for g in growths
    ]
    units = np.array([g.unit for g in growths], np.int64).reshape(-1, axes).T
    seen: list[set[Tile]] = [{g.start} for g in growths]
    found = [Grown([], []) for _ in growths]
    rows = [(n, g.start) for n, g in enumerate(growths)]
    while rows:
        larger: list[Tile] = []
        of: list[int] = []
        for row, (n, tile) in enumerate(rows):
            over = [i for i in spatial if extents[i] % tile[i]]
            for i, step in zip(spatial, steps[n], strict=True):
                to = step.next(tile[i], divisor=bool(over) and over != [i])
                if to is not None:
                    larger.append((*tile[:i], to, *tile[i + 1 :]))
                    of.append(row)
        if not larger:
            break
        table, base = columns(larger, axes), np.array(of)
        scores = reuse_scores(nest, columns([tile for _, tile in rows], axes), table, base)
        bad = refused(table).tolist()
        if most_threads is None:
            many = [False] * len(larger)
        else:
            unit = units[:, [rows[row][0] for row in of]]
            threads = np.multiply.reduce(ceil_div(table[spatial], unit[spatial]), axis=0)
            many = (threads > most_threads).tolist()
        # The best steps of each tile; of equal scores, the larger extent along the first axis.
        ranked = np.lexsort((-scores, base)).tolist()
        scored = scores.tolist()
        following: dict[int, list[tuple[float, Tile]]] = {}
        last, taken = -1, 0
        for at in ranked:
            last, taken = of[at], taken + 1 if of[at] == last else 1
            n, tile = rows[last][0], larger[at]
            if taken > branches or many[at] or tile in seen[n]:
                continue
            seen[n].add(tile)
            if bad[at]:
                found[n].refused.append(tile)
            else:
                following.setdefault(n, []).append((scored[at], tile))
        rows = []
        for n, next_ in following.items():
            best = [tile for _, tile in heapq.nlargest(beam, next_)]
            found[n].tiles.extend(best)
            rows += [(n, tile) for tile in best]
    return found
