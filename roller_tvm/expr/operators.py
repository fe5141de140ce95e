"""Named operators as tensor expressions, for planning without TVM.

``operator("matmul", m=64, n=32, k=16)`` builds one; ``parse_operator`` does so from a command line.
Axis orders follow TVM's own operators, so that a plan for one fits the other.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import BadInput, UsageError
from .affine import Index
from .expression import REDUCE, SPATIAL, Access, Axis, Stage, Tensor, TensorExpression
from .parameters import REQUIRED, Padding, Window, check_elements, convert, parse_params

__all__ = [
    "OPERATORS",
    "Operator",
    "normalize",
    "operator",
    "operator_names",
    "parse_operator",
    "parse_params",
]

_Term = Index | str | int
Pair = tuple[int, int]
Ints = tuple[int, ...]


@dataclass(frozen=True)
class Operator:
    """A named operator: its builder and its parameters with their defaults."""

    name: str
    build: Callable[..., TensorExpression]
    defaults: Mapping[str, Any]
    summary: str

    @property
    def usage(self) -> str:
        """One line: required parameters, then the optional ones with their defaults."""
        return " ".join(
            [
                self.name,
                *(f"{n}=..." if d is REQUIRED else f"[{n}={_text(d)}]" for n, d in self.defaults.items()),
            ]
        )


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return str(int(value)) if isinstance(value, bool) else str(value)


OPERATORS: dict[str, Operator] = {}
ALIASES = {
    "avg_pool2d": "avg_pool2d_nchw",
    "max_pool2d": "max_pool2d_nchw",
    "conv2d": "conv2d_nchw",
    "depthwise_conv2d": "depthwise_conv2d_nchw",
    "global_avg_pool": "global_avg_pool2d_nchw",
}


def _named(build: Callable[..., TensorExpression]) -> Callable[..., TensorExpression]:
    defaults = {
        p.name: REQUIRED if p.default is p.empty else p.default
        for p in inspect.signature(build).parameters.values()
    }
    name = build.__name__
    OPERATORS[name] = Operator(name, build, defaults, (build.__doc__ or "").splitlines()[0])

    def call(**params: Any) -> TensorExpression:
        return operator(name, **params)

    call.__name__, call.__doc__ = name, build.__doc__
    return call


def operator_names() -> list[str]:
    """Names of every operator, sorted."""
    return sorted(OPERATORS)


def lookup(name: str) -> Operator:
    """The operator of that name or alias; the error lists the known ones."""
    known = OPERATORS.get(ALIASES.get(name, name))
    if known is None:
        close = difflib.get_close_matches(name, [*OPERATORS, *ALIASES], n=1)
        guess = f"did you mean {close[0]}? " if close else ""
        raise UsageError(
            f"unknown operator {name!r}", remedy=f"{guess}known operators: {', '.join(operator_names())}"
        )
    return known


def normalize(name: str, params: Mapping[str, object]) -> dict[str, Any]:
    """Checked parameters of an operator with every default filled in.

    Examples
    --------
    >>> normalize("matmul", {"m": "64", "n": 32, "k": 16})["layout"]
    'NN'
    """
    found = lookup(name)
    given = {k: v for k, v in params.items() if v is not None}
    if "kh" in found.defaults and "k" in given and "k" not in found.defaults:
        # One 'k' stands for a square window.
        for side in ("kh", "kw"):
            given.setdefault(side, given["k"])
        del given["k"]
    values = convert(found.name, found.defaults, given)
    if values.get("kind") not in (None, found.name[:3]):
        raise BadInput(f"'kind' is {values['kind']}", found.name, f"use {values['kind']}{found.name[3:]}")
    return values


def operator(name: str, **params: object) -> TensorExpression:
    """Build a named operator.

    Parameters
    ----------
    name : str
        One of ``operator_names()``.
    **params
        Numbers or their text, as on the command line.

    Examples
    --------
    >>> operator("conv2d_nchw", n=1, c=64, h=56, w=56, f=64, kh=3, kw=3, padding=1).anchor.flops
    231211008
    """
    values = normalize(name, params)
    expression = lookup(name).build(**values)
    for tensor in expression.tensors.values():
        check_elements(name, tensor.name, tensor.shape)
    return expression


def parse_operator(words: Sequence[str]) -> TensorExpression:
    """Build an operator from command line words.

    Examples
    --------
    >>> parse_operator(["relu", "shape=128x256x14x14"]).output.shape
    (128, 256, 14, 14)
    """
    if not words:
        raise UsageError("no operator given", remedy=f"name one of {', '.join(operator_names())}")
    return operator(words[0], **parse_params(" ".join(words[1:])))


# -- building blocks ---------------------------------------------------------------------------


def _index(term: _Term) -> Index:
    if isinstance(term, Index):
        return term
    return Index.axis(term) if isinstance(term, str) else Index.of({}, term)


def _terms(*terms: _Term) -> tuple[_Term, ...]:
    return terms


def _read(tensor: str, terms: Iterable[_Term], guarded: bool = False) -> Access:
    return Access(tensor, tuple(_index(t) for t in terms), guarded)


def _spatial(extents: Mapping[str, int]) -> tuple[Axis, ...]:
    return tuple(Axis(n, e, SPATIAL) for n, e in extents.items())


def _reduce(extents: Mapping[str, int]) -> tuple[Axis, ...]:
    return tuple(Axis(n, e, REDUCE) for n, e in extents.items())


def _map(
    name: str,
    extents: Mapping[str, int],
    reads: Iterable[Access],
    dtype: str,
    ops: tuple[tuple[str, int], ...] = (),
) -> Stage:
    return Stage(name, _spatial(extents), tuple(reads), dtype, ops)


def _with_epilogue(
    name: str, inputs: list[Tensor], stages: list[Stage], channel: int, bias: bool, relu: bool
) -> TensorExpression:
    """Add bias over dimension `channel` and ReLU to the last stage, which is the anchor."""
    anchor = stages[-1]
    last, shape, dtype = anchor.name, anchor.shape, anchor.dtype
    extents = {f"i{d}": e for d, e in enumerate(shape)}
    here = list(extents)
    if bias:
        inputs = [*inputs, Tensor("bias", (shape[channel],), dtype)]
        reads = [_read(last, here), _read("bias", [here[channel]])]
        stages = [*stages, _map("bias_add", extents, reads, dtype, (("add", 1),))]
        last = "bias_add"
    if relu:
        stages = [*stages, _map("relu", extents, [_read(last, here)], dtype, (("cmp", 1),))]
    return TensorExpression(name, tuple(inputs), tuple(stages), anchor.name)


def _padded(order: str, sizes: Mapping[str, int], high: Window, wide: Window, dtype: str) -> list[Stage]:
    """The padding stage of an image read, if it needs one; `order` is 'nchw' or 'nhwc'."""
    if high.padded == high.size and wide.padded == wide.size:
        return []
    extents = {**sizes, "h": high.padded, "w": wide.padded}
    offsets = {"h": -high.before, "w": -wide.before}
    reads = [_read("data", (Index.of({a: 1}, offsets.get(a, 0)) for a in order), guarded=True)]
    return [_map("pad", {a: extents[a] for a in order}, reads, dtype)]


def _slide(out: str, window: str, fit: Window) -> Index:
    return Index.of({out: fit.stride, window: fit.dilation})


def _windows(
    name: str, h: int, w: int, kh: int, kw: int, stride: Pair, dilation: Pair, padding: Padding
) -> tuple[Window, Window]:
    return (
        Window.fit(name, "h", h, kh, stride[0], dilation[0], padding, 0),
        Window.fit(name, "w", w, kw, stride[1], dilation[1], padding, 1),
    )


def _grouped(axis: str, extent: int, per_group: int) -> tuple[tuple[Axis, ...], Index, Index]:
    """An output channel axis that belongs to ``axis // per_group``: its axes, its group, itself."""
    if per_group == 1:
        return (Axis(axis, extent),), Index.axis(axis), Index.axis(axis)
    if per_group == extent:
        return (Axis(axis, extent),), Index.of({}), Index.axis(axis)
    outer, inner = f"{axis}.o", f"{axis}.i"
    axes = (Axis(outer, extent // per_group, SPATIAL, (axis, per_group)),
            Axis(inner, per_group, SPATIAL, (axis, 1)))  # fmt: skip
    return axes, Index.axis(outer), Index.of({outer: per_group, inner: 1})


# -- convolutions ------------------------------------------------------------------------------


def _conv2d(
    name: str,
    order: str,
    n: int,
    c: int,
    h: int,
    w: int,
    f: int,
    kh: int,
    kw: int,
    stride: Pair,
    padding: Padding,
    dilation: Pair,
    groups: int,
    dtype: str,
    bias: bool,
    relu: bool,
) -> TensorExpression:
    for channels, size in (("c", c), ("f", f)):
        if size % groups:
            raise BadInput(
                f"'groups'={groups} does not divide '{channels}'={size}",
                name,
                f"give groups a divisor of {size}",
            )
    high, wide = _windows(name, h, w, kh, kw, stride, dilation, padding)
    sizes = {"n": n, "c": c, "h": h, "w": w}
    pad = _padded(order, sizes, high, wide, dtype)
    depth = c // groups
    filters, group, filter_index = _grouped("f", f, f // groups)
    out = {"n": (Axis("n", n),), "c": filters, "h": (Axis("oh", high.out),), "w": (Axis("ow", wide.out),)}
    window = {"c": Axis("c", depth, REDUCE), "h": Axis("kh", kh, REDUCE), "w": Axis("kw", kw, REDUCE)}
    channel = Index.of({**dict((a, x * depth) for a, x in group.terms), "c": 1})
    source = {"n": _index("n"), "c": channel, "h": _slide("oh", "kh", high), "w": _slide("ow", "kw", wide)}
    if order == "nchw":
        weight, taps = (f, depth, kh, kw), _terms(filter_index, "c", "kh", "kw")
    else:
        weight, taps = (kh, kw, depth, f), _terms("kh", "kw", "c", filter_index)
    axes = [a for o in order for a in out[o]] + [window[o] for o in order if o != "n"]
    reads = (_read("pad" if pad else "data", (source[o] for o in order)), _read("weight", taps))
    conv = Stage("conv2d", tuple(axes), reads, dtype, (("fma", 1),), "sum")
    inputs = [Tensor("data", tuple(sizes[o] for o in order), dtype), Tensor("weight", weight, dtype)]
    return _with_epilogue(name, inputs, [*pad, conv], order.index("c"), bias, relu)


@_named
def conv2d_nchw(
    n: int,
    c: int,
    h: int,
    w: int,
    f: int,
    kh: int,
    kw: int,
    stride: Pair = (1, 1),
    padding: Padding = "VALID",
    dilation: Pair = (1, 1),
    groups: int = 1,
    dtype: str = "float32",
    bias: bool = False,
    relu: bool = False,
) -> TensorExpression:
    """2-D convolution, data NCHW, weights OIHW, in groups where asked; `k` stands for a square window."""
    return _conv2d(
        "conv2d_nchw", "nchw", n, c, h, w, f, kh, kw, stride, padding, dilation, groups, dtype, bias, relu
    )


@_named
def conv2d_nhwc(
    n: int,
    c: int,
    h: int,
    w: int,
    f: int,
    kh: int,
    kw: int,
    stride: Pair = (1, 1),
    padding: Padding = "VALID",
    dilation: Pair = (1, 1),
    groups: int = 1,
    dtype: str = "float32",
    bias: bool = False,
    relu: bool = False,
) -> TensorExpression:
    """2-D convolution, data NHWC, weights HWIO, in groups where asked; `k` stands for a square window."""
    return _conv2d(
        "conv2d_nhwc", "nhwc", n, c, h, w, f, kh, kw, stride, padding, dilation, groups, dtype, bias, relu
    )


def _depthwise(
    name: str,
    order: str,
    n: int,
    c: int,
    h: int,
    w: int,
    kh: int,
    kw: int,
    stride: Pair,
    padding: Padding,
    dilation: Pair,
    multiplier: int,
    dtype: str,
    bias: bool,
    relu: bool,
) -> TensorExpression:
    high, wide = _windows(name, h, w, kh, kw, stride, dilation, padding)
    sizes = {"n": n, "c": c, "h": h, "w": w}
    pad = _padded(order, sizes, high, wide, dtype)
    channels: tuple[Axis, ...] = (Axis("c", c),)
    channel, copy = Index.axis("c"), Index.of({})
    if multiplier > 1:
        channels, channel, _ = _grouped("c", c * multiplier, multiplier)
        copy = Index.axis(channels[-1].name)
        if len(channels) == 1:
            copy = Index.axis("c")
    out = {"n": (Axis("n", n),), "c": channels, "h": (Axis("oh", high.out),), "w": (Axis("ow", wide.out),)}
    source = {"n": _index("n"), "c": channel, "h": _slide("oh", "kh", high), "w": _slide("ow", "kw", wide)}
    if order == "nchw":
        weight, taps = (c, multiplier, kh, kw), _terms(channel, copy, "kh", "kw")
    else:
        weight, taps = (kh, kw, c, multiplier), _terms("kh", "kw", channel, copy)
    axes = [a for o in order for a in out[o]] + [Axis("kh", kh, REDUCE), Axis("kw", kw, REDUCE)]
    reads = (_read("pad" if pad else "data", (source[o] for o in order)), _read("weight", taps))
    conv = Stage("depthwise_conv2d", tuple(axes), reads, dtype, (("fma", 1),), "sum")
    inputs = [Tensor("data", tuple(sizes[o] for o in order), dtype), Tensor("weight", weight, dtype)]
    return _with_epilogue(name, inputs, [*pad, conv], order.index("c"), bias, relu)


@_named
def depthwise_conv2d_nchw(
    n: int,
    c: int,
    h: int,
    w: int,
    kh: int,
    kw: int,
    stride: Pair = (1, 1),
    padding: Padding = "VALID",
    dilation: Pair = (1, 1),
    multiplier: int = 1,
    dtype: str = "float32",
    bias: bool = False,
    relu: bool = False,
) -> TensorExpression:
    """Depthwise convolution, data NCHW, weights C M KH KW; `k` stands for a square window."""
    return _depthwise(
        "depthwise_conv2d_nchw",
        "nchw",
        n,
        c,
        h,
        w,
        kh,
        kw,
        stride,
        padding,
        dilation,
        multiplier,
        dtype,
        bias,
        relu,
    )


@_named
def depthwise_conv2d_nhwc(
    n: int,
    c: int,
    h: int,
    w: int,
    kh: int,
    kw: int,
    stride: Pair = (1, 1),
    padding: Padding = "VALID",
    dilation: Pair = (1, 1),
    multiplier: int = 1,
    dtype: str = "float32",
    bias: bool = False,
    relu: bool = False,
) -> TensorExpression:
    """Depthwise convolution, data NHWC, weights KH KW C M; `k` stands for a square window."""
    return _depthwise(
        "depthwise_conv2d_nhwc",
        "nhwc",
        n,
        c,
        h,
        w,
        kh,
        kw,
        stride,
        padding,
        dilation,
        multiplier,
        dtype,
        bias,
        relu,
    )


# -- matrix products ---------------------------------------------------------------------------


def _product(
    name: str, batch: dict[str, int], m: int, n: int, k: int, layout: str, dtype: str, bias: bool, relu: bool
) -> TensorExpression:
    sizes = {**batch, "m": m, "n": n, "k": k}
    left = [*batch, *("mk" if layout[0] == "N" else "km")]
    right = [*batch, *("kn" if layout[1] == "N" else "nk")]
    inputs = [
        Tensor("A", tuple(sizes[a] for a in left), dtype),
        Tensor("B", tuple(sizes[a] for a in right), dtype),
    ]
    axes = (*_spatial({**batch, "m": m, "n": n}), *_reduce({"k": k}))
    stage = Stage("matmul", axes, (_read("A", left), _read("B", right)), dtype, (("fma", 1),), "sum")
    return _with_epilogue(name, inputs, [stage], len(batch) + 1, bias, relu)


@_named
def matmul(
    m: int, n: int, k: int, layout: str = "NN", dtype: str = "float32", bias: bool = False, relu: bool = False
) -> TensorExpression:
    """Matrix product (m,k) x (k,n); layout NT holds the second operand as (n,k), TN the first as (k,m)."""
    return _product("matmul", {}, m, n, k, layout, dtype, bias, relu)


@_named
def dense(
    m: int, n: int, k: int, dtype: str = "float32", bias: bool = False, relu: bool = False
) -> TensorExpression:
    """Fully connected layer: data (m,k), weights (n,k)."""
    return _product("dense", {}, m, n, k, "NT", dtype, bias, relu)


@_named
def batch_matmul(
    b: int,
    m: int,
    n: int,
    k: int,
    layout: str = "NN",
    dtype: str = "float32",
    bias: bool = False,
    relu: bool = False,
) -> TensorExpression:
    """`b` independent matrix products; layouts as for matmul."""
    return _product("batch_matmul", {"b": b}, m, n, k, layout, dtype, bias, relu)


# -- pooling and reductions --------------------------------------------------------------------


def _pool(
    name: str,
    combiner: str,
    n: int,
    c: int,
    h: int,
    w: int,
    kh: int,
    kw: int,
    stride: Pair,
    padding: Padding,
    dilation: Pair,
    dtype: str,
) -> TensorExpression:
    high, wide = _windows(name, h, w, kh, kw, stride, dilation, padding)
    pad = _padded("nchw", {"n": n, "c": c, "h": h, "w": w}, high, wide, dtype)
    extents = {"n": n, "c": c, "oh": high.out, "ow": wide.out}
    reads = (_read("pad" if pad else "data", ("n", "c", _slide("oh", "kh", high), _slide("ow", "kw", wide))),)
    axes = (*_spatial(extents), *_reduce({"kh": kh, "kw": kw}))
    op = "add" if combiner == "sum" else "cmp"
    stages = [*pad, Stage(f"pool_{combiner}", axes, reads, dtype, ((op, 1),), combiner)]
    if combiner == "sum":
        stages.append(_map("pool_avg", extents, [_read("pool_sum", extents)], dtype, (("div", 1),)))
    return TensorExpression(name, (Tensor("data", (n, c, h, w), dtype),), tuple(stages), f"pool_{combiner}")


@_named
def avg_pool2d_nchw(
    n: int,
    c: int,
    h: int,
    w: int,
    kh: int,
    kw: int,
    stride: Pair = (1, 1),
    padding: Padding = "VALID",
    dilation: Pair = (1, 1),
    kind: str = "avg",
    dtype: str = "float32",
) -> TensorExpression:
    """Average over windows; padding does not count into the average; `k` stands for a square window."""
    return _pool("avg_pool2d_nchw", "sum", n, c, h, w, kh, kw, stride, padding, dilation, dtype)


@_named
def max_pool2d_nchw(
    n: int,
    c: int,
    h: int,
    w: int,
    kh: int,
    kw: int,
    stride: Pair = (1, 1),
    padding: Padding = "VALID",
    dilation: Pair = (1, 1),
    kind: str = "max",
    dtype: str = "float32",
) -> TensorExpression:
    """Maximum over windows; `k` stands for a square window."""
    return _pool("max_pool2d_nchw", "max", n, c, h, w, kh, kw, stride, padding, dilation, dtype)


@_named
def global_avg_pool2d_nchw(n: int, c: int, h: int, w: int, dtype: str = "float32") -> TensorExpression:
    """Average over all of height and width."""
    extents = {"n": n, "c": c, "oh": 1, "ow": 1}
    reads = (_read("data", ("n", "c", Index.of({"oh": h, "kh": 1}), Index.of({"ow": w, "kw": 1}))),)
    axes = (*_spatial(extents), *_reduce({"kh": h, "kw": w}))
    stages = (Stage("pool_sum", axes, reads, dtype, (("add", 1),), "sum"),
              _map("pool_avg", extents, [_read("pool_sum", extents)], dtype, (("div", 1),)))  # fmt: skip
    return TensorExpression(
        "global_avg_pool2d_nchw", (Tensor("data", (n, c, h, w), dtype),), stages, "pool_sum"
    )


def resolve_axes(name: str, shape: Ints, axis: Ints | None) -> Ints:
    """Axes to reduce, from 0 and sorted; by default height and width of a 4-D shape, else the last."""
    if axis is None:
        return (2, 3) if len(shape) == 4 else (len(shape) - 1,)
    for a in axis:
        if not -len(shape) <= a < len(shape):
            raise BadInput(
                f"'axis' {a} lies outside the {len(shape)} dimensions of shape {shape}",
                name,
                f"give axis between {-len(shape)} and {len(shape) - 1}",
            )
    return tuple(sorted({a % len(shape) for a in axis}))


def _reduction(
    name: str, combiner: str, shape: Ints, axis: Ints | None, keepdims: bool, dtype: str
) -> TensorExpression:
    reduced = resolve_axes(name, shape, axis)
    names = [f"r{d}" if d in reduced else f"i{d}" for d in range(len(shape))]
    out = {f"i{d}": 1 if d in reduced else e for d, e in enumerate(shape) if keepdims or d not in reduced}
    axes = (*_spatial(out), *_reduce({names[d]: shape[d] for d in reduced}))
    op = "add" if combiner == "sum" else "cmp"
    stage = Stage(f"reduce_{combiner}", axes, (_read("data", names),), dtype, ((op, 1),), combiner)
    return TensorExpression(name, (Tensor("data", shape, dtype),), (stage,), stage.name)


@_named
def reduce_sum(
    shape: Ints, axis: Ints | None = None, keepdims: bool = False, dtype: str = "float32"
) -> TensorExpression:
    """Sum over axes (by default height and width of a 4-D shape, else the last axis)."""
    return _reduction("reduce_sum", "sum", shape, axis, keepdims, dtype)


@_named
def reduce_max(
    shape: Ints, axis: Ints | None = None, keepdims: bool = False, dtype: str = "float32"
) -> TensorExpression:
    """Maximum over axes (by default height and width of a 4-D shape, else the last axis)."""
    return _reduction("reduce_max", "max", shape, axis, keepdims, dtype)


@_named
def softmax(shape: Ints, axis: Ints = (-1,), dtype: str = "float32") -> TensorExpression:
    """Softmax over one axis."""
    reduced = resolve_axes("softmax", shape, axis)
    if len(reduced) != 1:
        raise BadInput(f"'axis' must be one axis (got {axis})", "softmax", "give axis=-1")
    over = reduced[0]
    every = {f"i{d}": e for d, e in enumerate(shape)}
    kept = {a: e for a, e in every.items() if a != f"i{over}"}
    inner = [a if a in kept else "k" for a in every]
    axes = (*_spatial(kept), *_reduce({"k": shape[over]}))
    stages = (
        Stage("max", axes, (_read("data", inner),), dtype, (("cmp", 1),), "max"),
        _map("exp", every, [_read("data", every), _read("max", kept)], dtype, (("add", 1), ("special", 1))),
        Stage("sum", axes, (_read("exp", inner),), dtype, (("add", 1),), "sum"),
        _map("norm", every, [_read("exp", every), _read("sum", kept)], dtype, (("div", 1),)),
    )
    return TensorExpression("softmax", (Tensor("data", shape, dtype),), stages, "sum")


# -- element-wise ------------------------------------------------------------------------------


@_named
def relu(shape: Ints, dtype: str = "float32") -> TensorExpression:
    """max(x, 0), element by element."""
    extents = {f"i{d}": e for d, e in enumerate(shape)}
    stage = _map("relu", extents, [_read("data", extents)], dtype, (("cmp", 1),))
    return TensorExpression("relu", (Tensor("data", shape, dtype),), (stage,), "relu")


@_named
def add(shape: Ints, other: Ints | None = None, dtype: str = "float32") -> TensorExpression:
    """Sum of two tensors; the second, of shape `other`, is broadcast as in numpy."""
    other = other or shape
    extents = {f"i{d}": e for d, e in enumerate(shape)}
    if len(other) > len(shape) or any(
        o not in (1, s) for o, s in zip(other[::-1], shape[::-1], strict=False)
    ):
        raise BadInput(
            f"'other'={other} does not broadcast to 'shape'={shape}",
            "add",
            "give extents equal to those of shape, or 1, aligned at the last dimension",
        )
    tail = list(extents)[len(shape) - len(other) :]
    # An extent that is 1 in both is still indexed by its axis, as TVM does it.
    terms: list[_Term] = [a if o == extents[a] else 0 for a, o in zip(tail, other, strict=True)]
    stage = _map("add", extents, [_read("A", extents), _read("B", terms)], dtype, (("add", 1),))
    return TensorExpression("add", (Tensor("A", shape, dtype), Tensor("B", other, dtype)), (stage,), "add")


@_named
def transpose(shape: Ints, perm: Ints | None = None, dtype: str = "float32") -> TensorExpression:
    """Permute dimensions; output dimension d is input dimension perm[d] (by default reversed)."""
    order = tuple(range(len(shape)))[::-1] if perm is None else perm
    if sorted(order) != list(range(len(shape))):
        raise BadInput(
            f"'perm'={order} is no permutation of the {len(shape)} dimensions of shape {shape}",
            "transpose",
            f"give perm={','.join(map(str, range(len(shape))))} in another order",
        )
    names = {source: f"i{d}" for d, source in enumerate(order)}
    extents = {f"i{d}": shape[source] for d, source in enumerate(order)}
    stage = _map("transpose", extents, [_read("data", (names[d] for d in range(len(shape))))], dtype)
    return TensorExpression("transpose", (Tensor("data", shape, dtype),), (stage,), "transpose")
