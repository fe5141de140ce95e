"""Kinds of nests; each recipe says which kinds it suits."""

from __future__ import annotations

from enum import Enum

from ..micro_perf.geometry import Geometry
from ..roller.partition import NestShape
from .dilated_nests import TurnedNest, dilated
from .lane_nests import LaneNest
from .row_nests import RowNest
from .stage_nests import StageNest

# Longest window that is unrolled.
WINDOW = 7


class Kind(Enum):
    """A nest by what limits the choice of loops, the most special first."""

    ROWS = "stages that walk the same rows"
    STAGES = "stages that read windows of one another"
    LANES = "a reduction in the lanes of a vector"
    UNEVEN = "loops that stay as they are"
    MOVE = "no reduction, or one of a kind of its own"
    CONSTANTS = "a product with matrices known when the kernel is compiled"
    DILATED = "a product with an operand dilated with zeros"
    TURNED = "such a product whose result is turned"
    NONE = "a turned result of another product"
    SLIDES = "a reduction of nothing but short sliding windows"
    PRODUCT = "any other reduction"


def kind_of(geometry: Geometry, nest: NestShape) -> Kind:
    """Return the kind of a nest."""
    g = geometry
    if isinstance(nest, RowNest):
        return Kind.ROWS
    if isinstance(nest, StageNest):
        return Kind.STAGES
    if isinstance(nest, LaneNest):
        return Kind.LANES
    if g.stage.uneven:
        return Kind.UNEVEN
    if not g.reduce or g.stage.combiner == "other":
        return Kind.MOVE
    if multiplies_constants(g):
        return Kind.CONSTANTS
    turned = isinstance(nest, TurnedNest)
    if dilated(g, nest.inlined):
        return Kind.TURNED if turned else Kind.DILATED
    if turned:
        return Kind.NONE
    return Kind.SLIDES if slides_only(g) else Kind.PRODUCT


def multiplies_constants(geometry: Geometry) -> bool:
    """Return whether the nest reduces a product with operands that are computed from their indices alone."""
    return bool(geometry.reduce) and any(op.computed for op in geometry.operands)


def slides_only(geometry: Geometry) -> bool:
    """Return whether a nest reduces nothing but short sliding windows.

    Examples
    --------
    >>> from roller_tvm.ir.operators import operator
    >>> conv = operator("conv2d_nchw", n=1, c=8, h=8, w=8, f=8, k=3)
    >>> pool = operator("max_pool2d", n=1, c=8, h=8, w=8, k=3, stride=2)
    >>> [slides_only(Geometry.of(e, e.anchor_name)) for e in (conv, pool)]
    [False, True]
    """
    g = geometry
    dims = [{a for a, _ in dim if g.extents[a] > 1} for op in g.operands for dim in op.dims]
    sliding = {a for dim in dims if dim & g.spatial_set for a in dim}
    reduced = {i for i in g.reduce if g.extents[i] > 1}
    return bool(reduced) and reduced <= sliding and all(g.extents[i] <= WINDOW for i in reduced)
