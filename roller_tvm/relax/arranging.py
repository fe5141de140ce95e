"""A Relax function rewritten so that its activations are arranged; made plain again only where something needs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.tirx.analysis import undefined_vars

from ..codegen.flat import number_of
from ..te.winograd import transformed_weights
from ..tir.nodes import analyzer_of_tvm
from .arrangement import Arrangement, Convolution, blocked_convolution, winograd_convolution
from .constants import array_of, is_constant
from .dataflow import extents_of
from .enlarging import repeated, whole_multiples
from .open_winograd import open_winograd
from .pixel_moves import move_of

#: Operators that treat every element alike.
ALIKE = {
    f"relax.{name}" for name in (
        "abs", "add", "ceil", "clip", "cos", "divide", "erf", "exp", "floor", "log", "maximum", "minimum", "multiply",
        "negative", "power", "round", "rsqrt", "sigmoid", "sin", "sqrt", "square", "subtract", "tan", "tanh", "trunc",
        "nn.relu", "nn.relu6", "nn.leakyrelu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "astype",
    )
}  # fmt: skip
_POOLS = {
    "relax.nn.max_pool2d": relax.op.nn.max_pool2d,
    "relax.nn.avg_pool2d": relax.op.nn.avg_pool2d,
}
_IMAGE = [2, 3]
#: Pixels a side that stand for any number.
LIKELY = 320
#: TVM's kOutEWiseFusable, which it does not see in functions of several reductions.
_OUT_FUSIBLE = 4


def arrangeable(conv: Convolution, arrangement: Arrangement) -> bool:
    """Return whether the convolution can be computed in the arrangement.

    Examples
    --------
    >>> first = Convolution((1, 3, 8, 8), (32, 3, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, "float32", "float32")
    >>> arrangeable(first, Arrangement(16)), arrangeable(first, Arrangement(64))
    (True, False)
    """
    if conv.groups > 1 and not conv.depthwise and arrangement.block:
        return False
    return arrangement.holds(conv.weights[0])


def convolution_of(call: Any) -> Convolution | None:
    """The convolution that a call is, if its shapes are known, its tensors plain and its weights constant."""
    if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != "relax.nn.conv2d":
        return None
    attrs, (data, weights) = call.attrs, call.args
    shapes = extents_of(data), extents_of(weights)
    if shapes[0] is None or shapes[1] is None or not is_constant(weights) or not isinstance(shapes[0][1], int):
        return None
    if (attrs.data_layout, attrs.kernel_layout) != ("NCHW", "OIHW") or attrs.out_layout not in ("NCHW", ""):
        return None
    return Convolution(
        likely(shapes[0]), shapes[1], _ints(attrs.strides), _ints(attrs.padding), _ints(attrs.dilation),
        int(attrs.groups), str(data.ty.dtype), str(call.ty.dtype), all(isinstance(e, int) for e in shapes[0][1:]),
    )  # fmt: skip


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(v) for v in values)


def likely(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """Return a shape with numbers for its open extents: one image, of LIKELY pixels a side where its sides are open."""

    def number(extent: Any, size: int) -> int:
        if isinstance(extent, int):
            return extent
        analyzer = analyzer_of_tvm()
        for var in undefined_vars(tvm.tirx.Evaluate(extent), []):
            analyzer.bind(var, tvm.ir.Range(size, size + 1))
        return max(1, int(analyzer.const_int_bound(extent).max_value))

    return tuple(number(extent, LIKELY if at else 1) for at, extent in enumerate(shape))


@relax.expr_functor.visitor
class Convolutions(relax.PyExprVisitor):
    """Variable -> convolution that is bound to it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, Convolution] = {}
        self.branches = False

    def visit_var_binding_(self, binding: Any) -> None:
        conv = convolution_of(binding.value)
        if conv is not None and isinstance(binding.var, relax.DataflowVar):
            self.found[binding.var] = conv
        super().visit_var_binding_(binding)

    def visit_if_(self, op: Any) -> None:
        self.branches = True


@relax.expr_functor.mutator
class Arranger(relax.PyExprMutator):
    """Rewrites one function; what is arranged is made plain again only where something reads it so."""

    def __init__(
        self, mod: Any, arrangement: Arrangement, wanted: Collection[Any], convs: dict[Any, Convolution],
        tile: Callable[[Convolution, Arrangement], int] = lambda conv, arrangement: 0,
        strip: Callable[[Convolution, Arrangement, int], int] = lambda conv, arrangement, tile: 0,
        known: dict[tuple[int, int], np.ndarray] | None = None, made: dict[Any, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(mod)
        #: As it was: the builder makes a copy of its own at each question.
        self.module = mod
        self.arrangement, self.wanted, self.convs = arrangement, wanted, convs
        #: Variable -> the variable that has it arranged.
        self.arranged: dict[Any, Any] = {}
        #: Of these, those that exist as plain tensors too.
        self.as_plain: set[Any] = set()
        #: Shapes of the tensors that are transformed, one way or the other.
        self.transformed: list[tuple[int, ...]] = []
        self.arranged_convs = self.winograd_convs = 0
        #: Tile of Winograd's algorithm for a convolution; 0 where it is computed directly.
        self.tile = tile
        #: Rows of its tiles that are computed together; 0: all.
        self.strip = strip
        #: Weights (by hash) and a tile -> the weights as Winograd's algorithm takes them, in every arrangement.
        self.known = {} if known is None else known
        #: Convolution, its tile and its arrangement -> the function that computes it, and the types of its results.
        self.made = {} if made is None else made

    # Both forms of a variable ------------------------------------------------------------------------------

    def visit_dataflow_var_(self, op: Any) -> Any:
        if op in self.arranged and op not in self.as_plain:
            self.as_plain.add(op)
            shape = extents_of(op) or ()
            self.set_var_remap(op, self.builder_.emit(self.arrangement.plain(self.arranged[op], shape)))
            self._count(shape)
        return super().visit_dataflow_var_(op)

    def _count(self, shape: tuple[int, ...]) -> None:
        known = likely(shape)
        if known[1] > 1 and known[2] * known[3] > 1:
            self.transformed.append(known)

    def _form(self, node: Any) -> Any | None:
        """A tensor of rank 4 as arranged; None where it cannot be."""
        if isinstance(node, relax.Var) and node in self.arranged:
            return self.arranged[node]
        shape = extents_of(node)
        if shape is None or len(shape) != 4 or not (self.arrangement.holds(shape[1]) or shape[1] == 1):
            return None
        if (values := array_of(node)) is not None:
            return relax.const(self.arrangement.array(values), node.ty.dtype)
        made = self.builder_.emit(self.arrangement.arranged(self.visit_expr(node), shape))
        self._count(shape)
        if isinstance(node, relax.Var):
            self.arranged[node] = made
            self.as_plain.add(node)
        return made

    def _is_arranged(self, node: Any) -> bool:
        return isinstance(node, relax.Var) and node in self.arranged

    # Bindings ----------------------------------------------------------------------------------------------

    def visit_dataflow_block_(self, block: Any) -> Any:
        """One block of bindings; what is arranged in it is not known outside."""
        self.arranged.clear()
        self.as_plain.clear()
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: Any) -> None:
        var, value = binding.var, binding.value
        if isinstance(var, relax.DataflowVar):
            if self._is_arranged(value):
                self.arranged[var] = self.arranged[value]
                return
            if isinstance(value, relax.Call) and (made := self._rewritten(var, value)) is not None:
                self.arranged[var] = self.builder_.emit(made)
                return
            if isinstance(value, relax.Call) and (made := self._averaged(value)) is not None:
                self.set_var_remap(var, self.builder_.emit(made))
                return
        super().visit_var_binding_(binding)

    def visit_match_cast_(self, binding: Any) -> None:
        """A check of a shape: of the arranged tensor, where there is one."""
        shape = extents_of(binding.var)
        if isinstance(binding.var, relax.DataflowVar) and self._is_arranged(binding.value) and shape is not None:
            kind = relax.TensorType(self.arrangement.shape(shape), binding.var.ty.dtype)
            self.arranged[binding.var] = self.builder_.match_cast(self.arranged[binding.value], kind)
            return
        super().visit_match_cast_(binding)

    def _rewritten(self, var: Any, call: Any) -> Any | None:
        """The call on arranged tensors, or None where it stays as it is."""
        name = getattr(call.op, "name", "")
        if var in self.wanted:
            return self._convolution(call, self.convs[var])
        shape = extents_of(call)
        if shape is None or len(shape) != 4 or not self.arrangement.holds(shape[1]):
            return None
        if name in ALIKE:
            return self._alike(call, shape)
        if name == "relax.concat":
            return self._concat(call)
        if name == "relax.call_tir":
            return self._moved(call)
        if not call.args or not self._is_arranged(call.args[0]):
            return None
        rules: dict[str, Callable[[Any], Any]] = {
            "relax.nn.adaptive_avg_pool2d": self._adaptive,
            "relax.mean": self._mean,
            "relax.image.resize2d": self._resized,
            "relax.strided_slice": self._part,
        }
        rules |= dict.fromkeys(_POOLS, self._pooled)
        return rules[name](call) if name in rules else None

    def _convolution(self, call: Any, conv: Convolution) -> Any:
        self.arranged_convs += 1
        data, weights = call.args
        if tile := self.tile(conv, self.arrangement):
            self.winograd_convs += 1
            made = relax.const(self._transformed(weights, tile), weights.ty.dtype)
            if not conv.fixed:
                return open_winograd(self.builder_, self._form(data), made, conv, self.arrangement, tile)
            strip = self.strip(conv, self.arrangement, tile)
            return self._called(
                (conv, tile), lambda d, w: winograd_convolution(d, w, conv, self.arrangement, tile, strip),
                [self._form(data), made], "conv2d_winograd", {"op_pattern": _OUT_FUSIBLE},
            )  # fmt: skip
        if not self.arrangement.block:
            values = np.ascontiguousarray(array_of(weights).transpose(0, 2, 3, 1))
            return relax.op.nn.conv2d(
                self._form(data), relax.const(values, weights.ty.dtype), list(conv.strides), list(conv.padding),
                list(conv.dilation), conv.groups, "NHWC", "OHWI", "NHWC", conv.out_dtype,
            )  # fmt: skip
        form = self._form(data) if self.arrangement.holds(conv.data[1]) else self.visit_expr(data)
        block = self.arrangement.block
        return self._called(
            (conv, 0), lambda d, w: blocked_convolution(d, w, conv, block), [form, weights], "conv2d_blocked"
        )

    def _called(
        self, what: tuple[Convolution, int], made: Callable[..., Any], arguments: list[Any], name: str,
        attrs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Return a call of what TE makes of arguments, made once of equal convolutions."""
        question = what, self.arrangement
        if question in self.made:
            func, kinds = self.made[question]
            return relax.call_tir(self.builder_.add_func(func, name), relax.Tuple(arguments), kinds)
        call = self.builder_.call_te(made, *arguments, primfunc_name_hint=name, primfunc_attrs=attrs)
        if all(isinstance(extent, int) for extent in extents_of(arguments[0]) or ("open",)):
            self.made[question] = self.builder_.get()[call.args[0]], list(call.ty_args)
        return call

    def _transformed(self, weights: Any, tile: int) -> np.ndarray:
        """Return weights as Winograd's algorithm takes them, computed once for all arrangements that are tried."""
        key = hash(weights), tile
        if key not in self.known:
            self.known[key] = transformed_weights(array_of(weights), tile)
        return self.known[key]

    def _alike(self, call: Any, shape: tuple[int, ...]) -> Any | None:
        if not any(self._is_arranged(a) for a in call.args):
            return None
        args = []
        for arg in call.args:
            extents = extents_of(arg)
            if not isinstance(getattr(arg, "ty", None), relax.TensorType):
                args.append(self.visit_expr(arg))  # a number
                continue
            if extents is None or len(extents) > 4:
                return None
            if all(isinstance(e, int) and e == 1 for e in extents):
                one = relax.const(array_of(arg).reshape(()), arg.ty.dtype) if is_constant(arg) else None
                if one is None:
                    return None
                args.append(one)
                continue
            if len(extents) < 4:
                if not is_constant(arg):
                    return None
                values = array_of(arg)
                arg = relax.const(values.reshape((1,) * (4 - values.ndim) + values.shape), arg.ty.dtype)
            form = self._form(arg)
            if form is None:
                return None
            args.append(form)
        return relax.Call(call.op, args, call.attrs, call.ty_args)

    def _moved(self, call: Any) -> Any | None:
        if (move := move_of(self.module, call)) is None or not self._is_arranged(data := call.args[1].fields[0]):
            return None
        return move.call(self.builder_, self.arranged[data], self.arrangement, extents_of(data) or ())

    def _concat(self, call: Any) -> Any | None:
        fields = call.args[0].fields if isinstance(call.args[0], relax.Tuple) else ()
        if int(call.attrs.axis) != 1 or 2 * sum(map(self._is_arranged, fields)) < len(fields) or not fields:
            return None
        if not all(shape is not None and self.arrangement.holds(shape[1]) for shape in map(extents_of, fields)):
            return None  # one channel is a block of one
        forms = [self._form(f) for f in fields]
        if any(f is None for f in forms):
            return None
        return relax.op.concat(forms, axis=self.arrangement.places[1])

    def _part(self, call: Any) -> Any | None:
        """A slice of known bounds, of whole blocks of channels."""
        told: list[list[Any]] = [[number_of(field) for field in arg.fields] for arg in call.args[1:]]
        axes, begins, ends = told[:3]
        if any(step != 1 for step in sum(told[3:], [])):
            return None
        shape, places = extents_of(call.args[0]) or (), self.arrangement.places
        begin, end = list[int](), list[int]()
        for axis, first, last in zip(axes, begins, ends, strict=True):
            if first is None or last is None or not isinstance(extent := shape[axis], int):
                return None
            one = (self.arrangement.block or 1) if axis == 1 else 1
            first, last, _ = slice(first, last).indices(extent)
            if first % one or last % one:
                return None
            begin.append(first // one)
            end.append(last // one)
        return relax.op.strided_slice(self._form(call.args[0]), [places[axis] for axis in axes], begin, end)

    def _pooled(self, call: Any) -> Any:
        a, layout = call.attrs, self.arrangement.name
        if a.layout != "NCHW":
            return None
        return _POOLS[call.op.name](
            self._form(call.args[0]), _ints(a.pool_size), _ints(a.strides), _ints(a.padding), _ints(a.dilation),
            bool(a.ceil_mode), bool(a.count_include_pad), layout, layout,
        )  # fmt: skip

    def _adaptive(self, call: Any) -> Any:
        if call.attrs.layout != "NCHW":
            return None
        size = None if call.attrs.output_size is None else _ints(call.attrs.output_size)
        layout = self.arrangement.name
        return relax.op.nn.adaptive_avg_pool2d(self._form(call.args[0]), size, layout, layout)

    def _mean(self, call: Any) -> Any | None:
        axes = [] if call.attrs.axis is None else sorted(int(a) % 4 for a in call.attrs.axis)
        if axes != _IMAGE or not call.attrs.keepdims:
            return None
        return relax.op.mean(self._form(call.args[0]), self.arrangement.axes(_IMAGE), keepdims=True)

    def _averaged(self, call: Any) -> Any | None:
        """Means of whole images, one a channel: the same plain matrix, whatever the arrangement."""
        if getattr(call.op, "name", "") != "relax.mean" or not self._is_arranged(call.args[0]) or call.attrs.keepdims:
            return None
        axes = [] if call.attrs.axis is None else sorted(int(a) % 4 for a in call.attrs.axis)
        if axes != _IMAGE:
            return None
        means = relax.op.mean(self._form(call.args[0]), self.arrangement.axes(_IMAGE))
        return relax.op.reshape(self.builder_.emit(means), extents_of(call)) if self.arrangement.block else means

    def _resized(self, call: Any) -> Any | None:
        a = call.attrs
        if a.layout != "NCHW":
            return None
        if times := whole_multiples(call):
            first = self.arrangement.axes(_IMAGE)[0]
            form = self._form(call.args[0])
            return self.builder_.call_te(repeated, form, times, first, primfunc_name_hint="resize2d")
        if self.arrangement.block:
            return None
        return relax.op.image.resize2d(
            self._form(call.args[0]), call.args[1], [float(getattr(r, "value", r)) for r in a.roi], "NHWC", a.method,
            a.coordinate_transformation_mode, a.rounding_method, a.cubic_alpha, a.cubic_exclude,
            a.extrapolation_value, a.out_dtype or None,
        )  # fmt: skip
