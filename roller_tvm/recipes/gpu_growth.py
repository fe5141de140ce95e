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
        known: dict[tuple[int, int], int] = {}
        rows: list[tuple[list[int], list[int], list[int]]] = []
        which: list[int] = []
        for i in spatial:
            for g in growths:
                key = i, id(g.options[i])  # growths share the options of an axis
                if key not in known:
                    known[key] = len(rows)
                    rows.append(self._row(g.options[i], extents[i], width))
                which.append(known[key])
        places = np.array(which).reshape(len(spatial), len(growths))
        self.extent, self.larger, self.divisor = np.array(rows, np.int64).transpose(1, 0, 2)[:, places]
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


def grown(
    nest: GpuNest, growths: Sequence[Growth], beam: int, branches: int, refused: Callable[[Array, Array], Array],
    most_threads: int | None = None,
) -> list[Grown]:  # fmt: skip
    """Return the tiles of each growth, without its start.

    From each of the `beam` best tiles of a round, the `branches` best steps go on. A step takes one axis to its next
    extent; if an axis stands over its edge, the others grow to divisors only.

    Parameters
    ----------
    refused : callable
        From a table of tiles and the bytes of their inputs: True for those that break a rule.
    most_threads : int, optional
        Most threads of a tile.
    """
    if not growths:
        return []
    spatial, extents = nest.outer, nest.extents[nest.outer]
    positions = np.array(nest.spatial)
    options, steps = Options(nest, growths), np.arange(len(positions))
    units = np.array([g.unit for g in growths], np.int64).T[spatial]
    tiles = np.array([g.start for g in growths], np.int64).T
    of, place = np.arange(len(growths)), options.start
    moved, _, held = nest.traffic_and_footprint(tiles)
    paths = _Paths(growths, beam)
    while len(of):
        over = extents % tiles[spatial] != 0
        several = np.add.reduce(over, axis=0, dtype=np.int64)
        alone = (several == 0) | ((several == 1) & over)
        at = steps[:, None], of[None], place
        to = np.where(alone, options.larger[at], options.divisor[at])
        row, step = np.nonzero(to.T >= 0)
        to = to[step, row]
        larger = tiles[:, row]
        larger[positions[step], np.arange(len(row))] = options.extent[step, of[row], to]
        # Data-reuse score: traffic saved per byte of footprint (Roller, section 3.3).
        moves, inputs, holds = nest.traffic_and_footprint(larger)
        scores = (moved[row] - moves) / np.maximum(1, holds - held[row])
        bad = refused(larger, inputs)
        many = np.zeros(len(row), bool)
        if most_threads is not None:
            many = np.multiply.reduce(ceil_div(larger[spatial], units[:, of[row]]), axis=0) > most_threads
        # The best steps of each tile; of equal scores, the larger extent along the first axis.
        ranked = np.lexsort((-scores, row))
        first = np.searchsorted(row, row)  # steps are in the order of their tiles
        ranked = ranked[(np.arange(len(row)) - first < branches) & ~many[ranked]]
        kept = paths.chosen(ranked, of[row[ranked]], scores, larger, bad)
        at_next = place[:, row[kept]]
        at_next[step[kept], np.arange(len(kept))] = to[kept]
        tiles, of, place, moved, held = larger[:, kept], of[row[kept]], at_next, moves[kept], holds[kept]
    return paths.grown


class _Paths:
    """Tiles that growths came by so far."""

    def __init__(self, growths: Sequence[Growth], beam: int) -> None:
        self.grown = [Grown([], []) for _ in growths]
        self._seen: list[set[Tile]] = [{g.start} for g in growths]
        self._beam = beam

    def chosen(self, ranked: Array, growths: Array, scores: Array, larger: Array, bad: Array) -> list[int]:
        """Return the steps that go on, of those `ranked`: the best of each growth that are new and legal."""
        following: dict[int, list[tuple[float, Tile, int]]] = {}
        kept: list[int] = []
        steps = zip(
            ranked.tolist(), growths.tolist(), scores[ranked].tolist(), map(tuple, larger[:, ranked].T.tolist()),
            bad[ranked].tolist(), strict=True,
        )  # fmt: skip
        for number, growth, score, tile, broken in steps:
            if tile in self._seen[growth]:
                continue
            self._seen[growth].add(tile)
            if broken:
                self.grown[growth].refused.append(tile)
            elif self._beam > 1:
                following.setdefault(growth, []).append((score, tile, number))
            else:  # the first of a growth is its best
                self.grown[growth].tiles.append(tile)
                kept.append(number)
        for growth, next_ in following.items():
            best = heapq.nlargest(self._beam, next_) if len(next_) > 1 else next_
            self.grown[growth].tiles.extend([tile for _, tile, _ in best])
            kept += [number for _, _, number in best]
        return kept
