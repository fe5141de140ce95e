"""FoldScales: constants computed at build time, batch normalisations and scales moved into the weights before them.

Importers leave ``conv2d -> add(bias) -> batch_norm``; computed as it stands, every element of the result is read and
written for five more constants. Here that is ``conv2d(scaled weights) -> add(one constant)``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..tir.nodes import structurally_equal
from .constants import array_of
from .dataflow import extents_of, writes_in_place
from .dead_code import without_dead_code
from .modules import with_functions

#: Elementary operators that numpy computes as Relax does.
_NUMPY: dict[str, Callable[..., np.ndarray]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.divide,
    "relax.negative": np.negative,
    "relax.sqrt": np.sqrt,
    "relax.isnan": np.isnan,
    "relax.less": np.less,
    "relax.where": np.where,
}
#: Operators that the ONNX importer leaves as TE, by the operator that they are.
_LEFT_AS_TE = {"maximum": relax.op.maximum, "minimum": relax.op.minimum}
_PRODUCTS = ("relax.nn.conv2d", "relax.nn.conv1d", "relax.matmul")
_AFFINE = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide")
#: Types whose products keep enough digits to be folded into one constant.
_FOLDED = ("float32", "float64")
#: Types of sizes and indices, and operators that numpy computes of them as Relax does.
_COUNTED = ("int64",)
_EXACT = ("relax.add", "relax.subtract", "relax.multiply", "relax.negative", "relax.where")


@dataclass(frozen=True)
class Affine:
    """``root * scale + shift`` along one axis of the root, not emitted yet.

    Parameters
    ----------
    root : relax.Expr
        A variable, or the call of a product with constant weights that nothing else uses.
    axis : int or None
        None where it is scalars alone.
    scale, shift : numpy.ndarray or None
        Of the axis' extent or no dimension; None is one, or zero.
    """

    root: Any
    axis: int | None
    scale: np.ndarray | None = None
    shift: np.ndarray | None = None

    def times(self, factor: np.ndarray) -> Affine:
        scale = factor if self.scale is None else self.scale * factor
        return replace(self, scale=scale, shift=None if self.shift is None else self.shift * factor)

    def plus(self, term: np.ndarray) -> Affine:
        return replace(self, shift=term if self.shift is None else self.shift + term)


@tvm.transform.module_pass(opt_level=0, name="FoldScales")
class FoldScales:
    """Fold constants, batch normalisations and per-channel scales of every Relax function.

    Put it before ``LegalizeOps``. It skips functions with branches or in-place writes, and half precision. Arithmetic
    without a product or batch normalisation before it also stays: its results do not change by a bit.

    Examples
    --------
    >>> mod = FoldScales()(mod)
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its functions folded."""
        # Tuples taken apart again, and what is not used, must not count as uses.
        mod = without_dead_code(relax.transform.CanonicalizeBindings()(mod))
        result = mod
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function) and not (func.attrs and "Primitive" in func.attrs):
                counted = _Uses()
                counted.visit_expr(func)
                if not counted.branches and not writes_in_place(func):
                    folded = _Folder(mod, counted).visit_expr(func)
                    result = with_functions(result, {var: folded})
        return result if result is mod else without_dead_code(result)


@relax.expr_functor.visitor
class _Uses(relax.PyExprVisitor):
    """How often each variable is used, of which as ``[0]``, and whether there are branches."""

    def __init__(self) -> None:
        super().__init__()
        self.uses: Counter[Any] = Counter()
        self.firsts: Counter[Any] = Counter()
        self.branches = False

    def visit_tuple_getitem_(self, op: Any) -> None:
        self.firsts[op.tuple_value] += int(op.index == 0)
        self.visit_expr(op.tuple_value)

    def visit_var_(self, op: Any) -> None:
        self.uses[op] += 1

    def visit_dataflow_var_(self, op: Any) -> None:
        self.uses[op] += 1

    def visit_var_def_(self, var: Any) -> None:
        pass

    def visit_dataflow_var_def_(self, var: Any) -> None:
        pass

    def visit_if_(self, op: Any) -> None:
        self.branches = True


@relax.expr_functor.mutator
class _Folder(relax.PyExprMutator):
    """Rewrites one function; what is affine in a product's result waits until something else reads it."""

    def __init__(self, mod: Any, counted: _Uses) -> None:
        super().__init__(mod)
        self.uses, self.firsts = counted.uses, counted.firsts
        self.constants: dict[Any, np.ndarray] = {}
        self.waiting: dict[Any, Affine] = {}
        self.norms: dict[Any, Any] = {}

    # What a variable stands for ----------------------------------------------------------------------------

    def _constant(self, node: Any) -> np.ndarray | None:
        return self.constants.get(node) if isinstance(node, relax.Var) else array_of(node)

    def _affine(self, node: Any, axis: int | None) -> Affine:
        """The waiting value that a variable stands for, where nothing else reads it; else the variable itself."""
        found = self.waiting.get(node)
        if found is not None and self.uses[node] == 1 and (axis is None or found.axis in (None, axis)):
            return found if axis is None else replace(found, axis=axis)
        return Affine(self.visit_expr(node), axis)

    # Bindings ----------------------------------------------------------------------------------------------

    def visit_var_binding_(self, binding: Any) -> None:
        var, value = binding.var, self._without_te(binding.value)
        local = isinstance(var, relax.DataflowVar)  # others are results of their block
        if local and (found := self._folded(value)) is not None:
            self.constants[var] = found
        elif (form := self._form(value)) is not None:
            if local:
                self.waiting[var] = form
            else:
                super().visit_var_binding_(relax.VarBinding(var, self._emitted(form, var.ty.dtype)))
        elif local and self.uses[var] == self.firsts[var] and self._can_be_folded(value):
            self.norms[var] = value  # not emitted: only its first part is read, which is affine
        else:
            super().visit_var_binding_(binding if value is binding.value else relax.VarBinding(var, value))

    def visit_dataflow_var_(self, op: Any) -> Any:
        if op in self.constants:
            return relax.const(self.constants[op], op.ty.dtype)
        if op in self.waiting:
            self.set_var_remap(op, self._emitted(self.waiting.pop(op), op.ty.dtype))
        return super().visit_dataflow_var_(op)

    def _folded(self, value: Any) -> np.ndarray | None:
        """A call of constants, computed."""
        if not isinstance(value, relax.Call):
            return None
        name = getattr(value.op, "name", "")
        if name == "relax.shape_to_tensor":
            return _extents(value.args[0])
        tensors = [a for a in value.args if not isinstance(a, relax.ShapeExpr)]
        data = [d for a in tensors if (d := self._constant(a)) is not None]
        if not data or len(data) < len(tensors):
            return None
        if name == "relax.reshape" and (shape := _static(value.ty)) is not None:
            return np.asarray(data[0]).reshape(shape)
        if name in ("relax.expand_dims", "relax.squeeze") and (shape := _static(value.ty)) is not None:
            return np.asarray(data[0]).reshape(shape)
        if name == "relax.permute_dims":
            axes = value.attrs.axes
            return np.ascontiguousarray(np.transpose(data[0], None if axes is None else [int(a) for a in axes]))
        if name == "relax.take" and data[1].ndim == 0 and value.attrs.axis is not None and data[0].ndim == 1:
            return data[0][int(data[1])] if 0 <= data[1] < data[0].size else None
        folded = (*_FOLDED, *(_COUNTED if name in _EXACT else ()), "bool")
        if name in _NUMPY and str(value.ty.dtype) in folded:
            return np.asarray(_NUMPY[name](*data)).astype(str(value.ty.dtype))
        return None

    def _without_te(self, value: Any) -> Any:
        """A call of a PrimFunc with a scalar constant as the operator that it is, which takes a number."""
        if not isinstance(value, relax.Call) or getattr(value.op, "name", "") != "relax.call_tir":
            return value
        name, arguments = str(value.args[0].name_hint), list(value.args[1].fields)
        op = next((op for kind, op in _LEFT_AS_TE.items() if name.rstrip("0123456789") == kind), None)
        if op is None or len(arguments) != 2:
            return value
        scalar = self._constant(arguments[1])
        if scalar is None or scalar.ndim or not _is_operator(self.builder_.get()[value.args[0]], op, arguments):
            return value
        return relax.Call(tvm.ir.Op.get(f"relax.{op.__name__}"), [arguments[0], _exact(scalar)], None)

    # Affine values -----------------------------------------------------------------------------------------

    def _form(self, value: Any) -> Affine | None:
        """Return a binding's affine form; None if it has none."""
        if isinstance(value, relax.TupleGetItem):
            norm = self.norms.get(value.tuple_value)
            return None if norm is None else self._normalised(norm)
        if not isinstance(value, relax.Call) or str(getattr(value.ty, "dtype", "")) not in _FOLDED:
            return None
        name = getattr(value.op, "name", "")
        if name in _PRODUCTS:
            weights, axis = self._constant(value.args[1]), _weight_axis(value)
            if weights is None or axis is None or weights.dtype.name not in _FOLDED:
                return None
            return Affine(relax.Call(value.op, [self.visit_expr(value.args[0]), _exact(weights)],
                                     value.attrs, value.ty_args), _result_axis(value))  # fmt: skip
        return self._arithmetic(name, value) if name in _AFFINE else None

    def _arithmetic(self, name: str, value: Any) -> Affine | None:
        left, right = value.args
        constant = self._constant(right)
        if constant is None and name in ("relax.add", "relax.multiply"):
            left, right = right, left
            constant = self._constant(right)
        shape = _static(getattr(left, "ty", None), open_as=-1)
        if constant is None or shape is None or shape != _static(value.ty, open_as=-1):
            return None
        axis, along = _along(constant, shape)
        if along is None:
            return None
        form = self._affine(left, axis)
        if not isinstance(form.root, relax.Call):
            return None  # nothing is saved
        if name in ("relax.add", "relax.subtract") and rounds(along, str(value.ty.dtype)):
            return None
        if name == "relax.multiply":
            return form.times(along)
        if name == "relax.divide":
            return form.times(1.0 / along) if np.all(along != 0) else None
        return form.plus(along if name == "relax.add" else -along)

    def _can_be_folded(self, value: Any) -> bool:
        """Return whether a value is a batch normalisation with known statistics, or a dropout (an identity in
        inference).
        """
        name = getattr(value.op, "name", "") if isinstance(value, relax.Call) else ""
        if name != "relax.nn.batch_norm":
            return name == "relax.nn.dropout"
        known = all(self._constant(a) is not None for a in value.args[1:5])
        data = value.args[0].ty
        return known and not value.attrs.training and data.ndim > 0 and str(data.dtype) in _FOLDED

    def _normalised(self, norm: Any) -> Affine:
        if norm.op.name == "relax.nn.dropout":
            return self._affine(norm.args[0], None)
        attrs, parts = norm.attrs, [self._constant(a) for a in norm.args[1:5]]
        gamma, beta, mean, variance = (np.asarray(p, np.float64) for p in parts)
        scale = 1.0 / np.sqrt(variance + float(attrs.epsilon))
        scale = scale * gamma if attrs.scale else scale
        form = self._affine(norm.args[0], int(attrs.axis) % int(norm.args[0].ty.ndim))
        return form.plus(-mean).times(scale).plus(beta if attrs.center else np.zeros_like(mean))

    def _emitted(self, form: Affine, dtype: Any) -> Any:
        """A variable with an affine value."""
        root, scale, kind = form.root, form.scale, str(dtype)
        if isinstance(root, relax.Call):
            if scale is not None:
                weights = array_of(root.args[1])
                assert weights is not None  # `_form` saw them
                scaled = weights * _laid(scale, weights.ndim, _weight_axis(root))
                root = relax.Call(root.op, [root.args[0], _exact(scaled.astype(weights.dtype))],
                                  root.attrs, root.ty_args)  # fmt: skip
            root, scale = self.builder_.emit(root), None
        for values, op in ((scale, relax.op.multiply), (form.shift, relax.op.add)):
            if values is not None:
                laid = _laid(values, int(root.ty.ndim), form.axis).astype(kind)
                root = self.builder_.emit(op(root, relax.const(laid, kind)))
        return root


def rounds(term: np.ndarray, dtype: str) -> bool:
    """Return whether adding a term removes the fraction: a model that subtracts it again rounds with it.

    Examples
    --------
    >>> rounds(np.float64(1.5 * 2**23), "float32"), rounds(np.float64(1000.0), "float32")
    (True, False)
    """
    return bool(np.any(np.abs(term) * np.finfo(dtype).eps >= 1 / 2))


def _extents(shape: Any) -> np.ndarray | None:
    """The extents of a shape; None if one is open."""
    values = getattr(getattr(shape, "ty", None), "values", None)
    if values is None or not all(isinstance(e, tvm.tirx.IntImm) for e in values):
        return None
    return np.array([int(e) for e in values], "int64")


def _exact(array: np.ndarray) -> Any:
    """A constant of the array's own type; unless told, TVM makes float64 float32 and int64 int32."""
    return relax.const(array, str(array.dtype))


def _laid(values: np.ndarray, ndim: int, axis: int | None) -> np.ndarray:
    """Values along an axis of a tensor, or a scalar where they are all the same."""
    if values.ndim == 0 or np.all(values == values[0]):
        return np.asarray(values.flat[0])
    assert axis is not None
    return values.reshape([-1 if n == axis else 1 for n in range(ndim)])


def _is_operator(func: Any, op: Any, arguments: list[Any]) -> bool:
    """Return whether a PrimFunc computes what an operator computes for such arguments."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"p{n}", a.ty) for n, a in enumerate(arguments)]
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(op(*params)))
    mod = relax.transform.LegalizeOps()(builder.get())
    own = [f for v, f in mod.functions_items() if v.name_hint != "main"]
    return len(own) == 1 and structurally_equal(_nameless(own[0]), _nameless(func))


def _nameless(func: Any) -> Any:
    for name in list(func.attrs.keys() if func.attrs else ()):
        func = func.without_attr(name)
    return func


def _static(ty: Any, open_as: int | None = None) -> tuple[int, ...] | None:
    """The extents of a tensor's type; open ones make it None, or are `open_as`."""
    extents = extents_of(ty)
    if extents is None:
        return None
    found = [e if isinstance(e, int) else open_as for e in extents]
    return None if any(e is None for e in found) else tuple(e for e in found if e is not None)


def _along(constant: np.ndarray, shape: tuple[int, ...]) -> tuple[int | None, np.ndarray | None]:
    """The axis that a constant runs along, and its values there (as float64); no values if it runs along several."""
    if constant.size == 1:
        return None, constant.astype(np.float64).reshape(())
    if constant.ndim > len(shape):
        return None, None
    extents = (1,) * (len(shape) - constant.ndim) + constant.shape
    long = [axis for axis, extent in enumerate(extents) if extent > 1]
    if len(long) != 1 or shape[long[0]] < 0:
        return None, None
    return long[0], constant.astype(np.float64).reshape(-1)


def _weight_axis(call: Any) -> int | None:
    """The axis of a product's weights that is the result's channels."""
    if call.op.name == "relax.matmul":
        return 1 if call.args[1].ty.ndim == 2 and call.args[0].ty.ndim > 1 else None
    at = str(call.attrs.kernel_layout).find("O")
    return at if at >= 0 and str(call.attrs.kernel_layout).isalpha() else None


def _result_axis(call: Any) -> int:
    """The axis of its result."""
    if call.op.name == "relax.matmul":
        return int(call.args[0].ty.ndim) - 1
    return str(call.attrs.out_layout or call.attrs.data_layout).find("C")
