"""Parts of an axis, passed on to the stages that follow it.

A grouped convolution computes its channels in two parts, ``f = f.o * 16 + f.i``; its bias has one axis of
channels. To be computed on the same tile, the bias needs the same parts.
"""

from __future__ import annotations

from dataclasses import replace

from .affine import Index
from .expression import TensorExpression
from .stage import Axis, Stage


def share_parts(expression: TensorExpression) -> TensorExpression:
    """Return the expression with element-wise stages split into the same parts as the stage they read.

    Examples
    --------
    >>> from roller_tvm.ir.operators import operator
    >>> conv = operator("conv2d_nchw", n=1, c=8, h=8, w=8, f=12, k=3, groups=4, bias=1)
    >>> share_parts(conv).output.extents
    {'i0': 1, 'i1.o': 4, 'i1.i': 3, 'i2': 6, 'i3': 6}
    """
    stages: dict[str, Stage] = {}
    for stage in expression.stages:
        for access in stage.reads:
            source = stages.get(access.tensor)
            if source is None or stage.reduce or access.indices != stage.write().indices:
                continue
            if source.shape == stage.shape and len(source.spatial) > len(stage.spatial):
                stage = _split_like(stage, source)
                break
        stages[stage.name] = stage
    if all(stages[s.name] is s for s in expression.stages):
        return expression
    return replace(expression, stages=tuple(stages.values()))


def _split_like(stage: Stage, source: Stage) -> Stage:
    """Return the stage with the axes of `source`, a stage of the same shape with more parts."""
    theirs = {a.name: a for a in source.spatial}
    axes: list[Axis] = []
    values: dict[str, Index] = {}
    for own, index in zip(stage.write().indices, source.write().indices, strict=True):
        mine = [a for a in stage.spatial if a.name in own.axes]
        parts = [theirs[name] for name in index.axes]
        if len(mine) > 1 or len(parts) == 1:
            axes += mine
            continue
        whole = mine[0].name
        values[whole] = Index.of({f"{whole}.{suffix(n, len(parts))}": c for n, (_, c) in enumerate(index.terms)})
        axes += [
            Axis(name, part.extent, part_of=(whole, stride))
            for (name, stride), part in zip(values[whole].terms, parts, strict=True)
        ]
    return replace(stage, axes=tuple(axes), reads=tuple(a.substitute(values) for a in stage.reads))


def suffix(position: int, parts: int) -> str:
    """Return the suffix of a part's name: 'o' and 'i' for two parts, a number for more."""
    return "oi"[position] if parts == 2 else str(position)
