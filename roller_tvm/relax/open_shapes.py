"""TVM's ONNX importer, which loses open extents that a model computes, with these computed beside it as expressions.

A model takes the sizes for Reshape, Slice, Expand and Range from Shape, by Gather, Concat and arithmetic. What is
computed so is known here as expressions of the open extents, so that the shapes of all tensors are known. Where a size
could be too large at run time (a slice of 512 positions by n tokens), or two extents might differ, a check of the
shape stays in the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import ir, relax, tirx

from ..tir.nodes import analyzer_of_tvm
from .constants import array_of, is_constant
from .own_operators import OwnImporter

#: An end of a slice from here on means the end.
FAR = 2**31 - 2
#: Computed elements that are followed; sizes come in small arrays.
MOST = 64
ELEMENTWISE: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a // b, "Mod": lambda a, b: a % b,
    "Max": lambda a, b: max(a, b) if _plain(a, b) else tirx.max(a, b),
    "Min": lambda a, b: min(a, b) if _plain(a, b) else tirx.min(a, b),
}  # fmt: skip
INTEGERS = (6, 7)  # onnx.TensorProto.INT32, INT64
BROADCAST = ("Add", "Sub", "Mul", "Div", "Pow", "Where", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual",
             "And", "Or", "Min", "Max", "PRelu")  # fmt: skip


class OpenImporter(OwnImporter):
    """Importer of models with open extents.

    Examples
    --------
    >>> mod = OpenImporter({}, "float32").from_onnx(graph, 17)
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._known: dict[Any, np.ndarray] = {}
        #: Conditions on the sizes, in words (`models.size_checks`).
        self.checks: dict[str, None] = {}

    def _convert_operator(self, op_name: str, inputs: Sequence[Any], attrs: dict[str, Any], opset: int) -> Any:
        given = list(inputs)
        known = [None if i is None else self._value(i) for i in given]
        found = self._computed(op_name, given, known, attrs)
        if found is not None and found.size <= MOST and all(_integer(e) for e in found.flat):
            return self._tensor(found)
        made = getattr(self, f"_sized_{op_name.lower()}", lambda *_: None)(given, known, attrs)
        if made is not None:
            return self.bb.normalize(made)
        if op_name in BROADCAST or op_name == "Concat":
            self._aligned(inputs, attrs.get("axis", 0) if op_name == "Concat" else None)
        return super()._convert_operator(op_name, inputs, attrs, opset)

    def _value(self, expr: Any) -> np.ndarray | None:
        """The integers of a tensor, as far as they are known: numbers and expressions."""
        if isinstance(expr, relax.Var):
            return self._known.get(expr)
        if is_constant(expr):
            array = array_of(expr)
            whole = array.dtype.kind in "iub" or (array.dtype.kind == "f" and bool(np.all(array == np.floor(array))))
            return np.vectorize(int, otypes=[object])(array) if whole and 0 < array.size <= MOST else None
        return None

    def _tensor(self, value: np.ndarray) -> Any:
        """A tensor with these integers, which are remembered."""
        value = np.asarray(value, object)
        if all(isinstance(e, (int, np.integer)) for e in value.flat):
            return relax.const(value.astype("int64"), "int64")
        dims = [e if not isinstance(e, (int, np.integer)) else tirx.const(int(e), "int64") for e in value.flat]
        var = self.bb.emit(relax.op.shape_to_tensor(relax.ShapeExpr(dims)))
        if value.shape != (len(dims),):
            var = self.bb.emit(relax.op.reshape(var, value.shape))
        self._known[var] = value
        return var

    def _computed(self, op: str, given: Sequence[Any], known: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """The integers that an operator of sizes computes, or None."""
        if op in ("Shape", "Size"):
            dims = _dims(given[0])
            if dims is None:
                return None
            found = np.empty(len(dims), object)
            found[:] = dims
            if op == "Shape":
                return found[slice(attrs.get("start", 0), attrs.get("end"))]
            return np.asarray(_product(dims), object)
        if not known or known[0] is None or all(is_constant(g) for g in given if g is not None):
            return None
        first, rest = known[0], known[1:]
        if op in ELEMENTWISE and len(given) == 2 and rest[0] is not None:
            if op in ("Div", "Mod") and any(isinstance(e, int) and e <= 0 for e in rest[0].flat):
                return None
            return _simplified(np.frompyfunc(ELEMENTWISE[op], 2, 1)(first, rest[0]))
        if op in ("Cast", "Identity", "Floor", "Ceil"):
            return first if op != "Cast" or attrs["to"] in INTEGERS else None
        if op == "Concat" and all(v is not None for v in known):
            return np.concatenate(list(known))
        if op == "Gather" and rest[0] is not None:
            return np.asarray(first, object)[rest[0].astype("int64")] if first.ndim else None
        if op in ("Unsqueeze", "Squeeze"):
            axes = rest[0].tolist() if rest and rest[0] is not None else attrs.get("axes")
            if op == "Squeeze":
                return np.squeeze(first, tuple(axes) if axes is not None else None)
            return np.expand_dims(first, tuple(axes)) if axes is not None else None
        if op == "Reshape" and rest[0] is not None and all(isinstance(e, int) for e in rest[0].flat):
            return first.reshape([int(e) for e in rest[0]])
        if op == "Slice" and first.ndim == 1 and all(v is not None for v in rest):
            start, stop, step = rest[0][0], rest[1][0], rest[3][0] if len(rest) > 3 else 1
            return first[start:stop:step] if all(isinstance(e, int) for e in (start, stop, step)) else None
        if op == "ReduceProd" and first.ndim == 1:
            total = np.asarray(_product(list(first)), object)
            return total.reshape(1) if attrs.get("keepdims", 1) else total
        return None

    # Operators that take sizes ----------------------------------------------------------------------------

    def _sized_reshape(self, given: Sequence[Any], known: Sequence[Any], attrs: dict[str, Any]) -> Any:
        dims, wanted = _dims(given[0]), known[1]
        if dims is None or wanted is None:
            return None
        shape = list(wanted)
        if not attrs.get("allowzero", 0):
            shape = [dims[n] if isinstance(e, int) and e == 0 else e for n, e in enumerate(shape)]
        if (at := _position(shape, -1)) is not None:
            others = shape[:at] + shape[at + 1 :]
            kept = list(dims)
            for e in list(others):  # what both have cancels out
                same = next((n for n, d in enumerate(kept) if _equal(d, e)), None)
                if same is not None:
                    kept.pop(same)
                    others.remove(e)
            shape[at] = _simple(_product(kept) // _product(others) if others else _product(kept))
        return relax.op.reshape(given[0], shape)

    def _sized_expand(self, given: Sequence[Any], known: Sequence[Any], _attrs: dict[str, Any]) -> Any:
        dims, wanted = _dims(given[0]), known[1]
        if dims is None or wanted is None:
            return None
        shape, own = list(wanted), list(dims)
        width = max(len(shape), len(own))
        shape, own = [1] * (width - len(shape)) + shape, [1] * (width - len(own)) + own
        return relax.op.broadcast_to(given[0], [d if _equal(e, 1) else e for e, d in zip(shape, own, strict=True)])

    def _sized_slice(self, given: Sequence[Any], known: Sequence[Any], _attrs: dict[str, Any]) -> Any:
        dims = _dims(given[0])
        if dims is None or len(given) < 3 or any(v is None for v in known[1:]):
            return None
        starts, stops = list(known[1]), list(known[2])
        axes = [int(a) % len(dims) for a in known[3]] if len(known) > 3 else list(range(len(starts)))
        if len(known) > 4 and any(not _equal(step, 1) for step in known[4]):
            return None
        if all(isinstance(e, int) for e in (*starts, *stops, *(dims[a] for a in axes))):
            return None  # TVM's own
        begin, end = [], []
        for axis, start, stop in zip(axes, starts, stops, strict=True):
            size = dims[axis]
            start = size + start if isinstance(start, int) and start < 0 else start
            if isinstance(stop, int):
                stop = size if stop >= FAR else size + stop if stop < 0 else stop
            for low, high in ((0, start), (start, stop), (stop, size)):
                self._require(low, high)
            begin.append(start)
            end.append(stop)
        return relax.op.strided_slice(given[0], axes, begin, end, assume_inbound=True)

    def _require(self, low: Any, high: Any) -> None:
        """Note that one size is not larger than another, unless that is sure."""
        held = _simple(low - high)
        if isinstance(held, int) and held <= 0:
            return
        analyzer = analyzer_of_tvm()
        for var in tirx.analysis.undefined_vars(tirx.Evaluate(high - low), []):
            analyzer.bind(var, ir.Range(0, 2**31))
        if not analyzer.can_prove(low <= high):
            self.checks[re.sub(r"T\.int64\((-?\d+)\)", r"\1", f"{low} <= {high}")] = None

    def _sized_range(self, given: Sequence[Any], known: Sequence[Any], _attrs: dict[str, Any]) -> Any:
        if any(v is None for v in known) or all(isinstance(v.item(), int) for v in known):
            return None
        return relax.op.arange(*(v.item() for v in known), dtype=str(given[0].ty.dtype))

    def _sized_constantofshape(self, given: Sequence[Any], known: Sequence[Any], attrs: dict[str, Any]) -> Any:
        if known[0] is None or is_constant(given[0]):
            return None
        from onnx import numpy_helper

        value = numpy_helper.to_array(attrs["value"]).reshape(()) if "value" in attrs else np.zeros((), "float32")
        return relax.op.full(list(known[0]), relax.const(value), str(value.dtype))

    def _sized_resize(self, given: Sequence[Any], known: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """Each element a whole number of times."""
        dims, scales = _dims(given[0]), known[2] if len(known) > 2 else None
        if dims is None or all(isinstance(d, int) for d in dims):
            return None
        way = [attrs.get(k, d).decode() for k, d in (
            ("mode", b"nearest"), ("coordinate_transformation_mode", b"half_pixel"),
            ("nearest_mode", b"round_prefer_floor"),
        )]  # fmt: skip
        if scales is None and len(known) > 3 and known[3] is not None:
            ratios = [_simple(s // d) for s, d in zip(known[3], dims, strict=True)]
            if all(isinstance(r, int) and _equal(r * d, s) for r, s, d in zip(ratios, known[3], dims, strict=True)):
                scales = np.asarray(ratios, object)
        even = way[1:] == ["asymmetric", "floor"] or way[1] == "half_pixel"
        if scales is None or way[0] != "nearest" or not even or any(s < 1 for s in scales):
            return None
        times = [int(s) for s in scales]
        if len(dims) != 4 or times[:2] != [1, 1]:
            return None
        size = [_simple(d * s) for d, s in zip(dims[2:], times[2:], strict=True)]
        return relax.op.image.resize2d(
            given[0], size, None, "NCHW", "nearest_neighbor", way[1], "floor" if way[1] == "asymmetric" else "round"
        )  # fmt: skip

    def _sized_clip(self, given: Sequence[Any], _known: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """An operator of Relax, whose tensor can be arranged; TVM's importer makes functions of loops."""
        bounds = [*given[1:3], None, None][:2]
        if "min" in attrs or "max" in attrs or not all(b is None or is_constant(b) for b in bounds):
            return None
        value = given[0]
        for op, bound in zip((relax.op.maximum, relax.op.minimum), bounds, strict=True):
            value = value if bound is None else self.bb.emit(op(value, bound))
        return value

    def _aligned(self, inputs: Any, along: int | None) -> None:
        """Two open extents that nothing shows to be equal are checked at run time to be so; not those `along`."""
        found = [_dims(i) if i is not None else None for i in inputs]
        shapes = [shape for shape in found if shape is not None]
        if len(shapes) < len(found):
            return
        first = max(range(len(shapes)), key=lambda n: len(shapes[n]))
        for n in range(len(shapes)):
            if n == first:
                continue
            own, other = shapes[n], shapes[first][len(shapes[first]) - len(shapes[n]) :]
            unlike = [
                not _equal(a, b) and not isinstance(a, int) and not isinstance(b, int)
                and (along is None or at != along % len(own))
                for at, (a, b) in enumerate(zip(own, other, strict=True))
            ]  # fmt: skip
            # A cast to a variable would define it, by itself perhaps: the other one is cast to the expression.
            ours = [u and not isinstance(b, tirx.Var) for u, b in zip(unlike, other, strict=True)]
            theirs = [u and not o for u, o in zip(unlike, ours, strict=True)]
            if any(ours):
                shapes[n] = [b if cast else a for a, b, cast in zip(own, other, ours, strict=True)]
                inputs[n] = self._cast(inputs[n], shapes[n])
            if any(theirs):
                head = shapes[first][: len(shapes[first]) - len(own)]
                shapes[first] = [*head, *(a if cast else b for a, b, cast in zip(own, other, theirs, strict=True))]
                inputs[first] = self._cast(inputs[first], shapes[first])

    def _cast(self, expr: Any, shape: Sequence[Any]) -> Any:
        return self.bb.match_cast(self.bb.emit(expr), relax.TensorType(list(shape), expr.ty.dtype))


def _dims(expr: Any) -> list[Any] | None:
    """The extents of a tensor as numbers and expressions, None if they are not known."""
    shape = getattr(getattr(expr, "ty", None), "shape", None)
    if shape is None or not isinstance(expr.ty, relax.TensorType) or not hasattr(shape, "values"):
        return None
    return [int(e) if isinstance(e, tirx.IntImm) else e for e in shape.values]


def _simple(value: Any) -> Any:
    if isinstance(value, (int, np.integer)):
        return int(value)
    found = analyzer_of_tvm().simplify(value)
    return int(found) if isinstance(found, tirx.IntImm) else found


def _simplified(values: Any) -> np.ndarray:
    return np.frompyfunc(_simple, 1, 1)(np.asarray(values, object))


def _product(values: Sequence[Any]) -> Any:
    total: Any = 1
    for value in values:
        total = total * value
    return _simple(total)


def _equal(a: Any, b: Any) -> bool:
    if _plain(a, b):
        return bool(a == b)
    return bool(analyzer_of_tvm().can_prove_equal(a, b))


def _position(values: Sequence[Any], wanted: int) -> int | None:
    return next((n for n, v in enumerate(values) if isinstance(v, int) and v == wanted), None)


def _plain(*values: Any) -> bool:
    return all(isinstance(v, (int, np.integer)) for v in values)


def _integer(value: Any) -> bool:
    return _plain(value) or (hasattr(value, "ty") and "int" in str(value.ty.dtype))


__all__ = ["OpenImporter"]
