"""Nests that the recipes for GPUs (and IPUs, which have some of them) tile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil, prod

import numpy as np

from ..micro_perf.geometry import Geometry, Tile
from ..micro_perf.gpu_nest import Array, GpuNest, ceil_div
from ..micro_perf.gpu_times import Times
from ..roller.features import ASYNC_COPY_BYTES
from ..roller.rprogram import RProgram
from .kinds import multiplies_constants
from .recipe import Candidate, Context
from .row_nests import RowNest


def tiles_loops(ctx: Context) -> bool:
    """Return whether a nest has loops of its own to tile: no rows of many stages, nor loops that stay as they are."""
    special = isinstance(ctx.nest, RowNest) or ctx.geometry.stage.uneven or multiplies_constants(ctx.geometry)
    return ctx.device.kind != "cpu" and not special


def copies_ahead(ctx: Context) -> bool:
    """Return whether the operands' tiles may be copied asynchronously: the line can, and no tensor is too large."""
    sizes = (prod(op.shape) * op.element_bytes for op in ctx.geometry.operands)
    return ctx.features.async_copy and all(size < ASYNC_COPY_BYTES for size in sizes)


def linear_tile(geometry: Geometry, length: int, axes: Sequence[int] | None = None) -> Tile:
    """Return the box of axes that `length` consecutive outputs cover (innermost first); reductions whole.

    ``axes`` are those to cover, all spatial ones by default.
    """
    tile = list(geometry.extents)
    for i in reversed(geometry.spatial if axes is None else axes):
        tile[i] = min(geometry.extents[i], length)
        length = ceil(length / geometry.extents[i])
    return tuple(tile)


def linear_tiles(nest: GpuNest, lengths: Array) -> Array:
    """Return ``linear_tile`` of N lengths, (axes, N)."""
    tiles = np.repeat(nest.extents, len(lengths), axis=1)
    for i in reversed(nest.spatial):
        tiles[i] = np.minimum(nest.extents[i], lengths)
        lengths = ceil_div(lengths, nest.extents[i])
    return tiles


def candidates(recipe: str, times: Times, rows: Iterable[int], program: Callable[[int], RProgram]) -> list[Candidate]:
    """Return candidates of a table, the fastest first; their rPrograms are made when they are asked for.

    Parameters
    ----------
    rows : iterable of int
        Their numbers in the table.
    program : callable
        From such a number: the rProgram.
    """

    def candidate(n: int) -> Candidate:
        return Candidate(float(times.seconds[n]), recipe, lambda: (program(n), times.estimate(n)))

    return [candidate(n) for n in rows]
