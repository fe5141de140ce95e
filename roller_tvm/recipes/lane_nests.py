"""Reductions along contiguous elements, computed in the lanes of a vector."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..device import DeviceSpec
from ..ir import Stage, TensorExpression
from ..ir.pattern import is_product
from ..ir.split import partial_name
from ..micro_perf.geometry import Geometry
from ..roller.partition import NestShape
from ..roller.rprogram import SplitReduction

# Fewer lanes than this save no time.
FEWEST_LANES = 4
# Vectors of sums side by side in a row, of float32 alone, whose lanes are merged in halves (`codegen.rewrites`).
CHAINS = (4, 2)


@dataclass(frozen=True)
class LaneNest(NestShape):
    """A nest whose anchor reduces in lanes that are merged in the same tile.

    Parameters
    ----------
    merges : tuple of str
        Stages that merge the lanes, in order; the last one is the original reduction.
    """

    merges: tuple[str, ...] = ()


def lane_splits(
    expression: TensorExpression, device: DeviceSpec, uneven: bool = False
) -> tuple[SplitReduction, ...]:
    """Return splits into lanes of every reduction with a contiguous innermost axis, unless its outputs are too.

    Parameters
    ----------
    uneven : bool
        Also split into lanes that do not divide the axis, if there would be fewer lanes otherwise.

    Examples
    --------
    >>> from roller_tvm.device import cpu_device
    >>> from roller_tvm.ir.operators import softmax
    >>> [s.stage for s in lane_splits(softmax(shape=(64, 1024)), cpu_device())]
    ['max', 'sum']
    """
    found = (_split(expression, stage, device, uneven) for stage in expression.reductions)
    return tuple(split for split in found if split is not None)


def merge_splits(lanes: tuple[SplitReduction, ...]) -> tuple[SplitReduction, ...]:
    """Return the splits, with another one after each whose lanes merge faster first in vectors, then one by one.

    Examples
    --------
    >>> [str(s) for s in merge_splits((SplitReduction("sum", "k", 16, True), SplitReduction("max", "k", 4, True)))]
    ['split sum.k in 16 lanes', 'split sum.k.p in 4 lanes', 'split max.k in 4 lanes']
    """
    found: list[SplitReduction] = []
    for split in lanes:
        found.append(split)
        if split.parts // FEWEST_LANES + FEWEST_LANES < split.parts:
            found.append(SplitReduction(split.stage, f"{split.axis}.p", FEWEST_LANES, True))
    return tuple(found)


def chain_splits(expression: TensorExpression, lanes: tuple[SplitReduction, ...]) -> tuple[SplitReduction, ...]:
    """Return the splits with the lanes of several vectors, for rows: additions to one vector wait for one another.

    Examples
    --------
    >>> from roller_tvm.ir.operators import softmax
    >>> [str(s) for s in chain_splits(softmax(shape=(64, 1024)), (SplitReduction("sum", "k", 16, True),))]
    ['split sum.k in 64 lanes']
    """
    found: list[SplitReduction] = []
    for split in lanes:
        stage = expression.stage(split.stage)
        length = next(a.extent for a in stage.reduce if a.name == split.axis)
        several = (n for n in CHAINS if length % (n * split.parts) == 0 and stage.dtype == "float32")
        found.append(replace(split, parts=next(several, 1) * split.parts))
    return tuple(found)


def lane_nests(expression: TensorExpression, nests: tuple[NestShape, ...]) -> tuple[NestShape, ...]:
    """Return the nests, with each nest that merges lanes joined to the nest that fills them.

    Examples
    --------
    >>> from roller_tvm.ir.operators import softmax
    >>> from roller_tvm.roller.partition import partition
    >>> split = SplitReduction("sum", "k", 16, True).apply(softmax(shape=(64, 1024)))
    >>> [(n.anchor, getattr(n, "merges", ())) for n in lane_nests(split, partition(split))]
    [('max', ()), ('sum.rf', ('sum',)), ('norm', ())]
    """
    order = [s.name for s in expression.stages]
    by_anchor = {n.anchor: n for n in nests}
    joined: dict[str, NestShape] = {}
    gone: set[str] = set()
    for nest in nests:
        parts = [n for before in (0, 1) if (n := by_anchor.get(partial_name(nest.anchor, before))) is not None]
        if not parts or any(n.output != n.anchor for n in parts):
            continue
        inlined = sorted({*nest.inlined, *(i for n in parts for i in n.inlined)}, key=order.index)
        merges = (*(n.anchor for n in parts[1:]), nest.anchor)
        joined[nest.anchor] = LaneNest(parts[0].anchor, nest.output, tuple(inlined), merges)
        gone |= {n.anchor for n in parts}
    return tuple(joined.get(n.anchor, n) for n in nests if n.anchor not in gone)


def _split(expression: TensorExpression, stage: Stage, device: DeviceSpec, uneven: bool) -> SplitReduction | None:
    last = stage.reduce[-1]
    if stage.combiner not in ("sum", "max", "min") or stage.indivisible or last.part_of:
        return None
    geometry = Geometry.of(expression, stage.name)
    inner, vector = geometry.reduce[-1], geometry.vector_axis
    contiguous = all(op.stride_of(inner) == 1 for op in geometry.operands if inner in op.axes)
    scattered = vector is None or any(op.stride_of(vector) > 1 for op in geometry.operands)
    if not contiguous or not scattered:
        return None
    most = device.vector_bytes // geometry.output_bytes
    while last.extent < 2 * most:
        most //= 2
    lanes = most
    while lanes >= FEWEST_LANES and last.extent % lanes:
        lanes //= 2
    uneven = uneven and not stage.uneven and not is_product(stage)  # rows of products have other plans
    if uneven and lanes < most and not any(op.guarded for op in geometry.operands):
        lanes = most  # the last vector stands over the edge
    if lanes < FEWEST_LANES:
        return None
    return SplitReduction(stage.name, last.name, lanes, True, tuple(n for n, _ in last.fused_of))
