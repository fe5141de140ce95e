"""Products and convolutions of float16 in torch's programs: summed in float32, as torch sums them.

TVM's importer gives them results of float32, to which it cannot add a bias of float16; plain products it sums
in float16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

#: Operator -> TVM's method for it, and the place of the bias among its arguments.
BIASED = {
    "addmm.default": ("_addmm", 0), "baddbmm.default": ("_baddbmm", 0), "linear.default": ("_linear", 2),
    "conv1d.default": ("_conv1d", 2), "conv2d.default": ("_conv2d", 2), "conv3d.default": ("_conv3d", 2),
    "conv_transpose1d.default": ("_conv_transpose1d", 2), "convolution.default": ("_convolution", 2),
}  # fmt: skip
PRODUCTS = ("mm.default", "bmm.default", "matmul.default")
_HALF = "torch.float16"


def converters(program: Any) -> dict[str, Callable[..., Any]]:
    """Return converters for TVM's importer, of a node and the importer to Relax; none if nothing is of float16."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    if not any(str(getattr(value, "dtype", "")) == _HALF for value in values):
        return {}
    biased = {name: partial(_biased, *told) for name, told in BIASED.items()}
    return biased | dict.fromkeys(PRODUCTS, _product)


def _half(node: Any) -> str:
    """Return the type of a node's result if it is float16, else ''."""
    dtype = str(node.meta["val"].dtype)
    return dtype.removeprefix("torch.") if dtype == _HALF else ""


def _biased(method: str, place: int, node: Any, importer: Any) -> Any:
    from tvm import relax

    dtype, own = _half(node), getattr(importer, method)
    if not dtype:
        return own(node)
    bias = node.args[place] if len(node.args) > place else None
    if bias is None:
        return importer.block_builder.emit(relax.op.astype(own(node), dtype))
    before = importer.env[bias]
    importer.env[bias] = importer.block_builder.emit(relax.op.astype(before, "float32"))
    try:
        return importer.block_builder.emit(relax.op.astype(own(node), dtype))
    finally:
        importer.env[bias] = before


def _product(node: Any, importer: Any) -> Any:
    from tvm import relax

    emit, dtype = importer.block_builder.emit, _half(node)
    left, right = (importer.env[one] for one in node.args)
    if not dtype:
        return emit(relax.op.matmul(left, right))
    return emit(relax.op.astype(emit(relax.op.matmul(left, right, out_dtype="float32")), dtype))
