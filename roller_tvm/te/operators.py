"""The named operators of ``expr.operators`` as te tensors, by topi where topi has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ir.operators import lookup, normalize, resolve_axes
from ..ir.parameters import Padding, Window

Tensors = list[Any]
#: Added to a variance, as networks do.
EPSILON = 1e-5
_BUILDERS: dict[str, Callable[..., Tensors]] = {}


def te_operator(name: str, **params: object) -> Tensors:
    """Return inputs and output of a named operator as te.Tensors, ready for a schedule or for lowering.

    Parameters
    ----------
    name : str
        Name of the operator, as for ``roller_tvm.ir.operators.operator``.
    **params
        Its parameters, as there.

    Returns
    -------
    list of te.Tensor
        Inputs in the order of the expression, then the output.

    Examples
    --------
    >>> [t.name for t in te_operator("matmul", m=64, n=32, k=16)]
    ['A', 'B', 'T_matmul_NN']
    """
    return _BUILDERS[lookup(name).name](**normalize(name, params))


def _builds(build: Callable[..., Tensors]) -> Callable[..., Tensors]:
    _BUILDERS[build.__name__] = build
    return build


def _tvm() -> tuple[Any, Any]:
    from tvm import te, topi

    return te, topi


def _epilogue(tensors: Tensors, channel: int, bias: bool, relu: bool) -> Tensors:
    te, topi = _tvm()
    *inputs, out = tensors
    if bias:
        operand = te.placeholder((out.shape[channel],), out.dtype, name="bias")
        product, inputs = out, [*inputs, operand]
        out = te.compute(out.shape, lambda *i: product[i] + operand[i[channel]], name="bias_add")
    if relu:
        out = topi.nn.relu(out)
    return [*inputs, out]


def _pads(h: int, w: int, kh: int, kw: int, stride: Any, dilation: Any, padding: Padding) -> list[int]:
    """Return the padding in topi's order: top, left, bottom, right."""
    high = Window.fit("", "h", h, kh, stride[0], dilation[0], padding, 0)
    wide = Window.fit("", "w", w, kw, stride[1], dilation[1], padding, 1)
    return [high.before, wide.before, high.after, wide.after]


def _conv2d(
    layout: str,
    n: int,
    c: int,
    h: int,
    w: int,
    f: int,
    kh: int,
    kw: int,
    stride: Any,
    padding: Padding,
    dilation: Any,
    groups: int,
    dtype: str,
    bias: bool,
    relu: bool,
) -> Tensors:
    te, topi = _tvm()
    sizes = {"N": n, "C": c, "H": h, "W": w}
    data = te.placeholder([sizes[d] for d in layout], dtype, name="data")
    kernel = {"NCHW": (f, c // groups, kh, kw), "NHWC": (kh, kw, c // groups, f)}[layout]
    weight = te.placeholder(kernel, dtype, name="weight")
    pads = _pads(h, w, kh, kw, stride, dilation, padding)
    out = topi.nn.conv(data, weight, stride, pads, dilation, groups, layout, out_dtype=dtype)
    return _epilogue([data, weight, out], layout.index("C"), bias, relu)


@_builds
def conv2d_nchw(**params: Any) -> Tensors:
    return _conv2d("NCHW", **params)


@_builds
def conv2d_nhwc(**params: Any) -> Tensors:
    return _conv2d("NHWC", **params)


def _depthwise(
    layout: str,
    n: int,
    c: int,
    h: int,
    w: int,
    kh: int,
    kw: int,
    stride: Any,
    padding: Padding,
    dilation: Any,
    multiplier: int,
    dtype: str,
    bias: bool,
    relu: bool,
) -> Tensors:
    te, topi = _tvm()
    sizes = {"N": n, "C": c, "H": h, "W": w}
    data = te.placeholder([sizes[d] for d in layout], dtype, name="data")
    kernel = {"NCHW": (c, multiplier, kh, kw), "NHWC": (kh, kw, c, multiplier)}[layout]
    weight = te.placeholder(kernel, dtype, name="weight")
    pads = _pads(h, w, kh, kw, stride, dilation, padding)
    compute = topi.nn.depthwise_conv2d_nchw if layout == "NCHW" else topi.nn.depthwise_conv2d_nhwc
    out = compute(data, weight, stride, pads, dilation, dtype)
    return _epilogue([data, weight, out], layout.index("C"), bias, relu)


@_builds
def depthwise_conv2d_nchw(**params: Any) -> Tensors:
    return _depthwise("NCHW", **params)


@_builds
def depthwise_conv2d_nhwc(**params: Any) -> Tensors:
    return _depthwise("NHWC", **params)


@_builds
def matmul(m: int, n: int, k: int, layout: str, dtype: str, bias: bool, relu: bool) -> Tensors:
    te, topi = _tvm()
    left = te.placeholder((m, k) if layout[0] == "N" else (k, m), dtype, name="A")
    right = te.placeholder((k, n) if layout[1] == "N" else (n, k), dtype, name="B")
    out = topi.nn.matmul(left, right, None, dtype, layout[0] == "T", layout[1] == "T")
    return _epilogue([left, right, out], 1, bias, relu)


@_builds
def dense(m: int, n: int, k: int, dtype: str, bias: bool, relu: bool) -> Tensors:
    return matmul(m, n, k, "NT", dtype, bias, relu)


@_builds
def batch_matmul(b: int, m: int, n: int, k: int, layout: str, dtype: str, bias: bool, relu: bool) -> Tensors:
    te, topi = _tvm()
    left = te.placeholder((b, m, k) if layout[0] == "N" else (b, k, m), dtype, name="A")
    right = te.placeholder((b, k, n) if layout[1] == "N" else (b, n, k), dtype, name="B")
    out = topi.nn.batch_matmul(left, right, None, dtype, layout[0] == "T", layout[1] == "T")
    return _epilogue([left, right, out], 2, bias, relu)


def _pool(
    n: int,
    c: int,
    h: int,
    w: int,
    kh: int,
    kw: int,
    stride: Any,
    padding: Padding,
    dilation: Any,
    kind: str,
    dtype: str,
) -> Tensors:
    te, topi = _tvm()
    data = te.placeholder((n, c, h, w), dtype, name="data")
    pads = _pads(h, w, kh, kw, stride, dilation, padding)
    out = topi.nn.pool2d(data, (kh, kw), stride, dilation, pads, kind, False, "NCHW", count_include_pad=False)
    return [data, out]


@_builds
def avg_pool2d_nchw(**params: Any) -> Tensors:
    return _pool(**params)


@_builds
def max_pool2d_nchw(**params: Any) -> Tensors:
    return _pool(**params)


@_builds
def global_avg_pool2d_nchw(n: int, c: int, h: int, w: int, dtype: str) -> Tensors:
    te, topi = _tvm()
    data = te.placeholder((n, c, h, w), dtype, name="data")
    return [data, topi.nn.global_pool(data, "avg", "NCHW")]


def _reduce(name: str, shape: Any, axis: Any, keepdims: bool, dtype: str) -> Tensors:
    te, topi = _tvm()
    data = te.placeholder(shape, dtype, name="data")
    reduce = {"reduce_sum": topi.sum, "reduce_max": topi.max}[name]
    return [data, reduce(data, list(resolve_axes(name, shape, axis)), keepdims)]


@_builds
def reduce_sum(**params: Any) -> Tensors:
    return _reduce("reduce_sum", **params)


@_builds
def reduce_max(**params: Any) -> Tensors:
    return _reduce("reduce_max", **params)


@_builds
def softmax(shape: Any, axis: Any, dtype: str) -> Tensors:
    te, topi = _tvm()
    data = te.placeholder(shape, dtype, name="data")
    return [data, topi.nn.softmax(data, axis=resolve_axes("softmax", shape, axis)[0])]


@_builds
def layer_norm(shape: Any, dtype: str) -> Tensors:
    """Build layer normalisation without topi, whose own differs between TVM's two lines."""
    te, _ = _tvm()
    import tvm

    *rows, width = shape
    data = te.placeholder(shape, dtype, name="data")
    gamma, beta = (te.placeholder((width,), dtype, name=name) for name in ("gamma", "beta"))
    count = (tvm.tir if hasattr(tvm, "tir") else tvm.tirx).const(float(width), dtype)
    first, second = (te.reduce_axis((0, width), name="k") for _ in range(2))
    total = te.compute(rows, lambda *i: te.sum(data[(*i, first)], first), name="total")

    def centred(*i: Any) -> Any:
        return data[i] - total[i[:-1]] / count

    spread = te.compute(rows, lambda *i: te.sum(centred(*i, second) * centred(*i, second), second), name="spread")

    def normal(*i: Any) -> Any:
        scale = te.sqrt(spread[i[:-1]] / count + EPSILON)
        return centred(*i) / scale * gamma[i[-1]] + beta[i[-1]]

    return [data, gamma, beta, te.compute(shape, normal, name="norm")]


@_builds
def relu(shape: Any, dtype: str) -> Tensors:
    te, topi = _tvm()
    data = te.placeholder(shape, dtype, name="data")
    return [data, topi.nn.relu(data)]


@_builds
def add(shape: Any, other: Any, dtype: str) -> Tensors:
    te, topi = _tvm()
    a = te.placeholder(shape, dtype, name="A")
    b = te.placeholder(other or shape, dtype, name="B")
    return [a, b, topi.add(a, b)]


@_builds
def transpose(shape: Any, perm: Any, dtype: str) -> Tensors:
    te, topi = _tvm()
    data = te.placeholder(shape, dtype, name="data")
    return [data, topi.transpose(data, perm)]
