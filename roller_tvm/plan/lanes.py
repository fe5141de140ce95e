"""Reductions along contiguous elements, computed in the lanes of a vector."""

from __future__ import annotations

from ..device import DeviceSpec
from ..expr import Stage, TensorExpression
from ..model.geometry import Geometry
from .program import SplitReduction

# Fewer lanes than this save no time.
FEWEST_LANES = 4


def lane_splits(expression: TensorExpression, device: DeviceSpec) -> tuple[SplitReduction, ...]:
    """Every reduction whose innermost axis is contiguous where neighbouring outputs are not, split into lanes.

    Examples
    --------
    >>> from roller_tvm.device import cpu_device
    >>> from roller_tvm.expr.operators import softmax
    >>> [s.stage for s in lane_splits(softmax(shape=(64, 1024)), cpu_device())]
    ['max', 'sum']
    """
    return tuple(s for stage in expression.reductions if (s := _split(expression, stage, device)) is not None)


def _split(expression: TensorExpression, stage: Stage, device: DeviceSpec) -> SplitReduction | None:
    last = stage.reduce[-1]
    if stage.combiner not in ("sum", "max", "min") or stage.indivisible or last.part_of:
        return None
    geometry = Geometry.of(expression, stage.name)
    inner, vector = geometry.reduce[-1], geometry.vector_axis
    contiguous = all(op.stride_of(inner) == 1 for op in geometry.operands if inner in op.axes)
    scattered = vector is None or any(op.stride_of(vector) > 1 for op in geometry.operands)
    if not contiguous or not scattered:
        return None
    lanes = device.vector_bytes // geometry.output_bytes
    while lanes >= FEWEST_LANES and (last.extent % lanes or last.extent < 2 * lanes):
        lanes //= 2
    if lanes < FEWEST_LANES:
        return None
    return SplitReduction(stage.name, last.name, lanes, True, tuple(n for n, _ in last.fused_of))
