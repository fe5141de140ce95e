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

#: Follows every option of an axis: there is no larger one.
NONE_LARGER = np.iinfo(np.int64).max


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


def reuse_scores(nest: GpuNest, tiles: Array, larger: Array) -> Array:
    """Return the data-reuse score of growing tiles: traffic saved per byte of footprint (Roller, section 3.3).

    Parameters
    ----------
    tiles : array of (axes, N)
    larger : array of (axes, steps, N)
    """
    axes, steps, count = larger.shape
    every = np.concatenate([tiles, larger.reshape(axes, -1)], axis=1)
    moved, held = nest.traffic_and_footprint(every)
    more = held[count:].reshape(steps, count) - held[:count]
    return (moved[:count] - moved[count:].reshape(steps, count)) / np.maximum(1, more)


def _table(growths: Sequence[Growth], axis: int) -> Array:
    """Return the options of one axis, a column for each growth, filled up with ``NONE_LARGER``."""
    rows = [list(g.options[axis]) for g in growths]
    most = max(map(len, rows)) + 1
    return np.array([row + [NONE_LARGER] * (most - len(row)) for row in rows], np.int64).T


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
    spatial, extents = nest.spatial, nest.extents
    tables = {i: _table(growths, i) for i in spatial}
    seen: list[set[Tile]] = [{g.start} for g in growths]
    found = [Grown([], []) for _ in growths]
    units = np.array([g.unit for g in growths], np.int64).T
    rows = [(n, g.start) for n, g in enumerate(growths)]
    while rows:
        of = np.array([n for n, _ in rows])
        tiles = np.array([tile for _, tile in rows], np.int64).T
        count = len(rows)
        over = nest.overhangs(tiles)
        several = np.count_nonzero(over, axis=0)
        larger = np.repeat(tiles[:, None, :], len(spatial), axis=1)
        there = np.empty((len(spatial), count), bool)
        for step, i in enumerate(spatial):
            options = tables[i][:, of]
            alone = (several == 0) | ((several == 1) & over[i])
            fits = (options > tiles[i]) & (alone | (extents[i] % options == 0)) & (options != NONE_LARGER)
            at = fits.argmax(axis=0)
            there[step] = np.take_along_axis(fits, at[None], 0)[0]
            larger[i, step] = np.where(there[step], np.take_along_axis(options, at[None], 0)[0], tiles[i])
        scores = reuse_scores(nest, tiles, larger)
        bad = refused(larger.reshape(len(tiles), -1)).reshape(there.shape)
        if most_threads is not None:
            threads = np.multiply.reduce(ceil_div(larger[spatial], units[spatial][:, None, of]), axis=0)
            may = there & (threads <= most_threads)
        else:
            may = there
        # Of equal scores, the larger extent along the first axis; steps that are not there last.
        order = np.argsort(np.where(there, -scores, np.inf), axis=0, kind="stable")[:branches].T.tolist()
        may_, bad_, scores_ = may.T.tolist(), bad.T.tolist(), scores.T.tolist()
        following: dict[int, list[tuple[float, Tile]]] = {}
        steps = larger.transpose(2, 1, 0).tolist()
        for row, (n, _) in enumerate(rows):
            for step in order[row]:
                if not may_[row][step]:
                    continue
                tile = tuple(steps[row][step])
                if tile in seen[n]:
                    continue
                seen[n].add(tile)
                if bad_[row][step]:
                    found[n].refused.append(tile)
                else:
                    following.setdefault(n, []).append((scores_[row][step], tile))
        rows = []
        for n, next_ in following.items():
            best = [tile for _, tile in heapq.nlargest(beam, next_)]
            found[n].tiles.extend(best)
            rows += [(n, tile) for tile in best]
    return found
