"""Nests over operands dilated with zeros (transposed convolutions), and those whose result is only turned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ..ir import Index, Stage, TensorExpression
from ..micro_perf.geometry import Geometry, in_memory
from ..roller.partition import NestShape


def divides(expression: TensorExpression) -> bool:
    """Return whether some index is a quotient, as a dilated operand's is."""
    return any(i.divisor > 1 for s in expression.stages for a in s.reads for i in a.indices)


@dataclass(frozen=True)
class TurnedNest(NestShape):
    """A nest whose output has the anchor's axes in another order."""


def turned(expression: TensorExpression, nests: tuple[NestShape, ...]) -> tuple[NestShape, ...] | None:
    """Return the nests with the last fused into a dilated product before it; None unless it only turns its result."""
    if len(nests) < 2:
        return None
    *before, product_, last = nests
    anchor, output = expression.stage(product_.anchor), expression.stage(last.output)
    if product_.output != anchor.name or output.reduce or last.anchor != last.output or not anchor.reduce:
        return None
    reads = expression.resolve(output, last.inlined)
    mine = [a for a in reads if a.tensor == anchor.name]
    extents, own = output.extents, anchor.write().indices
    if len(mine) != 1 or any(expression.is_stage(a.tensor) and a.tensor != anchor.name for a in reads):
        return None
    axes = []
    for index, dim in zip(mine[0].indices, own, strict=True):
        if not index.terms and not index.const and anchor.extents[dim.axes[0]] == 1:
            continue  # an axis of one element that the output does not have
        if len(index.terms) != 1 or index != Index.axis(index.axes[0]) or len(dim.terms) != 1:
            return None
        if extents[index.axes[0]] != anchor.extents[dim.axes[0]]:
            return None
        axes.append(index.axes[0])
    whole = prod(extents[a] for a in set(axes)) == output.output_elements
    if not whole or len(set(axes)) < len(axes):
        return None
    order = [s.name for s in expression.stages]
    inlined = tuple(sorted({*product_.inlined, *last.inlined}, key=order.index))
    return (*before, TurnedNest(anchor.name, output.name, inlined))


def output_axes(
    expression: TensorExpression, anchor: Stage, output: Stage, inlined: Sequence[str]
) -> dict[str, str]:
    """Return the axis of the output that each axis of the anchor becomes.

    Examples
    --------
    >>> from roller_tvm.ir.operators import operator
    >>> conv = operator("conv2d_nchw", n=1, c=8, h=8, w=8, f=8, k=3)
    >>> output_axes(conv, conv.anchor, conv.anchor, ())["oh"]
    'oh'
    """
    if anchor is output:
        return {a.name: a.name for a in anchor.spatial}
    reads = [a for a in expression.resolve(output, inlined) if a.tensor == anchor.name]
    return {
        own.terms[0][0]: read.terms[0][0]
        for own, read in zip(anchor.write().indices, reads[0].indices, strict=True)
        if read.terms
    }


def dilated(geometry: Geometry, inlined: Sequence[str]) -> bool:
    """Return whether a nest reduces over an operand dilated with zeros, in steps that divide its axes."""
    if not divides(geometry.expression):
        return False
    geometry = in_memory(geometry, inlined)
    steps = strides(geometry)
    spatial = [i for i in steps if i in geometry.spatial_set]
    return bool(spatial) and bool(geometry.reduce) and all(geometry.extents[i] % steps[i] == 0 for i in spatial)


def strides(geometry: Geometry) -> dict[int, int]:
    """Return the axes that walk over an operand dilated with zeros: position -> distance of its elements.

    The geometry's operands are those in memory (``in_memory``).

    Examples
    --------
    >>> from roller_tvm.ir.operators import operator
    >>> conv = operator("conv2d_nchw", n=1, c=8, h=8, w=8, f=8, k=3)
    >>> strides(Geometry.of(conv, "conv2d"))
    {}
    """
    position = {name: i for i, name in enumerate(geometry.axes)}
    found: dict[int, int] = {}
    for op in geometry.operands:
        for index in op.access.indices:
            if index.divisor > 1 and op.guarded:
                found |= {position[n]: index.divisor for n, c in index.terms if c == 1}
    return found
