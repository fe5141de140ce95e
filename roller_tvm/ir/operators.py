"""Named operators as tensor expressions, for planning without TVM.

``operator("matmul", m=64, n=32, k=16)`` builds one; ``parse_operator`` does so from a command line.
Axis orders follow TVM's own operators, so that a plan for one fits the other.
"""

from __future__ import annotations

from .contractions import (
    batch_matmul,
    conv2d_nchw,
    conv2d_nhwc,
    dense,
    depthwise_conv2d_nchw,
    depthwise_conv2d_nhwc,
    matmul,
)
from .named import OPERATORS, Operator, lookup, normalize, operator, operator_names, parse_operator
from .parameters import parse_params
from .pointwise import (
    add,
    avg_pool2d_nchw,
    global_avg_pool2d_nchw,
    layer_norm,
    max_pool2d_nchw,
    reduce_max,
    reduce_sum,
    relu,
    resolve_axes,
    softmax,
    transpose,
)

__all__ = [
    "OPERATORS", "Operator", "add", "avg_pool2d_nchw", "batch_matmul", "conv2d_nchw", "conv2d_nhwc", "dense",
    "depthwise_conv2d_nchw", "depthwise_conv2d_nhwc", "global_avg_pool2d_nchw", "layer_norm", "lookup", "matmul",
    "max_pool2d_nchw", "normalize", "operator", "operator_names", "parse_operator", "parse_params", "reduce_max",
    "reduce_sum", "relu", "resolve_axes", "softmax", "transpose",
]  # fmt: skip
