"""Arithmetic of shapes by numpy, while TVM imports a model.

TVM's ONNX importer computes the shape of each product (a maximum, a slice, a concatenation of two or three integers) as
Relay expressions, and compiles a kernel for each operation to learn their value: 1.5 s a MatMul of rank 3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

#: Elements of a value and nodes on a path of it at most; larger ones are left to TVM.
LARGEST, DEEPEST = 256, 64
_PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "maximum": np.maximum, "minimum": np.minimum, "add": np.add, "subtract": np.subtract, "multiply": np.multiply,
}  # fmt: skip


@contextlib.contextmanager
def shapes_by_numpy() -> Iterator[None]:
    """Have TVM's ONNX importer fold expressions of a few integers by numpy while this is open.

    Examples
    --------
    >>> from tvm import relay
    >>> from tvm.relay.frontend import onnx as importer
    >>> with shapes_by_numpy():
    ...     importer.fold_constant(relay.maximum(relay.const([2, 3]), relay.const([1, 5]))).data.numpy().tolist()
    [2, 5]
    """
    from tvm import relay
    from tvm.relay.frontend import onnx as importer

    by_tvm = importer.fold_constant

    def fold(node: Any, mod: Any = None) -> Any:
        value = evaluated(node)
        return by_tvm(node, mod) if value is None else relay.const(value, str(value.dtype))

    importer.fold_constant = fold
    try:
        yield
    finally:
        importer.fold_constant = by_tvm


def evaluated(expr: Any, depth: int = 0) -> np.ndarray | None:
    """Return the value of an expression of a few integers; None if it is another one.

    Examples
    --------
    >>> from tvm import relay
    >>> evaluated(relay.maximum(relay.const([2, 3]), relay.const([1, 5])))
    array([2, 5], dtype=int32)
    """
    from tvm import relay

    if isinstance(expr, relay.Constant):
        kind = expr.data.dtype
        return expr.data.numpy() if kind in ("int32", "int64") and _few(expr.data.shape) else None
    if not isinstance(expr, relay.Call) or depth > DEEPEST or not hasattr(expr.op, "name"):
        return None
    fields = expr.args[0].fields if len(expr.args) == 1 and isinstance(expr.args[0], relay.Tuple) else expr.args
    values = [evaluated(one, depth + 1) for one in fields]
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known or len({str(value.dtype) for value in known}) > 1:
        return None
    made = _applied(expr.op.name, expr.attrs, known)
    return made if made is not None and _few(made.shape) else None


def _applied(name: str, attrs: Any, values: list[np.ndarray]) -> np.ndarray | None:
    if name in _PAIRS and len(values) == 2:
        return np.asarray(_PAIRS[name](*values))
    if name == "concatenate":
        return np.concatenate(values, int(attrs.axis))
    if name == "strided_slice" and len(values) == 1 and values[0].ndim == 1:
        begin, end, strides = ([int(n) for n in part or ()] for part in (attrs.begin, attrs.end, attrs.strides))
        plain = str(attrs.slice_mode) == "end" and not attrs.axes and all(s == 1 for s in strides)
        if plain and len(begin) == len(end) == 1 and 0 <= begin[0] <= end[0]:
            return values[0][begin[0] : end[0]]
    return None


def _few(shape: Any) -> bool:
    return int(np.prod([int(extent) for extent in shape], dtype="int64")) <= LARGEST
