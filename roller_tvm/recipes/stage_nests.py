"""Stages that read windows of one another, as in image pipelines: nests that compute several of them tile by tile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod

from ..ir import Access, Axis, Stage, TensorExpression
from ..ir.expression import axis_values
from ..micro_perf.stage_tiles import Point
from ..roller.partition import NestShape

#: Most operations and reads of what is computed in place for a point, written out: TVM's passes and LLVM are slow with
#: more (`codegen.inlined_size`, which counts indices too).
IN_PLACE = 200
#: Longest axis that is unrolled because values stay the same along it.
SHARED = 4
#: Most terms of a window that is reduced within a tile: all of them are unrolled.
TERMS = 49


@dataclass(frozen=True)
class StageNest(NestShape):
    """A nest over tiles of its output; what it needs of other stages is computed before, with halos.

    Parameters
    ----------
    kept : tuple of str
        Stages stored for a tile, in order.
    """

    kept: tuple[str, ...] = ()


def reads_windows(expression: TensorExpression) -> bool:
    """Return whether stages read windows of what other stages compute, and all can be computed tile by tile.

    Examples
    --------
    >>> from roller_tvm.ir.operators import softmax
    >>> reads_windows(softmax(shape=(64, 1000)))
    False
    """
    return all(map(_tileable, expression.stages)) and any(
        _reads_window(expression, stage) for stage in expression.stages
    )


def _tileable(stage: Stage) -> bool:
    """Return whether a stage has loops of its own, and sums nothing but a short window of some tensor."""
    if not stage.spatial or any(axis.part_of or axis.fused_of for axis in stage.axes):
        return False
    if stage.results > 1 or stage.indivisible or stage.combiner == "other":
        return False
    own = {axis.name for axis in stage.spatial if axis.extent > 1}
    window = prod(axis.extent for axis in stage.reduce) <= TERMS and any(own <= a.axes for a in stage.reads)
    return window or not stage.reduce


def _reads_window(expression: TensorExpression, stage: Stage) -> bool:
    """Return whether a stage reads several places of another stage, which computes something."""
    reduced = {axis.name for axis in stage.reduce if axis.extent > 1}
    seen: set[str] = set()
    for access in set(stage.reads):
        if not expression.is_stage(access.tensor) or not expression.stage(access.tensor).ops:
            continue
        slides = any(len(index.axes) > 1 and not reduced.isdisjoint(index.axes) for index in access.indices)
        if slides or access.tensor in seen:
            return True
        seen.add(access.tensor)
    return False


def in_place(expression: TensorExpression, stage: Stage, inlined: Collection[str]) -> Point | None:
    """Return what a point of a stage takes; None if it takes more than `IN_PLACE` allows."""
    ops = Counter(dict(stage.ops))
    reads: dict[Access, None] = {}
    evaluated: set[Access] = set()
    todo, written = list(reversed(stage.reads)), 0
    while todo:
        access = todo.pop()
        if access.tensor not in inlined:
            reads[access] = None
            continue
        producer = expression.stage(access.tensor)
        written += sum(count for _, count in producer.ops) + len(producer.reads)  # LLVM computes equal ones once
        if written > IN_PLACE:
            return None
        if access not in evaluated:
            evaluated.add(access)
            ops.update(dict(producer.ops))
        inner = axis_values(producer, access, stage.extents)
        for read in reversed(producer.reads):
            todo.append(replace(read.substitute(inner), guarded=read.guarded or access.guarded))
    return Point(stage, tuple(reads), tuple(ops.items()))


def shares(reads: Sequence[Access], axis: Axis) -> bool:
    """Return whether an axis is short, and neighbours along it read some value together."""
    return 1 < axis.extent <= SHARED and any(axis.name not in access.axes for access in reads)


def row_period(reads: Sequence[Access], axis: str) -> int:
    """Return how many neighbours along an axis read the same element of a smaller tensor; 1 if none do."""
    found = (index.divisor for access in reads for index in access.indices if axis in index.axes)
    return max(found, default=1)
