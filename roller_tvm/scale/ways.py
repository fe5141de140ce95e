"""The axes along which nodes may share an operator of ONNX, by its kind, attributes and shapes. Needs no onnx."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .graph import Way
from .placement import Window

Shape = tuple[int, ...]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


UNARY = _names(
    "Abs Acos Asin Atan BitwiseNot Cast Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity "
    "IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt "
    "Tan Tanh ThresholdedRelu"
)
BROADCAST = _names(
    "Add And BitwiseAnd BitwiseOr BitwiseXor Clip Div Equal Expand Greater GreaterOrEqual Less LessOrEqual Max Min "
    "Mod Mul Or Pow PRelu Sub Where Xor"
)
RESHAPED = _names("Flatten Reshape Squeeze Unsqueeze")
REDUCED = _names(
    "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
)
#: Operators that do something along one axis and nothing along the others; their attribute's default.
ALONG = {"Softmax": -1, "LogSoftmax": -1, "Hardmax": -1, "Concat": None, "Split": 0, "CumSum": None, "TopK": -1}
#: Those whose axes from `axis` on are reduced.
NORMS = _names("LayerNormalization RMSNormalization")


@dataclass(frozen=True)
class Node:
    """An operator as ONNX has it.

    Attributes
    ----------
    kind : str
    attributes : mapping
    ins, outs : tuple of shapes
        None for an input that is left out.
    constants : mapping of number to array
        Inputs that are known.
    """

    kind: str
    attributes: Mapping[str, Any]
    ins: tuple[Shape | None, ...]
    outs: tuple[Shape, ...]
    constants: Mapping[int, Any]

    def shape(self, number: int) -> Shape:
        shape = self.ins[number]
        assert shape is not None
        return shape

    def axes(self, key: str, number: int, rank: int) -> tuple[int, ...] | None:
        """Return axes that stand in an attribute or a constant input, from 0; None if they are unknown."""
        found = self.attributes.get(key)
        if found is None and len(self.ins) > number and self.ins[number] is not None:
            if number not in self.constants:
                return None
            found = np.atleast_1d(self.constants[number]).tolist()
        if found is None:
            return ()
        return tuple([int(a) % rank for a in ([found] if isinstance(found, int) else found)]) if rank else ()

    def way(
        self, extent: int, ins: Mapping[int, int], outs: Sequence[int | None], name: str = "", sums: bool = False,
        window: Window | None = None, even: bool = False,
    ) -> Way:  # fmt: skip
        """Return a way: the dimension of each input, and of each output."""
        name = name or f"dim{next(d for d in outs if d is not None)}"
        return Way(name, extent, tuple([ins.get(n) for n in range(len(self.ins))]), tuple(outs), sums, window, even)


def ways_of(node: Node) -> tuple[Way, ...]:
    """Return the ways to share an operator: none first, then an axis each.

    Examples
    --------
    >>> [way.axis for way in ways_of(Node("MatMul", {}, ((16, 64), (64, 32)), ((16, 32),), {}))]
    ['', 'm', 'n', 'k']
    """
    none = Way("", 1, (None,) * len(node.ins), (None,) * len(node.outs))
    rule = _rule(node.kind)
    found = rule(node) if rule is not None and node.ins and node.ins[0] is not None else ()
    return (none, *(way for way in found if way.extent > 1))


def _rule(kind: str) -> Callable[[Node], Iterator[Way]] | None:
    if kind in UNARY or kind in BROADCAST:
        return _broadcast
    for kinds, rule in ((RESHAPED, _reshape), (REDUCED, _reduce), (ALONG, _along), (NORMS, _norm)):
        if kind in kinds:
            return rule
    return {"MatMul": _matmul, "Gemm": _gemm, "Transpose": _transpose, "Gather": _gather, "Slice": _slice,
            "Conv": _conv, "MaxPool": _pool, "AveragePool": _pool, "GlobalAveragePool": _channels,
            "GlobalMaxPool": _channels, "BatchNormalization": _batch_norm}.get(kind)  # fmt: skip


def _broadcast(node: Node) -> Iterator[Way]:
    out = node.outs[0]
    shapes = {n: s for n, s in enumerate(node.ins) if s is not None and not (node.kind == "Expand" and n)}
    for dim, extent in enumerate(out):
        ins = {}
        for number, shape in shapes.items():
            own = dim - (len(out) - len(shape))
            if own >= 0 and shape[own] == extent:
                ins[number] = own
        if ins:
            yield node.way(extent, ins, [dim])


def _reshape(node: Node) -> Iterator[Way]:
    shape, out = node.shape(0), node.outs[0]
    source = target = 0
    while source < len(shape) and target < len(out):
        first, second = source, target
        have, want = shape[source], out[target]
        source, target = source + 1, target + 1
        while have != want:
            if have < want:
                if source == len(shape):
                    return
                have *= shape[source]
                source += 1
            else:
                if target == len(out):
                    return
                want *= out[target]
                target += 1
        first = next((d for d in range(first, source) if shape[d] > 1), first)
        second = next((d for d in range(second, target) if out[d] > 1), second)
        common = math.gcd(shape[first], out[second])
        yield node.way(common, {0: first}, [second], even=shape[first] != out[second])


def _reduce(node: Node) -> Iterator[Way]:
    shape = node.shape(0)
    single = node.kind in ("ArgMax", "ArgMin")
    axes = ((int(node.attributes.get("axis", 0)) % len(shape),) if single else node.axes("axes", 1, len(shape)))
    if axes is None or (not axes and node.attributes.get("noop_with_empty_axes")):
        return
    axes = axes or tuple(range(len(shape)))
    keep = node.attributes.get("keepdims", 1)
    for dim, extent in enumerate(shape):
        if dim not in axes:
            yield node.way(extent, {0: dim}, [dim if keep else dim - sum(a < dim for a in axes)])
        elif node.kind == "ReduceSum":
            yield node.way(extent, {0: dim}, [None], f"sum{dim}", sums=True)


def _along(node: Node) -> Iterator[Way]:
    shape = node.shape(0)
    axis = node.attributes.get("axis", ALONG[node.kind])
    if node.kind == "CumSum":
        axis = int(node.constants[1]) if 1 in node.constants else None
    if axis is None:
        return
    axis %= len(shape)
    tensors = range(len(node.ins)) if node.kind == "Concat" else (0,)
    for dim, extent in enumerate(shape):
        if dim != axis:
            yield node.way(extent, dict.fromkeys(tensors, dim), [dim] * len(node.outs))


def _norm(node: Node) -> Iterator[Way]:
    axis = int(node.attributes.get("axis", -1)) % len(node.shape(0))
    for dim in range(axis):
        yield node.way(node.shape(0)[dim], {0: dim}, [dim] * len(node.outs))


def _transpose(node: Node) -> Iterator[Way]:
    order = node.attributes.get("perm") or list(reversed(range(len(node.shape(0)))))
    for dim, source in enumerate(order):
        yield node.way(node.outs[0][dim], {0: source}, [dim])


def _gather(node: Node) -> Iterator[Way]:
    shape, index = node.shape(0), node.shape(1)
    axis = int(node.attributes.get("axis", 0)) % len(shape)
    for dim, extent in enumerate(shape):
        if dim != axis:
            yield node.way(extent, {0: dim}, [dim if dim < axis else dim - 1 + len(index)])
    for dim, extent in enumerate(index):
        yield node.way(extent, {1: dim}, [axis + dim], name=f"index{dim}")


def _slice(node: Node) -> Iterator[Way]:
    shape, out = node.shape(0), node.outs[0]
    axes = node.axes("axes", 3, len(shape))
    if axes is None:
        return
    for dim, extent in enumerate(shape):
        if axes and dim not in axes:
            yield node.way(extent, {0: dim}, [dim])
    assert len(out) == len(shape)


def _matmul(node: Node) -> Iterator[Way]:
    a, b, out = node.shape(0), node.shape(1), node.outs[0]
    if len(a) < 2 or len(b) < 2:
        return
    rank = len(out)
    for dim in range(rank - 2):
        ins = {}
        for number, shape in ((0, a), (1, b)):
            own = dim - (rank - len(shape))
            if own >= 0 and shape[own] == out[dim]:
                ins[number] = own
        yield node.way(out[dim], ins, [dim], name=f"b{dim}")
    yield node.way(out[-2], {0: len(a) - 2}, [rank - 2], name="m")
    yield node.way(out[-1], {1: len(b) - 1}, [rank - 1], name="n")
    yield node.way(a[-1], {0: len(a) - 1, 1: len(b) - 2}, [None], name="k", sums=True)


def _gemm(node: Node) -> Iterator[Way]:
    ta, tb = (int(node.attributes.get(key, 0)) for key in ("transA", "transB"))
    a, out = node.shape(0), node.outs[0]
    bias = node.ins[2] if len(node.ins) > 2 else None

    def of_bias(dim: int) -> dict[int, int]:
        own = dim - 2 + len(bias) if bias is not None else -1
        return {2: own} if bias is not None and own >= 0 and bias[own] == out[dim] else {}

    yield node.way(out[0], {0: ta, **of_bias(0)}, [0], name="m")
    yield node.way(out[1], {1: 1 - tb, **of_bias(1)}, [1], name="n")
    if bias is None:
        yield node.way(a[1 - ta], {0: 1 - ta, 1: tb}, [None], name="k", sums=True)


def _windows(node: Node, kernel: Sequence[int]) -> Iterator[tuple[int, Window]]:
    """Yield each spatial dimension whose parts read parts, and its window."""
    spatial = len(kernel)
    given = node.attributes
    if given.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or given.get("ceil_mode"):
        return
    strides = given.get("strides") or [1] * spatial
    dilations = given.get("dilations") or [1] * spatial
    pads = given.get("pads") or [0] * 2 * spatial
    if given.get("auto_pad") == "VALID":
        pads = [0] * 2 * spatial
    for n in range(spatial):
        if pads[n] == pads[n + spatial] == 0 or node.kind == "Conv":  # a pool's padding is no zero
            yield n + 2, Window(node.outs[0][n + 2], kernel[n], strides[n], dilations[n], pads[n])


def _conv(node: Node) -> Iterator[Way]:
    data, weight, out = node.shape(0), node.shape(1), node.outs[0]
    groups = int(node.attributes.get("group", 1))
    has_bias = len(node.ins) > 2 and node.ins[2] is not None
    bias = {2: 0} if has_bias else {}
    yield node.way(out[0], {0: 0}, [0], name="n")
    if groups == 1:
        yield node.way(out[1], {1: 0, **bias}, [1], name="f")
        if not has_bias:
            yield node.way(data[1], {0: 1, 1: 1}, [None], name="c", sums=True)
    elif groups == data[1] == out[1]:
        yield node.way(out[1], {0: 1, 1: 0, **bias}, [1], name="c")
    for dim, window in _windows(node, weight[2:]):
        yield node.way(out[dim], {0: dim}, [dim], name="hwd"[dim - 2] if dim < 5 else f"x{dim}", window=window)


def _pool(node: Node) -> Iterator[Way]:
    if len(node.outs) > 1:
        return
    for dim in (0, 1):
        yield node.way(node.outs[0][dim], {0: dim}, [dim], name="nc"[dim])
    for dim, window in _windows(node, node.attributes["kernel_shape"]):
        yield node.way(node.outs[0][dim], {0: dim}, [dim], name="hwd"[dim - 2] if dim < 5 else f"x{dim}", window=window)


def _channels(node: Node) -> Iterator[Way]:
    for dim in (0, 1):
        yield node.way(node.outs[0][dim], {0: dim}, [dim], name="nc"[dim])


def _batch_norm(node: Node) -> Iterator[Way]:
    if len(node.outs) > 1:
        return
    for dim, extent in enumerate(node.outs[0]):
        ins = {0: dim} | ({n: 0 for n in range(1, 5)} if dim == 1 else {})
        yield node.way(extent, ins, [dim])
