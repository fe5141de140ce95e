"""Arithmetic of shapes by numpy, while TVM imports a model.

TVM's ONNX importer computes the shape of each product (a maximum, a slice, a concatenation of two or three integers) as
Relay expressions, and compiles a kernel for each operation to learn their value: 1.5 s a MatMul of rank 3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from roller_tvm.codegen.flat import address_of

#: Elements of a value and nodes on a path of it at most; larger ones are left to TVM.
LARGEST, DEEPEST = 256, 64
_PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "maximum": np.maximum, "minimum": np.minimum, "add": np.add, "subtract": np.subtract, "multiply": np.multiply,
}  # fmt: skip
_OPERATIONS = {*_PAIRS, "concatenate", "strided_slice"}


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


def evaluated(expr: Any) -> np.ndarray | None:
    """Return the value of an expression of a few integers; None if it is another one.

    Examples
    --------
    >>> from tvm import relay
    >>> evaluated(relay.maximum(relay.const([2, 3]), relay.const([1, 5])))
    array([2, 5], dtype=int32)
    """
    return _evaluated(expr, 0, {})


def _evaluated(expr: Any, depth: int, known: dict[int, np.ndarray | None]) -> np.ndarray | None:
    """Look at each node once: what several nodes read is evaluated for the first."""
    if (node := address_of(expr)) not in known:
        known[node] = _value(expr, depth, known)
    return known[node]


def _value(expr: Any, depth: int, known: dict[int, np.ndarray | None]) -> np.ndarray | None:
    from tvm import relay

    if isinstance(expr, relay.Constant):
        kind = expr.data.dtype
        return expr.data.numpy() if kind in ("int32", "int64") and _few(expr.data.shape) else None
    if not isinstance(expr, relay.Call) or depth > DEEPEST or getattr(expr.op, "name", "") not in _OPERATIONS:
        return None  # a layer of the network
    fields = expr.args[0].fields if len(expr.args) == 1 and isinstance(expr.args[0], relay.Tuple) else expr.args
    values: list[np.ndarray] = []
    for one in fields:
        if (value := _evaluated(one, depth + 1, known)) is None:
            return None
        values.append(value)
    if len({str(value.dtype) for value in values}) != 1:
        return None
    made = _applied(expr.op.name, expr.attrs, values)
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
