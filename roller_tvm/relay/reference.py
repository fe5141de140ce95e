"""The reference for a kernel's results: TVM's own schedule of the same computation, on seeded random inputs.

It is built from the TE program alone (``te.create_schedule``, outer loops parallel, in an order that runs well), so it
uses no decision of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roller_tvm.te.copying import copies
from roller_tvm.tuning.numerics import difference, make_inputs, reference_on, rounding_terms, shape_of, tolerance


def reference_schedule(outputs: Sequence[Any]) -> Any:
    """Return TVM's default schedule with outer loops in parallel and the last dimension innermost."""
    from tvm import te

    schedule = te.create_schedule([t.op for t in outputs])
    for stage in schedule.stages:
        op = stage.op
        if not isinstance(op, te.ComputeOp) or not len(op.axis):
            continue
        spatial, reduce = list(op.axis), list(op.reduce_axis)
        # Adaptive pooling's windows have lengths that depend on the output: they stay inside.
        if reduce and len(spatial) > 1 and all(_constant(axis) for axis in reduce):
            stage.reorder(*spatial[:-1], *reduce, spatial[-1])
        outer = spatial[:-1] or spatial
        stage.parallel(stage.fuse(*outer) if len(outer) > 1 else outer[0])
    return schedule


def _constant(axis: Any) -> bool:
    import tvm

    return isinstance(tvm.arith.Analyzer().simplify(axis.dom.extent), tvm.tir.IntImm)


def reduction_terms(ops: Sequence[Any]) -> int:
    """Return the number of terms of a single sum that rounds as much as these operations in a row."""
    import tvm
    from tvm import te

    sums = []
    for op in ops:
        if isinstance(op, te.PlaceholderOp) or (isinstance(op, te.ComputeOp) and all(map(copies, op.body))):
            continue
        terms = 1
        for axis in getattr(op, "reduce_axis", ()):
            # Adaptive pooling writes extents such as (i + 1) * 7 - i * 7.
            extent = tvm.arith.Analyzer().simplify(axis.dom.extent)
            terms *= int(extent) if isinstance(extent, tvm.tir.IntImm) else 1
        sums.append((terms, str(op.output(0).dtype)))
    read = [t.op for op in ops for t in op.input_tensors]  # scalars cannot be asked whether they are equal
    return rounding_terms(sums, [str(op.output(0).dtype) for op in ops if not any(op.same_as(r) for r in read)])


__all__ = [
    "difference", "make_inputs", "reduction_terms", "reference_on", "reference_schedule", "shape_of", "tolerance",
]  # fmt: skip
