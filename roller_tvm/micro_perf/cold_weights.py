"""Weights of a network's kernel, which memory delivers: the part of their way that the kernel's loops do not hide."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..roller.candidates import Column
from .cpu_caches import Loops
from .other_cores import shared_out


def waiting(nest: Loops, tiles: NDArray[np.int64], chunk: Column, number: Column, order: Sequence[int]) -> Column:
    """Return the cycles that a chunk waits for weights in no cache, beside what it computes.

    A core whose loops walk all of its weights for each row of tiles waits for them in the first walk. If the loops over
    rows stand inside, the kernel asks for the next panel of weights while it computes with this one
    (`rewrites.prefetch_panels`): it waits for the first panel, and a part of the others; so it does for what it reads
    once, in order. Measured on two cores of a Granite Rapids class server, tiles of 8 rows, panels of 32 kB: 1, 2, 4, 7
    and 14 such tiles compute 0.8 us each, and take 4.6, 5.5, 7.0, 9.5 and 15.0 us without asking, 3.6, 4.1, 4.6, 5.6
    and 11.2 with it. In EfficientNet-B0, 49 rows by 192 x 1152 weights take 130 us row by row, 84 panel by panel.

    Parameters
    ----------
    nest : Loops
    tiles : tiles
        Register tiles.
    chunk : column
        Cycles of a chunk otherwise.
    number : column
        Chunks.
    order : sequence of int
        Axes in the order of the chunks, outermost first.
    """
    g, rates = nest.geometry, nest.rates
    if not g.weights:
        return 0.0
    rows = np.arange(nest.chunks.shape[1])
    cut, own, total = shared_out(g, nest.chunks, nest.units, order), -(-number // nest.units), 0.0 * chunk
    loops = [(np.full(len(rows), i), -(-g.extents[i] // nest.chunks[i]) / cut[i]) for i in order]
    loops += [(o, np.where(o >= 0, -(-nest.chunks[o, rows] // tiles[o, rows]), 1)) for o in nest.orders]
    for op in g.weights:
        walks = np.array([i in op.axes for i in range(len(g.extents))] + [False])  # the last stands for no axis
        passes, panels, again = (np.ones(len(rows)) for _ in range(3))
        for axis, trips in reversed(loops):
            walked = walks[axis] & (trips > 1)
            again = np.where(~walked & (panels > 1), again * trips, again)
            passes = np.where(~walked & (panels == 1), passes * trips, passes)
            panels = np.where(walked, panels * trips, panels)
        arrives = op.source_bytes / prod(cut[i] for i in g.spatial if i in op.axes) / rates.far / own
        once = passes * again == 1  # a stream, which is followed
        first = np.where(once, 0.0, arrives / panels)
        followed = first + np.sqrt(chunk * chunk + (arrives - first) ** 2) - chunk
        total = total + np.where(once | (passes > 1) & (panels > 1), followed, arrives)
    return total
