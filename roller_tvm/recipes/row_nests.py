"""Stages that walk the same rows, as one loop nest: each row goes through all of them while it is in a cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..ir import Index, Stage, TensorExpression
from ..roller.partition import NestShape

#: Least operations per point for which a stage is kept in the nearest cache instead of being computed twice.
EXPENSIVE = 16


@dataclass(frozen=True)
class RowNest(NestShape):
    """A nest over rows: the leading axes of the output, which every stage in it shares.

    Parameters
    ----------
    kept : tuple of str
        Stages computed once per row and kept until the row is done, in order.
    rows : int
        Number of leading axes that count the rows; 0 if the whole operator is one row.
    """

    kept: tuple[str, ...] = ()
    rows: int = 0


def row_nest(expression: TensorExpression) -> RowNest | None:
    """Return all stages of an expression as one nest over the rows that they share; None if they cannot be one.

    Examples
    --------
    >>> from roller_tvm.ir.operators import softmax
    >>> nest = row_nest(softmax(shape=(64, 1000)))
    >>> nest.kept, nest.output, nest.rows
    (('max', 'exp', 'sum'), 'norm', 1)
    """
    if len(expression.outputs) != 1 or any(
        _reuses(s) or s.combiner == "other" or s.indivisible or s.results > 1 for s in expression.stages
    ):
        return None
    output = expression.outputs[0]
    kept = [s for s in expression.stages if s is not output and (s.reduce or _worth_keeping(expression, s))]
    if not any(s.reduce for s in kept):
        return None
    inlined = tuple(s.name for s in expression.stages if s not in kept and s is not output)
    rows = _shared_rows(expression, [*kept, output], inlined)
    anchor = expression.anchor if expression.anchor.reduce else kept[-1]
    if anchor.name in inlined:
        return None
    return RowNest(anchor.name, output.name, inlined, tuple(s.name for s in kept), rows)


def _reuses(stage: Stage) -> bool:
    """Return whether some results of a reduction share its terms, as those of products do: they need tiles of both."""
    own, terms = ({a.name for a in axes if a.extent > 1} for axes in (stage.spatial, stage.reduce))
    return any(terms & read.axes and own - read.axes for read in stage.reads)


def _worth_keeping(expression: TensorExpression, stage: Stage) -> bool:
    """Return whether computing a stage in its readers would repeat special functions or much arithmetic."""
    readers = expression.consumers(stage.name)
    reads = sum(max(1, r.points // stage.points) for r in readers)
    return reads > 1 and (bool(stage.functions) or stage.flops_per_point >= EXPENSIVE)


def _shared_rows(expression: TensorExpression, stages: list[Stage], inlined: tuple[str, ...]) -> int:
    """Return the number of leading axes along which every stage reads the others at its own position."""
    output = stages[-1]
    names = {s.name for s in stages}
    shared = len(output.spatial)
    for stage in stages:
        own = stage.write().indices
        for d in range(min(shared, len(own)), -1, -1):
            same = [a.extent for a in stage.spatial[:d]] == [a.extent for a in output.spatial[:d]]
            if same and all(_is_axis(stage, own[i], i) for i in range(d)):
                shared = d
                break
        for access in expression.resolve(stage, inlined):
            if access.tensor in names:
                extents = stage.extents
                at = 0
                while at < min(shared, len(access.indices)) and _value(access.indices[at], extents) == _value(
                    own[at], extents
                ):
                    at += 1
                shared = min(shared, at)
    return shared


def _is_axis(stage: Stage, index: Index, position: int) -> bool:
    return index == Index.axis(stage.spatial[position].name)


def _value(index: Index, extents: Mapping[str, int]) -> Index:
    """Return the index without axes of extent 1, which are always 0."""
    return replace(index, terms=tuple(t for t in index.terms if extents[t[0]] > 1))
