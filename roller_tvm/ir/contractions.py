"""Named convolutions and matrix products."""

from __future__ import annotations

from ..errors import BadInput
from .affine import Index
from .blocks import Pair, grouped, index, padded, read, reduce, slide, spatial, terms, windows, with_epilogue
from .expression import TensorExpression
from .named import alike, named
from .parameters import Padding
from .stage import REDUCE, Axis, Stage, Tensor


def _conv2d(
    name: str, n: int, c: int, h: int, w: int, f: int, kh: int, kw: int,
    stride: Pair = (1, 1), padding: Padding = "VALID", dilation: Pair = (1, 1), groups: int = 1,
    dtype: str = "float32", bias: bool = False, relu: bool = False,
) -> TensorExpression:  # fmt: skip
    for channels, size in (("c", c), ("f", f)):
        if size % groups:
            raise BadInput(
                f"'groups'={groups} does not divide '{channels}'={size}",
                name,
                f"give groups a divisor of {size}",
            )
    order = name[-4:]
    high, wide = windows(name, h, w, kh, kw, stride, dilation, padding)
    sizes = {"n": n, "c": c, "h": h, "w": w}
    pad = padded(order, sizes, high, wide, dtype)
    depth = c // groups
    filters, group, filter_index = grouped("f", f, f // groups)
    out = {"n": (Axis("n", n),), "c": filters, "h": (Axis("oh", high.out),), "w": (Axis("ow", wide.out),)}
    window = {"c": Axis("c", depth, REDUCE), "h": Axis("kh", kh, REDUCE), "w": Axis("kw", kw, REDUCE)}
    channel = Index.of({**dict((a, x * depth) for a, x in group.terms), "c": 1})
    source = {"n": index("n"), "c": channel, "h": slide("oh", "kh", high), "w": slide("ow", "kw", wide)}
    if order == "nchw":
        weight, taps = (f, depth, kh, kw), terms(filter_index, "c", "kh", "kw")
    else:
        weight, taps = (kh, kw, depth, f), terms("kh", "kw", "c", filter_index)
    axes = [a for o in order for a in out[o]] + [window[o] for o in order if o != "n"]
    reads = (read("pad" if pad else "data", (source[o] for o in order)), read("weight", taps))
    conv = Stage("conv2d", tuple(axes), reads, dtype, (("fma", 1),), "sum")
    inputs = [Tensor("data", tuple(sizes[o] for o in order), dtype), Tensor("weight", weight, dtype)]
    return with_epilogue(name, inputs, [*pad, conv], order.index("c"), bias, relu)


conv2d_nchw, conv2d_nhwc = alike(
    _conv2d,
    conv2d_nchw="2-D convolution, data NCHW, weights OIHW, optionally in groups; `k` stands for a square window.",
    conv2d_nhwc="2-D convolution, data NHWC, weights HWIO, optionally in groups; `k` stands for a square window.",
)


def _depthwise(
    name: str, n: int, c: int, h: int, w: int, kh: int, kw: int,
    stride: Pair = (1, 1), padding: Padding = "VALID", dilation: Pair = (1, 1), multiplier: int = 1,
    dtype: str = "float32", bias: bool = False, relu: bool = False,
) -> TensorExpression:  # fmt: skip
    order = name[-4:]
    high, wide = windows(name, h, w, kh, kw, stride, dilation, padding)
    sizes = {"n": n, "c": c, "h": h, "w": w}
    pad = padded(order, sizes, high, wide, dtype)
    channels: tuple[Axis, ...] = (Axis("c", c),)
    channel, copy = Index.axis("c"), Index.of({})
    if multiplier > 1:
        channels, channel, _ = grouped("c", c * multiplier, multiplier)
        copy = Index.axis(channels[-1].name)
        if len(channels) == 1:
            copy = Index.axis("c")
    out = {"n": (Axis("n", n),), "c": channels, "h": (Axis("oh", high.out),), "w": (Axis("ow", wide.out),)}
    source = {"n": index("n"), "c": channel, "h": slide("oh", "kh", high), "w": slide("ow", "kw", wide)}
    if order == "nchw":
        weight, taps = (c, multiplier, kh, kw), terms(channel, copy, "kh", "kw")
    else:
        weight, taps = (kh, kw, c, multiplier), terms("kh", "kw", channel, copy)
    axes = [a for o in order for a in out[o]] + [Axis("kh", kh, REDUCE), Axis("kw", kw, REDUCE)]
    reads = (read("pad" if pad else "data", (source[o] for o in order)), read("weight", taps))
    conv = Stage("depthwise_conv2d", tuple(axes), reads, dtype, (("fma", 1),), "sum")
    inputs = [Tensor("data", tuple(sizes[o] for o in order), dtype), Tensor("weight", weight, dtype)]
    return with_epilogue(name, inputs, [*pad, conv], order.index("c"), bias, relu)


depthwise_conv2d_nchw, depthwise_conv2d_nhwc = alike(
    _depthwise,
    depthwise_conv2d_nchw="Depthwise convolution, data NCHW, weights C M KH KW; `k` stands for a square window.",
    depthwise_conv2d_nhwc="Depthwise convolution, data NHWC, weights KH KW C M; `k` stands for a square window.",
)


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
    axes = (*spatial({**batch, "m": m, "n": n}), *reduce({"k": k}))
    stage = Stage("matmul", axes, (read("A", left), read("B", right)), dtype, (("fma", 1),), "sum")
    return with_epilogue(name, inputs, [stage], len(batch) + 1, bias, relu)


@named
def matmul(
    m: int, n: int, k: int, layout: str = "NN", dtype: str = "float32", bias: bool = False, relu: bool = False
) -> TensorExpression:
    """Matrix product (m,k) x (k,n); layout NT holds the second operand as (n,k), TN the first as (k,m)."""
    return _product("matmul", {}, m, n, k, layout, dtype, bias, relu)


@named
def dense(
    m: int, n: int, k: int, dtype: str = "float32", bias: bool = False, relu: bool = False
) -> TensorExpression:
    """Fully connected layer: data (m,k), weights (n,k)."""
    return _product("dense", {}, m, n, k, "NT", dtype, bias, relu)


@named
def batch_matmul(
    b: int, m: int, n: int, k: int, layout: str = "NN", dtype: str = "float32", bias: bool = False, relu: bool = False
) -> TensorExpression:
    """`b` independent matrix products; layouts as for matmul."""
    return _product("batch_matmul", {"b": b}, m, n, k, layout, dtype, bias, relu)
