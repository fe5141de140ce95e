"""Growth of rTiles: aligned steps along one axis at a time, those of best data reuse first (Roller, section 3.3).

Many growths run side by side, one for each register tile: all their next steps are scored as one table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..micro_perf.gpu_nest import Array, GpuNest


class Options:
    """Extents that axes may take: a row for each axis and step, smallest first.

    A place is the number of an extent in its row.

    Parameters
    ----------
    rows : sequence of (options, extent)
        Aligned extents, and the extent of their axis.
    """

    def __init__(self, rows: Sequence[tuple[Sequence[int], int]]) -> None:
        self.width = max(len(options) for options, _ in rows)
        self.last = np.array([len(options) - 1 for options, _ in rows])
        self.extent = np.array([[*options, *[1] * (self.width - len(options))] for options, _ in rows], float)
        self.over = np.array([[extent] for _, extent in rows]) % self.extent != 0
        self.stands_over = bool(self.over.any())
        divisor = np.zeros(self.extent.shape, np.int64)
        if self.stands_over:
            for row, (options, extent) in enumerate(rows):
                next_ = -1
                for place in range(len(options) - 1, -1, -1):
                    divisor[row, place] = next_ if next_ >= 0 else place
                    next_ = next_ if extent % options[place] else place
        self._divisor = divisor

    def next(self, row: Array, place: Array) -> Array:
        """Return the place of the next extent, or the own if there is none.

        Rows are the axes of one tile. If an axis stands over its edge, the others grow to divisors only.
        """
        larger = np.minimum(place + 1, self.last[row])
        if not self.stands_over:
            return larger
        over = self.over[row, place]
        several = np.add.reduce(over, axis=0, dtype=np.int64)
        alone = (several == 0) | ((several == 1) & over)
        return np.where(alone, larger, self._divisor[row, place])


@dataclass(frozen=True)
class Growths:
    """Growths, a column each.

    Parameters
    ----------
    options : Options
    row : array of (spatial axes, growths)
        Row of `options` of each axis.
    place : array of (spatial axes, growths)
        Places of the tiles from which they start.
    fixed : array of (axes, growths)
        Extents along reductions.
    unit : array of (spatial axes, growths)
        Tile of one thread.
    """

    options: Options
    row: Array
    place: Array
    fixed: Array
    unit: Array

    def start(self, nest: GpuNest) -> Array:
        """Return the tiles from which they start, (axes, growths)."""
        tiles = self.fixed.astype(float)
        tiles[nest.outer] = self.options.extent[self.row, self.place]
        return tiles


@dataclass(frozen=True)
class Grown:
    """Tiles by growth, the starts left out: round by round, the best of a round first; and those that broke a rule.

    Parameters
    ----------
    growth : array
        Number of the growth of each tile.
    tiles, refused : array of (axes, N)
    """

    growth: Array
    tiles: Array
    refused: Array


def grown(
    nest: GpuNest, growths: Growths, beam: int, branches: int, refused: Callable[[Array, Array], Array],
    most_threads: int | None = None,
) -> Grown:  # fmt: skip
    """Return the tiles of all growths.

    From each of the `beam` best tiles of a round, the `branches` best steps go on. A step takes one axis to its next
    extent.

    Parameters
    ----------
    refused : callable
        From a table of tiles and the bytes of their inputs: True for those that break a rule.
    most_threads : int, optional
        Most threads of a tile.
    """
    options, tiles, place = growths.options, growths.start(nest), growths.place
    axes, positions = np.arange(len(nest.spatial))[:, None], np.array(nest.spatial)[:, None]
    of = np.arange(tiles.shape[1])
    # A tile's key: its growth and the places of its axes, of which the first counts most.
    weight = options.width ** np.arange(len(axes) - 1, -1, -1)
    key = of * options.width ** len(axes) + weight @ place
    seen = set(key.tolist())
    moved, _, held = nest.traffic_and_footprint(tiles)
    found: list[tuple[Array, Array]] = [(of[:0], tiles[:, :0])]
    broken = [tiles[:, :0]]
    while len(of):
        row, here = growths.row[:, of], np.arange(len(of))
        to = options.next(row, place)
        larger = np.repeat(tiles[:, None], len(axes), axis=1)
        larger[positions, axes, here] = options.extent[row, to]
        counts = nest.traffic_and_footprint(larger.reshape(len(tiles), -1))
        moves, inputs, holds = (count.reshape(to.shape) for count in counts)
        # Data-reuse score: traffic saved per byte of footprint (Roller, section 3.3).
        scores = np.where(to > place, (moved - moves) / np.maximum(1, holds - held), -np.inf)
        # The best steps of each tile; of equal scores, the larger extent along the first axis.
        if branches == 1:
            step, from_ = scores.argmax(axis=0), here
        else:
            step = np.argsort(-scores, axis=0, kind="stable")[:branches].T.ravel()
            from_ = np.repeat(here, len(step) // len(of))
        goes = to[step, from_] > place[step, from_]
        if most_threads is not None:
            goes &= np.multiply.reduce(larger[nest.outer, step, from_] / growths.unit[:, of[from_]]) <= most_threads
        step, from_ = step[goes], from_[goes]
        chosen = larger[:, step, from_]
        bad = refused(chosen, inputs[step, from_])
        if beam == 1:  # its path never comes by a tile twice
            kept = np.flatnonzero(~bad)
        else:
            keys = key[from_] + (to[step, from_] - place[step, from_]) * weight[step]
            scored = keys.tolist(), of[from_].tolist(), scores[step, from_].tolist(), bad.tolist()
            best, dropped = _best(*scored, seen, beam)
            kept, key = np.array(best, np.int64), keys[best]
            broken.append(chosen[:, dropped])
        step, from_ = step[kept], from_[kept]
        place = place[:, from_]
        place[step, np.arange(len(step))] = to[step, from_]
        tiles, of, moved, held = chosen[:, kept], of[from_], moves[step, from_], holds[step, from_]
        found.append((of, tiles))
    growth = np.concatenate([of for of, _ in found])
    by_growth = np.argsort(growth, kind="stable")
    every = np.concatenate([tiles for _, tiles in found], axis=1)[:, by_growth]
    return Grown(growth[by_growth], every.astype(np.int64), np.concatenate(broken, axis=1).astype(np.int64))


def _best(
    keys: list[int], growths: list[int], scores: list[float], bad: list[bool], seen: set[int], beam: int
) -> tuple[list[int], list[int]]:
    """Return the numbers of the steps that go on, the `beam` best of each growth, and of those that break a rule.

    Tiles that were seen before count no more.
    """
    following: dict[int, list[tuple[float, int, int]]] = {}
    broken: list[int] = []
    for number, (key, growth, score, refused) in enumerate(zip(keys, growths, scores, bad, strict=True)):
        if key in seen:
            continue
        seen.add(key)
        if refused:
            broken.append(number)
        else:
            following.setdefault(growth, []).append((score, key, number))
    best = [sorted(steps, reverse=True)[:beam] for steps in following.values()]
    return [number for steps in best for _, _, number in steps], broken
