"""The named operators of ``ir.operators`` as te tensors, by topi where topi has them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ..ir.blocks import windows
from ..ir.operators import lookup, normalize, resolve_axes

Tensors = list[Any]
Build = Callable[[Any], Tensors]
#: Added to a variance, as networks do.
EPSILON = 1e-5
_BUILDERS: dict[str, Build] = {}


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
    name = lookup(name).name
    return _BUILDERS[name](SimpleNamespace(name=name, **normalize(name, params)))


def _builds(*names: str) -> Callable[[Build], Build]:
    """Enter a function from an operator's parameters, its `name` among them, to its tensors, under these names."""

    def enter(build: Build) -> Build:
        _BUILDERS.update(dict.fromkeys(names, build))
        return build

    return enter


def _tvm() -> tuple[Any, Any]:
    from tvm import te, topi

    return te, topi


def _epilogue(tensors: Tensors, channel: int, p: Any) -> Tensors:
    te, topi = _tvm()
    *inputs, out = tensors
    if p.bias:
        operand = te.placeholder((out.shape[channel],), out.dtype, name="bias")
        product, inputs = out, [*inputs, operand]
        out = te.compute(out.shape, lambda *i: product[i] + operand[i[channel]], name="bias_add")
    if p.relu:
        out = topi.nn.relu(out)
    return [*inputs, out]


def _pads(p: Any) -> list[int]:
    """Return the padding in topi's order: top, left, bottom, right."""
    high, wide = windows("", p.h, p.w, p.kh, p.kw, p.stride, p.dilation, p.padding)
    return [high.before, wide.before, high.after, wide.after]


def _images(p: Any, layout: str) -> Any:
    te, _ = _tvm()
    sizes = {"N": p.n, "C": p.c, "H": p.h, "W": p.w}
    return te.placeholder([sizes[d] for d in layout], p.dtype, name="data")


@_builds("conv2d_nchw", "conv2d_nhwc")
def _conv2d(p: Any) -> Tensors:
    te, topi = _tvm()
    layout, depth = p.name[-4:].upper(), p.c // p.groups
    data = _images(p, layout)
    kernel = {"NCHW": (p.f, depth, p.kh, p.kw), "NHWC": (p.kh, p.kw, depth, p.f)}[layout]
    weight = te.placeholder(kernel, p.dtype, name="weight")
    out = topi.nn.conv(data, weight, p.stride, _pads(p), p.dilation, p.groups, layout, out_dtype=p.dtype)
    return _epilogue([data, weight, out], layout.index("C"), p)


@_builds("depthwise_conv2d_nchw", "depthwise_conv2d_nhwc")
def _depthwise(p: Any) -> Tensors:
    te, topi = _tvm()
    layout = p.name[-4:].upper()
    data = _images(p, layout)
    kernel = {"NCHW": (p.c, p.multiplier, p.kh, p.kw), "NHWC": (p.kh, p.kw, p.c, p.multiplier)}[layout]
    weight = te.placeholder(kernel, p.dtype, name="weight")
    compute = topi.nn.depthwise_conv2d_nchw if layout == "NCHW" else topi.nn.depthwise_conv2d_nhwc
    out = compute(data, weight, p.stride, _pads(p), p.dilation, p.dtype)
    return _epilogue([data, weight, out], layout.index("C"), p)


@_builds("matmul", "dense", "batch_matmul")
def _product(p: Any) -> Tensors:
    te, topi = _tvm()
    batch, layout = ((p.b,) if p.name == "batch_matmul" else ()), ("NT" if p.name == "dense" else p.layout)
    left = te.placeholder((*batch, *((p.m, p.k) if layout[0] == "N" else (p.k, p.m))), p.dtype, name="A")
    right = te.placeholder((*batch, *((p.k, p.n) if layout[1] == "N" else (p.n, p.k))), p.dtype, name="B")
    compute = topi.nn.batch_matmul if batch else topi.nn.matmul
    out = compute(left, right, None, p.dtype, layout[0] == "T", layout[1] == "T")
    return _epilogue([left, right, out], len(batch) + 1, p)


@_builds("avg_pool2d_nchw", "max_pool2d_nchw")
def _pool(p: Any) -> Tensors:
    _, topi = _tvm()
    data, sides = _images(p, "NCHW"), (p.kh, p.kw)
    return [data, topi.nn.pool2d(data, sides, p.stride, p.dilation, _pads(p), p.name[:3], False, "NCHW",
                                 count_include_pad=False)]  # fmt: skip


@_builds("global_avg_pool2d_nchw")
def _global_pool(p: Any) -> Tensors:
    _, topi = _tvm()
    data = _images(p, "NCHW")
    return [data, topi.nn.global_pool(data, "avg", "NCHW")]


@_builds("reduce_sum", "reduce_max", "softmax", "relu", "transpose")
def _of_one(p: Any) -> Tensors:
    te, topi = _tvm()
    data = te.placeholder(p.shape, p.dtype, name="data")
    if p.name == "relu":
        return [data, topi.nn.relu(data)]
    if p.name == "transpose":
        return [data, topi.transpose(data, p.perm)]
    axes = list(resolve_axes(p.name, p.shape, p.axis))
    if p.name == "softmax":
        return [data, topi.nn.softmax(data, axis=axes[0])]
    return [data, {"reduce_sum": topi.sum, "reduce_max": topi.max}[p.name](data, axes, p.keepdims)]


@_builds("add")
def _add(p: Any) -> Tensors:
    te, topi = _tvm()
    a = te.placeholder(p.shape, p.dtype, name="A")
    b = te.placeholder(p.other or p.shape, p.dtype, name="B")
    return [a, b, topi.add(a, b)]


@_builds("layer_norm")
def _layer_norm(p: Any) -> Tensors:
    """Build layer normalisation without topi, whose own differs between TVM's two lines."""
    te, _ = _tvm()
    import tvm

    shape, dtype = p.shape, p.dtype
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
