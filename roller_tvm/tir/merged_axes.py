"""A PrimFunc with neighbouring axes as one, in its loops and its tensors: rows and columns of pixels, say.

The planner keeps the axes of products as they are. A convolution whose window is one pixel is a product of channels by
pixels, though; as such its vectors go on from row to row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ..errors import UnsupportedOperator
from ..ir.fuse import Fusion
from ..ir.pattern import is_product
from .nodes import key, parameters
from .read import TirReading, read_prim_func

Groups = Sequence[Sequence[int]]


@dataclass(frozen=True, eq=False)
class MergedFunction:
    """A function, and the shapes of its parameters.

    Parameters
    ----------
    func : PrimFunc
    shapes : tuple of tuple of int
        Of as many elements as before, in the same order.
    """

    func: Any
    shapes: tuple[tuple[int, ...], ...]


def merged_function(func: Any, constants: Collection[str | int] = ()) -> MergedFunction | None:
    """Return a function of a product with its axes merged; None if nothing but axes of extent 1 would be.

    Parameters
    ----------
    func : PrimFunc
        A function that is not scheduled yet.
    constants : collection of str or int
        As of `read_prim_func`.

    Examples
    --------
    >>> from tvm import te, topi
    >>> x, w = te.placeholder((1, 8, 7, 7), name="x"), te.placeholder((4, 8, 1, 1), name="w")
    >>> merged_function(te.create_prim_func([x, w, topi.nn.conv2d(x, w, 1, 0, 1)])).shapes
    ((8, 49), (4, 8), (4, 49))
    """
    try:
        reading = read_prim_func(func, constants=constants)
    except UnsupportedOperator:
        return None
    expression = reading.expression
    products = [stage for stage in expression.stages if is_product(stage)]
    found = Fusion.of(expression)
    if reading.elsewhere or not any(
        sum(stage.axes[i].extent > 1 for i in group) > 1
        for stage in products for group in found.axes[stage.name] if not stage.axes[group[0]].is_reduce
    ):  # fmt: skip
        return None
    names = {key(buffer): name for name, own in reading.buffers.items() for buffer in own}
    shapes = tuple(
        tuple(prod(expression.tensors[name].shape[d] for d in group) for group in found.dims[name])
        for name in (names[key(p)] for p in parameters(func))
    )
    return MergedFunction(_merged(func, reading, found, names), shapes)


def _merged(func: Any, reading: TirReading, found: Fusion, names: dict[int, str]) -> Any:
    from tvm import s_tir, tirx

    schedule, expression = s_tir.Schedule(func), reading.expression
    done = set()
    for stage in expression.stages:
        block = schedule.get_sblock(reading.blocks[stage.name])
        stored = [("write", n, stage.name) for n in range(len(reading.buffers[stage.name]))]
        read = [("read", n, names.get(key(region.source), "")) for n, region in enumerate(schedule.get(block).reads)]
        for kind, number, name in [*stored, *read]:
            if (kind, name) in done or kind == "read" and (not name or expression.is_stage(name)):
                continue
            done.add((kind, name))
            groups, shape = found.dims[name], expression.tensors[name].shape
            if any(len(group) > 1 for group in groups):
                schedule.transform_layout(block, (kind, number), _place(groups, shape))
    for stage in expression.stages:
        groups, extents = found.axes[stage.name], [axis.extent for axis in stage.axes]
        if any(len(group) > 1 for group in groups):
            place = tirx.IndexMap.from_func(_place(groups, extents), ndim=len(extents))
            schedule.transform_block_layout(schedule.get_sblock(reading.blocks[stage.name]), place)
    return schedule.mod["main"]


def _place(groups: Groups, extents: Sequence[int]) -> Callable[..., list[Any]]:
    """Return the function from positions to those in merged dimensions."""

    def one(positions: Sequence[Any], group: Sequence[int]) -> Any:
        total = None
        for n in group:
            if extents[n] > 1:
                total = positions[n] if total is None else total * extents[n] + positions[n]
        return positions[group[0]] if total is None else total

    return lambda *positions: [one(positions, group) for group in groups]
