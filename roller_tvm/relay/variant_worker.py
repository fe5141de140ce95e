"""A worker that compiles variants of a model's kernels, with the layouts of their weights, and checks them linked.

Layouts are asked for here and not in the process that builds models: TVM keeps them in a queue of its own, from which
its next build would take them.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from ..tuning import linked, worker
from ..tuning.line import worker_side
from ..tuning.session import CHECK, PACKED
from ..tuning.supervise import Failed
from .compiling import object_of

MODULE = "roller_tvm.relay.variant_worker"
#: TVM's name of a stage that packs an operand.
_PACKS = "auto_scheduler_layout_transform"


def write_variant(text: str, target: str, line: str, mode: int, name: str, path: str) -> dict[int, tuple[int, ...]]:
    """Compile a State as a kernel into `path`.o; return what `write_layouts` does."""
    workload = worker_side().open(text, target, ())
    schedule, args = workload.scheduled(line, mode)  # type: ignore[attr-defined]
    content = object_of(schedule, args, workload.target, name)
    with open(f"{path}.o", "wb") as made:
        made.write(content)
    return write_layouts(text, target, line, mode, path)


def write_layouts(text: str, target: str, line: str, mode: int, path: str) -> dict[int, tuple[int, ...]]:
    """Return the shape of each operand that a State wants packed, by position.

    `path`.POSITION.npy then has for each element of the packed operand the one of the plain operand that it is.
    """
    if mode != PACKED:
        return {}
    workload = worker_side().open(text, target, ())
    at = {t.op.name: n for n, t in enumerate(workload.tensors)}
    shapes = {}
    for stage in workload.scheduled(line, CHECK)[0].stages:  # type: ignore[attr-defined]
        if stage.op.name.startswith(_PACKS):
            (operand,) = stage.op.input_tensors
            index = _elements(stage.op, [int(e) for e in operand.shape])
            shapes[at[operand.op.name]] = index.shape
            np.save(f"{path}.{at[operand.op.name]}.npy", index)
    return shapes


def _elements(op: Any, shape: list[int]) -> np.ndarray:
    """Return for each element of a stage that copies a tensor of this shape the number of the element it copies."""
    (read,) = op.body
    extents = [int(axis.dom.extent) for axis in op.axis]
    values = {axis.var: np.arange(extent).reshape([-1 if n == own else 1 for n in range(len(extents))])
              for own, (axis, extent) in enumerate(zip(op.axis, extents, strict=True))}  # fmt: skip
    index = reduce(lambda sum_, pair: sum_ * pair[1] + _value(pair[0], values),
                   zip(read.indices, shape, strict=True), np.zeros((), np.int64))  # fmt: skip
    return np.ascontiguousarray(np.broadcast_to(index, extents)).astype(np.int32 if index.max() < 2**31 else np.int64)


def _value(expr: Any, values: dict[Any, np.ndarray]) -> Any:
    """Return an affine expression of variables."""
    from tvm import tir

    if isinstance(expr, tir.IntImm):
        return int(expr.value)
    if isinstance(expr, tir.Var):
        return next(value for var, value in values.items() if var.same_as(expr))
    if not isinstance(expr, (tir.Add, tir.Mul)):
        raise Failed("layout error", f"TVM's copy of a weight reads {expr}")
    one, other = _value(expr.a, values), _value(expr.b, values)
    return one * other if isinstance(expr, tir.Mul) else one + other


FUNCTIONS = {**linked.FUNCTIONS, **{f.__name__: f for f in (write_variant, write_layouts)}}


if __name__ == "__main__":
    worker.main(FUNCTIONS)
