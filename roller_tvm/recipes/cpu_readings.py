"""Ways in which register tiles of recipe cpu.tiled read their operands: as they are, from copies, or over an edge.

Operands can be read in four ways:

- As they are; constants packed when the module is built. A packed constant needs whole register tiles, as it is packed
  in the order in which they read it. Other operands whose rows lie far apart may be copied in panels.
- Turned: ``A B^T`` with a B that is no constant. Its vectors would be gathered, element by element, for every
  multiply-add of a column. If panels of it are copied, and turned on the way, they are loaded. The schedule then has to
  change the layout of a copy (see ``features``).
- Constants over the edge, for products whose columns no vectors divide: 1000 columns are not a multiple of 16; in
  vectors of 10, a third of the lanes is idle. Vectors then stand over the edge, of constants packed with zeros behind
  their last column, or of constants as stored where a schedule cannot pack them so (see ``features``).
- Padding in place, where a register tile's place in its row tells which lanes of its vectors are padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..micro_perf.cpu_caches import may_scatter
from ..micro_perf.cpu_rates import CpuRates
from ..micro_perf.geometry import Geometry, Operand
from ..micro_perf.neighbours import NEAR
from .cpu_tiles import register_tiles
from .kinds import WINDOW, Kind
from .recipe import Context, Report


@dataclass(frozen=True)
class Reading:
    """A nest with its operands read in one way.

    Parameters
    ----------
    ctx : Context
    packings : list of frozenset of str
        Sets of operands to copy in panels; a set may be empty.
    tiles : array [A, N], optional
        Register tiles; by default those that rank best.
    whole_rows : bool
        True if chunks are whole along the vector axis.
    """

    ctx: Context
    packings: list[frozenset[str]]
    tiles: NDArray[np.int64] | None = None
    whole_rows: bool = False


def readings_of(ctx: Context) -> Iterator[Reading]:
    """Yield the ways to read a nest's operands: as they are or in panels, padding that tiles tell, turned panels,
    constants over the edge.
    """
    g = ctx.geometry
    if not g.spatial or not g.operands:
        return
    yield Reading(ctx, packings_of(g, ctx.rates))
    if ctx.kind is not Kind.PRODUCT:
        return
    if (told := told_padding(ctx)) is not None:
        yield Reading(told, [frozenset()], whole_rows=True)
    if ctx.features.turned_copies and (turned := turned_search(ctx)) is not None:
        yield Reading(turned[0], [turned[1]])
    if (over := over_edge_search(ctx)) is not None:
        yield Reading(over[0], [frozenset()], over[1])


def told_padding(ctx: Context) -> Context | None:
    """Return a context in which vectors that reach into padding are loaded as others are; None if there are none.

    Where a loop walks whole rows, a register tile's place tells which of its lanes are padding (see
    ``codegen.rewrites.padded_vectors``). The window along the row is unrolled for that.

    Examples
    --------
    >>> from roller_tvm.device import cpu_device
    >>> from roller_tvm.ir.operators import operator
    >>> from roller_tvm.micro_perf.geometry import Geometry
    >>> conv = operator("conv2d_nchw", n=1, c=8, h=28, w=28, f=8, k=3, padding=1)
    >>> nest = Geometry.of(conv, "conv2d", ["pad"])
    >>> [op.told for op in told_padding(Context(nest, cpu_device(), None, 0.0)).geometry.operands]
    [True, False]
    """
    g, last = ctx.geometry, ctx.geometry.vector_axis
    if last is None or not ctx.rates.edge_vectors:
        return None
    padded = [op for op in g.operands if last in op.guard_axes]
    along = {i for op in padded for dim in op.dims if any(a == last for a, _ in dim) for i, _ in dim}
    long = any(g.extents[i] > WINDOW for i in along.intersection(g.reduce))
    if not padded or long or not all(1 <= op.stride_of(last) <= NEAR for op in padded):
        return None
    told = tuple(replace(op, told=last in op.guard_axes) for op in g.operands)
    return ctx.over(replace(g, operands=told))


def packings_of(geometry: Geometry, rates: CpuRates) -> list[frozenset[str]]:
    """Return sets of operands to copy in panels: none, each one that is scattered and reused, and all of these."""
    looped = [i for i in geometry.spatial if geometry.extents[i] > 1]
    names = [op.name for op in geometry.operands]
    again = [op for op in geometry.operands if any(i not in op.axes for i in looped) and names.count(op.name) == 1]
    spread = [op.name for op in again if may_scatter(geometry, op, rates)]
    together = [frozenset(spread)] if len(spread) > 1 else []
    return [frozenset(), *(frozenset({name}) for name in spread), *together]


def over_edge_search(ctx: Context) -> tuple[Context, NDArray[np.int64]] | None:
    """Return a context in which constants may be read over an edge, and its register tiles; None if other packed
    constants serve as well.

    They are packed with zeros behind their edge, or stay as stored where schedules cannot do so. Such schedules cannot
    pack constants for tiles over the edge of any axis (``relay.build``: see `packs_whole_tiles`).

    Examples
    --------
    >>> from roller_tvm.device import cpu_device
    >>> from roller_tvm.ir.operators import matmul
    >>> from roller_tvm.micro_perf.geometry import Geometry
    >>> over_edge_search(Context(Geometry.of(matmul(m=64, n=521, k=64), "matmul"), cpu_device(), None, 0.0)) is None
    True
    """
    g, last = ctx.geometry, ctx.geometry.vector_axis
    constants = [op for op in g.operands if op.constant and last in op.axes]
    if last is None or not constants:
        return None
    rates, whole = ctx.rates, packs_whole_tiles(ctx)
    if not whole and not g.extents[last] % rates.lanes:
        return None
    stored = ctx.over(replace(g, operands=tuple(replace(op, constant=False) for op in g.operands)))
    looked = replace(stored, report=Report(ctx.rejections))
    tiles = register_tiles(looked, rates, over=True)
    edges = list(g.spatial) if whole else [last]
    tiles = tiles[:, np.any([g.extents[i] % tiles[i] != 0 for i in edges], axis=0)]
    if not tiles.shape[1]:
        return None
    ctx.considered += looked.considered
    padded = ctx.features.padded_constants and all(_element_by_element(g, op) for op in constants)
    return (ctx if padded else stored), tiles


def packs_whole_tiles(ctx: Context) -> bool:
    """Return whether constants of a nest are packed by schedules that need whole register tiles along every axis."""
    return not ctx.features.padded_constants and any(op.constant for op in ctx.geometry.operands)


def turned_operands(geometry: Geometry) -> tuple[Operand, ...]:
    """Return the operands with gathered vectors that are stored exactly as they are read, and read several times.

    Examples
    --------
    >>> from roller_tvm.ir.operators import matmul
    >>> [op.name for op in turned_operands(Geometry.of(matmul(m=8, n=8, k=8, layout="NT"), "matmul"))]
    ['B']
    >>> turned_operands(Geometry.of(matmul(m=8, n=8, k=8, layout="NN"), "matmul"))
    ()
    """
    last = geometry.vector_axis
    if last is None:
        return ()
    looped = {i for i in geometry.spatial if geometry.extents[i] > 1}
    return tuple(
        op for op in geometry.operands
        if last in op.axes and op.stride_of(last) != 1 and looped - op.axes
        and not op.constant and _element_by_element(geometry, op)
    )  # fmt: skip


def _element_by_element(geometry: Geometry, op: Operand) -> bool:
    """Return whether an operand is stored as it is read, and read once."""
    whole = all(len(dim) == 1 and dim[0][1] == 1 for dim in op.dims) and op.plain and not op.divided
    return whole and sum(other.name == op.name for other in geometry.operands) == 1


def turned_search(ctx: Context) -> tuple[Context, frozenset[str]] | None:
    """Return a context in which these operands are read from their copies, and their names; None if there are none."""
    own = turned_operands(ctx.geometry)
    if not own:
        return None
    geometry = ctx.geometry
    read = tuple(replace(op, constant=True) if op in own else op for op in geometry.operands)
    return ctx.over(replace(geometry, operands=read)), frozenset(op.name for op in own)
