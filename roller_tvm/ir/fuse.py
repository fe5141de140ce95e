"""Axis fusion: axes that are adjacent in, or absent from, every tensor become one (Roller, section 4).

``relu`` over NCHW is a loop over ``n*c*h*w``; a pooling keeps ``oh`` and ``ow`` apart but not ``n`` and
``c``.
The fused expression reads and writes the same memory: neighbouring dimensions of its tensors are merged too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from .affine import Index
from .expression import TensorExpression
from .stage import Access, Axis, Stage, Tensor

Pairs = set[tuple[int, int]]
Groups = tuple[tuple[int, ...], ...]


def fuse_axes(expression: TensorExpression) -> TensorExpression:
    """Return the expression with every group of axes that go together as one axis and one dimension.

    Examples
    --------
    >>> from roller_tvm.ir.operators import operator
    >>> print(fuse_axes(operator("max_pool2d", n=8, c=64, h=8, w=8, k=2, stride=2)).anchor)
    pool_max(n*c:512, oh:4, ow:4, kh:2r, kw:2r) float32 = max {1*cmp} of data[n*c, 2*oh + kh, 2*ow + kw]
    """
    found = Fusion.of(expression)
    if all(len(group) == 1 for groups in found.axes.values() for group in groups):
        return expression
    inputs = tuple(_fuse_tensor(t, found.dims[t.name]) for t in expression.inputs)
    return replace(expression, inputs=inputs, stages=tuple(_fuse_stage(s, found) for s in expression.stages))


# -- which axes and dimensions go together ------------------------------------------------------


@dataclass(frozen=True)
class Fusion:
    """Positions to fuse: groups of axes for each stage, groups of dimensions for each tensor."""

    axes: dict[str, Groups]
    dims: dict[str, Groups]

    @classmethod
    def of(cls, expression: TensorExpression) -> Fusion:
        fixed = {name: _fixed_dims(expression, name) for name in expression.tensors}
        lengths = {s.name: tuple(a.extent for a in s.axes) for s in expression.stages}
        axis_runs = {
            s.name: _runs(
                [_free(s, a, fixed[s.name]) for a in s.axes],
                [a.is_reduce for a in s.axes],
            )
            for s in expression.stages
        }
        shapes = {name: t.shape for name, t in expression.tensors.items()}
        dim_runs = {
            n: _runs([d not in fixed[n] for d in range(len(shape))], [False] * len(shape))
            for n, shape in shapes.items()
        }
        axis_pairs = {n: _all_neighbours(runs, lengths[n]) for n, runs in axis_runs.items()}
        dim_pairs = {n: _all_neighbours(runs, shapes[n]) for n, runs in dim_runs.items()}
        views = [View.of(s, access) for s in expression.stages for access in (*s.reads, s.write())]
        of_stage = {n: [v for v in views if v.stage.name == n] for n in axis_pairs}
        of_tensor = {n: [v for v in views if v.tensor == n] for n in dim_pairs}
        changed = True
        while changed:  # strike out pairs until the rest agree with each other
            changed = False
            for name, pairs in axis_pairs.items():
                for pair in list(pairs):
                    if not _axes_agree(of_stage[name], pair, dim_pairs):
                        pairs.discard(pair)
                        changed = True
            for name, pairs in dim_pairs.items():
                for pair in list(pairs):
                    if not _dims_agree(of_tensor[name], pair, shapes[name], axis_pairs):
                        pairs.discard(pair)
                        changed = True
        return cls(
            {n: _groups(lengths[n], runs, axis_pairs[n]) for n, runs in axis_runs.items()},
            {n: _groups(shapes[n], runs, dim_pairs[n]) for n, runs in dim_runs.items()},
        )


def _free(stage: Stage, axis: Axis, fixed: set[int]) -> bool:
    """Return whether an axis may be fused with any other."""
    if axis.part_of is not None:
        return False
    if stage.uneven and (axis.is_reduce or axis.name in stage.uneven):
        return False
    return axis.is_reduce or _dim_of(stage, axis) not in fixed


def _dim_of(stage: Stage, axis: Axis) -> int:
    """Return the dimension of the stage's tensor to which a spatial axis belongs."""
    return next(d for d, index in enumerate(stage.write().indices) if axis.name in index.axes)


def _reads_of(expression: TensorExpression, name: str) -> Iterator[tuple[Stage, Access]]:
    for stage in expression.stages:
        for access in stage.reads:
            if access.tensor == name:
                yield stage, access


def _fixed_dims(expression: TensorExpression, name: str) -> set[int]:
    """Return the dimensions that must stay apart: of extent 1 but not always read at 0, or made of parts of an axis."""
    shape = expression.tensors[name].shape
    fixed = set()
    for stage, access in _reads_of(expression, name):
        for d, index in enumerate(access.indices):
            if shape[d] == 1 and stage.varying(index) != Index():
                fixed.add(d)
    if expression.is_stage(name):
        stage = expression.stage(name)
        parts = {a.name for a in stage.spatial if a.part_of is not None}
        fixed |= {d for d, index in enumerate(stage.write().indices) if parts & set(index.axes)}
    return fixed


def _runs(free: list[bool], kinds: list[bool]) -> list[list[int]]:
    """Return maximal runs of neighbouring positions that are free and of the same kind; other positions stand alone."""
    runs: list[list[int]] = []
    for i in range(len(free)):
        if free[i] and runs and runs[-1][-1] == i - 1 and free[i - 1] and kinds[i] == kinds[i - 1]:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


def _neighbours(run: list[int], extents: Sequence[int]) -> Pairs:
    """Return the pairs of consecutive positions in a run, extents of 1 left out."""
    long = [i for i in run if extents[i] > 1]
    return set(zip(long, long[1:], strict=False))


def _all_neighbours(runs: list[list[int]], extents: Sequence[int]) -> Pairs:
    return {pair for run in runs for pair in _neighbours(run, extents)}


def _groups(extents: Sequence[int], runs: list[list[int]], pairs: Pairs) -> Groups:
    """Cut the runs at each pair that is not in `pairs`; a position of extent 1 joins the position before it."""
    groups: list[tuple[int, ...]] = []
    for run in runs:
        cuts = {second for first, second in _neighbours(run, extents) if (first, second) not in pairs}
        current: list[int] = []
        for i in run:
            if i in cuts:
                groups.append(tuple(current))
                current = []
            current.append(i)
        groups.append(tuple(current))
    return tuple(groups)


@dataclass(frozen=True)
class View:
    """An access of a stage, the write of its own tensor among them.

    Parameters
    ----------
    axes : tuple of set of int
        For each dimension, the positions of the stage's axes that its index depends on.
    alone : tuple of int
        For each dimension, the position of the axis that is its index; -1 if it is another index.
    """

    stage: Stage
    tensor: str
    axes: tuple[set[int], ...]
    alone: tuple[int, ...]

    @classmethod
    def of(cls, stage: Stage, access: Access) -> View:
        position = {a.name: i for i, a in enumerate(stage.axes)}
        values = [stage.varying(index) for index in access.indices]
        alone = [
            position[v.axes[0]] if len(v.axes) == 1 and v == Index.axis(v.axes[0]) else -1 for v in values
        ]
        return cls(stage, access.tensor, tuple({position[n] for n in v.axes} for v in values), tuple(alone))


def _axes_agree(views: list[View], pair: tuple[int, int], dim_pairs: dict[str, Pairs]) -> bool:
    """Return whether every tensor holds the two axes as neighbouring whole dimensions, or holds neither."""
    for view in views:
        at = tuple(d for d, axes in enumerate(view.axes) if pair[0] in axes or pair[1] in axes)
        if at and not (tuple(view.alone[d] for d in at) == pair and at in dim_pairs[view.tensor]):
            return False
    return True


def _dims_agree(
    views: list[View], pair: tuple[int, int], shape: tuple[int, ...], axis_pairs: dict[str, Pairs]
) -> bool:
    """Return whether every access walks the two dimensions, over their whole length, with two axes that are fused."""
    for view in views:
        at = tuple(view.alone[d] for d in pair)
        whole = all(a >= 0 and view.stage.axes[a].extent == shape[d] for a, d in zip(at, pair, strict=True))
        if not whole or at not in axis_pairs[view.stage.name]:
            return False
    return True


# -- the fused expression ------------------------------------------------------------------------


def _fuse_tensor(tensor: Tensor, groups: Groups) -> Tensor:
    shape = tuple(prod(tensor.shape[d] for d in group) for group in groups)
    if all(len(group) == 1 for group in groups):
        return replace(tensor, shape=shape)
    before = tensor.fused_of or tuple((extent,) for extent in tensor.shape)
    return replace(tensor, shape=shape, fused_of=tuple(sum((before[d] for d in group), ()) for group in groups))


def _fuse_stage(stage: Stage, found: Fusion) -> Stage:
    axes: list[Axis] = []
    fused_name: dict[str, str] = {}
    for group in found.axes[stage.name]:
        members = [stage.axes[i] for i in group]
        axes.append(_fuse_group(members))
        fused_name |= {a.name: axes[-1].name for a in members}
    extents = {a.name: a.extent for a in axes}
    reads = tuple(
        replace(access, indices=_merge(stage, access, found.dims[access.tensor], fused_name, extents))
        for access in stage.reads
    )
    return replace(stage, axes=tuple(axes), reads=reads)


def _fuse_group(members: list[Axis]) -> Axis:
    if len(members) == 1:
        return members[0]
    long = [a.name for a in members if a.extent > 1] or [members[0].name]
    loops = tuple(loop for a in members for loop in (a.fused_of or ((a.name, a.extent),)))
    return Axis("*".join(long), prod(a.extent for a in members), members[0].kind, fused_of=loops)


def _merge(
    stage: Stage, access: Access, groups: Groups, fused_name: dict[str, str], extents: dict[str, int]
) -> tuple[Index, ...]:
    """Return one index per group of dimensions, over the fused axes."""
    result = []
    for group in groups:
        indices = [access.indices[d] for d in group]
        if len(group) == 1 and all(fused_name[n] == n for n in indices[0].axes):
            result.append(indices[0])
            continue
        values = [v for v in (stage.varying(index) for index in indices) if v != Index()]
        if len(values) > 1:  # neighbours of one fused axis
            result.append(Index.axis(fused_name[values[0].axes[0]]))
        elif values:
            result.append(values[0].substitute({n: Index.axis(fused_name[n]) for n in values[0].axes}))
        else:  # a single element, named as the writer would name it
            named = [fused_name[n] for index in indices for n in index.axes]
            result.append(Index.axis(named[0]) if named and extents[named[0]] == 1 else Index())
    return tuple(result)
