"""Splitting a reduction axis: partial results as a stage of their own (rfactor, split-K)."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from .affine import Index
from .expression import TensorExpression
from .stage import REDUCE, Access, Axis, Stage


def partial_name(stage: str, before: int = 0) -> str:
    """Return the name of the stage of partial results, for a stage that was split `before` times already.

    Examples
    --------
    >>> partial_name("C"), partial_name("C", 1)
    ('C.rf', 'C.rf2')
    """
    return f"{stage}.rf{before + 1 if before else ''}"


def split_reduction(
    expression: TensorExpression, stage_name: str, axis_name: str, parts: int, lanes: bool = False
) -> TensorExpression:
    """Return the expression with one reduction axis computed in `parts` independent parts.

    Stage ``C = sum_k f(k)`` becomes ``C.rf[p] = sum_ki f(p * K/parts + ki)`` followed by
    ``C = sum_p C.rf[p]``. With `lanes` the parts are interleaved, ``f(ki * parts + p)``, and ``p`` is the
    last dimension: the lanes of a vector. A second split turns the sum over ``p`` into ``C.rf2`` and a shorter sum.

    Parameters
    ----------
    expression : TensorExpression
    stage_name, axis_name : str
    parts : int
        Number of parts; must divide the axis. With `lanes` the last parts may have one term less.
    lanes : bool
        Interleave the parts, as the innermost dimension.

    Examples
    --------
    >>> from roller_tvm.ir.operators import matmul
    >>> e = split_reduction(matmul(m=32, n=32, k=4096), "matmul", "k", 8)
    >>> e.anchor.name, e.anchor.extents
    ('matmul.rf', {'k.p': 8, 'm': 32, 'n': 32, 'k.i': 512})
    """
    stage = expression.stage(stage_name)
    axis = next((a for a in stage.reduce if a.name == axis_name), None)
    if axis is None:
        own = [a.name for a in stage.reduce]
        raise ValueError(f"'{axis_name}' is not a reduction axis of '{stage_name}' (has {own})")
    if axis.extent % parts and (not lanes or axis.extent < parts):
        raise ValueError(f"{parts} parts do not divide the extent {axis.extent} of '{axis_name}'")
    part, inner = f"{axis_name}.p", f"{axis_name}.i"
    length = ceil(axis.extent / parts)
    terms = {part: 1, inner: parts} if lanes else {part: length, inner: 1}
    values = {axis_name: Index.of(terms)}
    shorter = replace(axis, name=inner, extent=length, part_of=None, fused_of=())
    reduce = tuple(shorter if a is axis else a for a in stage.reduce)
    partial = Stage(
        partial_name(stage_name, sum(s.name.startswith(f"{stage_name}.rf") for s in expression.stages)),
        ((*stage.spatial, Axis(part, parts)) if lanes else (Axis(part, parts), *stage.spatial)) + reduce,
        tuple(a.substitute(values) for a in stage.reads),
        stage.dtype, stage.ops, stage.combiner,
    )  # fmt: skip
    written = stage.write().indices
    read = (*written, Index.axis(part)) if lanes else (Index.axis(part), *written)
    merge = {"sum": "add", "prod": "mul"}.get(stage.combiner, "cmp")
    final = Stage(
        stage_name,
        (*stage.spatial, Axis(part, parts, REDUCE)),
        (Access(partial.name, read),),
        stage.dtype, ((merge, 1),), stage.combiner,
    )  # fmt: skip
    stages: list[Stage] = []
    for s in expression.stages:
        stages += [partial, final] if s.name == stage_name else [s]
    anchor = partial.name if expression.anchor_name == stage_name else expression.anchor_name
    return replace(expression, stages=tuple(stages), anchor_name=anchor)
