"""The tensor expression of a part of an operator, for the model: products, convolutions and softmax as they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..ir import TensorExpression
from ..ir.operators import operator

Shape = tuple[int, ...]


def expression_of(
    kind: str, attributes: Mapping[str, Any], ins: tuple[Shape, ...], outs: tuple[Shape, ...]
) -> TensorExpression | None:
    """Return the expression of an operator on these shapes; None for an operator whose time is that of its memory.

    Examples
    --------
    >>> expression_of("MatMul", {}, ((8, 64), (64, 32)), ((8, 32),)).anchor.flops
    32768
    """
    if kind == "MatMul" and len(ins[0]) > 1 and len(ins[1]) > 1:
        a, b, out = ins[0], ins[1], outs[0]
        batch = math.prod(b[:-2])
        if batch == 1:
            return operator("matmul", m=math.prod(out[:-1]), n=out[-1], k=a[-1])
        return operator("batch_matmul", b=math.prod(out[:-2]), m=out[-2], n=out[-1], k=a[-1])
    if kind == "Gemm":
        return operator("matmul", m=outs[0][0], n=outs[0][1], k=math.prod(ins[0]) // outs[0][0])
    if kind == "Conv" and len(ins[0]) == 4:
        return _conv(attributes, ins, outs[0])
    if kind in ("Softmax", "LogSoftmax"):
        return operator("softmax", shape=ins[0], axis=attributes.get("axis", -1))
    return None


def _conv(attributes: Mapping[str, Any], ins: tuple[Shape, ...], out: Shape) -> TensorExpression | None:
    channels, weight = ins[0][1], ins[1]
    stride, dilation = (tuple(attributes.get(key) or (1, 1)) for key in ("strides", "dilations"))
    high, wide = ((out[d + 2] - 1) * stride[d] + (weight[d + 2] - 1) * dilation[d] + 1 for d in (0, 1))
    sizes = {"n": out[0], "c": channels, "h": high, "w": wide, "kh": weight[2], "kw": weight[3]}
    window = {"stride": stride, "dilation": dilation}
    if weight[1] == 1 and channels == out[1] > 1:
        return operator("depthwise_conv2d_nchw", **sizes, **window)
    if weight[1] != channels:  # in groups: the part of a node has fewer of them
        return operator("conv2d_nchw", **sizes, f=out[1], groups=channels // weight[1], **window)
    return operator("conv2d_nchw", **sizes, f=out[1], **window)
