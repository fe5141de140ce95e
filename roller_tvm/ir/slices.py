"""Slices of an operator of several sums: parts that pass nothing on to one another.

Strips of Winograd's algorithm (`te.winograd`) are such: what lies between its sums has one strip after the other along
its first axis, and a strip reads its own alone. A core can take a slice through all stages, whose intermediate values
then stay in its caches.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod

from .affine import Index
from .expression import TensorExpression
from .stage import Stage, Tensor


@dataclass(frozen=True)
class Slices:
    """An expression as slices.

    Parameters
    ----------
    count : int
    axes : mapping of str to tuple of str
        Stage -> its axes that number the slices, outermost first. Prologues, computed in place, have none.
    one : TensorExpression
        One slice: these axes have one iteration, inputs are as large as a slice needs.
    """

    count: int
    axes: Mapping[str, tuple[str, ...]]
    one: TensorExpression

    def trips(self, stage: Stage) -> dict[str, int]:
        """Return the extents of a stage's axes that number the slices."""
        return {name: stage.extents[name] for name in self.axes[stage.name]}


def slices_of(expression: TensorExpression, stored: Collection[str]) -> Slices | None:
    """Return the slices of an expression, None if its loop nests pass values on otherwise.

    Parameters
    ----------
    expression : TensorExpression
    stored : collection of str
        Stages that other loop nests read.

    Examples
    --------
    >>> from roller_tvm.ir.operators import matmul
    >>> slices_of(matmul(m=64, n=32, k=16), ()) is None
    True
    """
    fused = any(axis.fused_of for stage in expression.stages for axis in stage.axes)
    axes = {} if fused else _axes(expression, stored)
    if not axes:
        return None
    counts = {prod(expression.stage(name).extents[axis] for axis in own) for name, own in axes.items()}
    if len(counts) > 1 or counts == {1}:
        return None
    return Slices(counts.pop(), axes, _one(expression, axes))


def _axes(expression: TensorExpression, stored: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the axes of each stage that number the slices; none if there are no slices."""
    found: dict[str, tuple[str, ...]] = {}
    for stage in expression.stages:
        options = []
        for access in stage.reads:
            if access.tensor in stored:
                options.append(_numbering(stage, access.indices[0], expression.stage(access.tensor).shape[0]))
            elif access.tensor in found:
                source = expression.stage(access.tensor)
                same = access.indices == stage.write().indices and len(source.spatial) == len(stage.spatial)
                names = dict(zip((a.name for a in source.spatial), (a.name for a in stage.spatial), strict=False))
                options.append(tuple(names[name] for name in found[source.name]) if same else ())
        if stage.name in stored:
            first = stage.write().indices[0]
            options.append(_numbering(stage, first, stage.shape[0]))
        if options:
            if not options[0] or any(own != options[0] for own in options):
                return {}
            found[stage.name] = options[0]
        elif stage.reduce or stage in expression.outputs:
            return {}
    return found


def _numbering(stage: Stage, index: Index, extent: int) -> tuple[str, ...]:
    """Return the spatial axes that number a dimension's elements one by one, outermost first; none if it is otherwise.

    They are digits of the index, in the order of the axes: ``7*n + y`` of axes of 8 and 7 iterations.
    """
    spatial = {axis.name: axis.extent for axis in stage.spatial}
    digits = sorted(index.terms, key=lambda term: -term[1])
    if not index.is_affine or index.const or not all(name in spatial for name, _ in digits):
        return ()
    below = 1
    for name, stride in reversed(digits):
        if stride != below:
            return ()
        below *= spatial[name]
    found = tuple(name for name, _ in digits)
    return found if below == extent and found == tuple(name for name in spatial if name in found) else ()


def _one(expression: TensorExpression, axes: Mapping[str, tuple[str, ...]]) -> TensorExpression:
    """Return one slice."""
    needed: dict[str, list[int]] = {}
    made: list[Stage] = []
    for stage in reversed(expression.stages):
        extents = stage.extents | dict.fromkeys(axes.get(stage.name, ()), 1)
        if stage.name not in axes and stage.name in needed:
            for index, extent in zip(stage.write().indices, needed[stage.name], strict=True):
                if len(index.terms) == 1:
                    extents[index.axes[0]] = extent
        own = tuple(replace(a, extent=extents[a.name]) if extents[a.name] != a.extent else a for a in stage.axes)
        made.append(replace(stage, axes=own))
        for access in stage.reads:
            shape = expression.tensors[access.tensor].shape
            box = [s if i.opaque else min(s, i.extent(extents)) for s, i in zip(shape, access.indices, strict=True)]
            needed[access.tensor] = list(map(max, box, needed.get(access.tensor, box)))
    inputs = tuple(_smaller(t, needed.get(t.name)) for t in expression.inputs)
    return replace(expression, inputs=inputs, stages=tuple(reversed(made)))


def _smaller(tensor: Tensor, shape: list[int] | None) -> Tensor:
    return tensor if shape is None or tensor.fused_of else replace(tensor, shape=tuple(shape))
