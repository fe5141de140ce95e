"""Growth of rTiles: aligned steps along one axis at a time, those of best data reuse first (Roller, section 3.3).

Many growths run side by side, one for each register tile: all their next steps are scored as one table.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..micro_perf.geometry import Tile
from ..micro_perf.gpu_nest import Array, GpuNest, ceil_div


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


class Options:
    """Extents that each axis of each growth may take, with the next one: any larger, or a divisor of the axis.

    Arrays of shape (spatial axes, growths, options); a place in them is the number of an option.
    """

    def __init__(self, nest: GpuNest, growths: Sequence[Growth]) -> None:
        spatial, extents = nest.spatial, nest.geometry.extents
        width = max(len(g.options[i]) for g in growths for i in spatial)
        known: dict[tuple[int, tuple[int, ...]], tuple[list[int], list[int], list[int]]] = {}
        rows = []
        for i in spatial:
            for g in growths:
                key = i, tuple(g.options[i])
                if key not in known:
                    known[key] = self._row(key[1], extents[i], width)
                rows.append(known[key])
        shape = (len(spatial), len(growths), width)
        self.extent, self.larger, self.divisor = (
            np.array([row[part] for row in rows], np.int64).reshape(shape) for part in range(3)
        )
        self.start = np.array([[g.options[i].index(g.start[i]) for g in growths] for i in spatial], np.int64)

    @staticmethod
    def _row(options: Sequence[int], extent: int, width: int) -> tuple[list[int], list[int], list[int]]:
        """Return options, and the place of the next one and of the next divisor of each; -1 if there is none."""
        larger, dividing = [-1] * width, [-1] * width
        next_, divisor = -1, -1
        for place in range(len(options) - 1, -1, -1):
            larger[place], dividing[place] = next_, divisor
            next_ = place
            divisor = divisor if extent % options[place] else place
        return [*options, *[1] * (width - len(options))], larger, dividing


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
    if not growths:
        return []
    spatial, extents = nest.spatial, nest.extents[nest.spatial]
    options, steps = Options(nest, growths), np.arange(len(spatial))
    units = np.array([g.unit for g in growths], np.int64).T[spatial]
    tiles = np.array([g.start for g in growths], np.int64).T
    of, place = np.arange(len(growths)), options.start
    seen: list[set[Tile]] = [{g.start} for g in growths]
    found = [Grown([], []) for _ in growths]
    while len(of):
        over = extents % tiles[spatial] != 0
        several = np.count_nonzero(over, axis=0)
        alone = (several == 0) | ((several == 1) & over)
        at = steps[:, None], of[None], place
        to = np.where(alone, options.larger[at], options.divisor[at])
        row, step = np.nonzero(to.T >= 0)
        to = to[step, row]
        larger = tiles[:, row]
        larger[np.array(spatial)[step], np.arange(len(row))] = options.extent[step, of[row], to]
        scores = reuse_scores(nest, tiles, larger, row)
        bad = refused(larger)
        many = np.zeros(len(row), bool)
        if most_threads is not None:
            many = np.multiply.reduce(ceil_div(larger[spatial], units[:, of[row]]), axis=0) > most_threads
        # The best steps of each tile; of equal scores, the larger extent along the first axis.
        ranked = np.lexsort((-scores, row))
        first = np.searchsorted(row, row)  # steps are in the order of their tiles
        ranked = ranked[(np.arange(len(row)) - first < branches) & ~many[ranked]]
        following: dict[int, list[tuple[float, Tile, int]]] = {}
        chosen = zip(
            ranked.tolist(), of[row[ranked]].tolist(), scores[ranked].tolist(), larger[:, ranked].T.tolist(),
            bad[ranked].tolist(), strict=True,
        )  # fmt: skip
        for number, growth, score, extents_, broken in chosen:
            tile = tuple(extents_)
            if tile in seen[growth]:
                continue
            seen[growth].add(tile)
            if broken:
                found[growth].refused.append(tile)
            else:
                following.setdefault(growth, []).append((score, tile, number))
        kept: list[int] = []
        for growth, next_ in following.items():
            best = heapq.nlargest(beam, next_) if len(next_) > 1 else next_
            found[growth].tiles.extend([tile for _, tile, _ in best])
            kept += [number for _, _, number in best]
        moved = place[:, row[kept]]
        moved[step[kept], np.arange(len(kept))] = to[kept]
        tiles, of, place = larger[:, kept], of[row[kept]], moved
    return found
