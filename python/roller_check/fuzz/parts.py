"""Parts of random models as networks have them: convolutions in a row, branches, products in whole tiles, recurrences.

Single nodes hardly reach what is made of them: vector lanes of channels, Winograd's algorithm, a matrix unit, calls as
one kernel, concatenation in place. Each function adds what onnxruntime can compute of a part, and then ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from roller_check.fuzz.generate import Draft

#: Channels: whole vectors, halves of them, primes, one.
CHANNELS = (1, 3, 8, 16, 16, 17, 24, 32, 32, 32, 48, 64)
#: Rows, columns and terms of products: whole tiles of a matrix unit, primes, one.
WHOLE = (1, 16, 31, 32, 64, 64, 96, 128, 128, 192, 256, 257)
PIXELS = (1, 4, 7, 8, 13, 14, 16, 28)


class Refused(Exception):
    """onnxruntime does not compute a node, or its result is too large."""


def one(d: Draft, kind: str, inputs: list[str], **attributes: Any) -> str:
    """Add a node; return its result."""
    if not (found := d.add(kind, inputs, **attributes)):
        raise Refused
    return found[0]


def ints(d: Draft, *values: int) -> str:
    return d.given(np.array(values, "int64"))


def weights(d: Draft, shape: tuple[int, ...], terms: int, dtype: str) -> str:
    """Return a constant whose products with numbers about one are about one."""
    return d.given((d.rng.standard_normal(shape) * max(terms, 1) ** -0.5).astype(dtype))


def picture(d: Draft) -> str:
    """Return a tensor of rank 4: one of the last results, or a new input."""
    fitting = [n for n, v in d.made.items() if v.ndim == 4 and v.dtype.name in ("float32", "float16") and v.size]
    if fitting and d.rng.random() < 0.7:
        return str(d.pick(*fitting[-3:]))
    channels, size = int(d.pick(*CHANNELS)), int(d.pick(*PIXELS))
    return d.new((int(d.pick(1, 1, 1, 2)), channels, size, int(d.pick(size, size, *PIXELS))), dtype(d))


def dtype(d: Draft) -> str:
    return "float16" if d.rng.random() < 0.1 else "float32"


def activated(d: Draft, x: str) -> str:
    kind = d.pick("Relu", "Relu", "Clip", "Sigmoid", "HardSigmoid", "Tanh", "LeakyRelu", "PRelu", "Gelu", "")
    value = d.value(x)
    if kind == "Clip":
        return one(d, kind, [x, *(d.given(np.array(v, value.dtype)) for v in (0, 6))])
    if kind == "PRelu":
        slopes = d.rng.uniform(-1, 1, (value.shape[1], *[1] * (value.ndim - 2)) if value.ndim > 1 else ())
        return one(d, kind, [x, d.given(slopes.astype(value.dtype))])
    if kind == "Gelu":
        half, root = (d.given(np.array(v, value.dtype)) for v in (0.5, 0.5**0.5))
        inner = one(d, "Add", [one(d, "Erf", [one(d, "Mul", [x, root])]), d.given(np.array(1, value.dtype))])
        return one(d, "Mul", [one(d, "Mul", [x, half]), inner])
    if not kind:
        return x
    result = one(d, kind, [x])
    return one(d, "Mul", [x, result]) if kind in ("Sigmoid", "HardSigmoid") and d.rng.random() < 0.6 else result


def convolved(d: Draft, x: str, size: int, stride: int = 1, groups: int = 1, out: int = 0) -> str:
    value = d.value(x)
    channels, kind = value.shape[1], value.dtype.name
    out = out or groups * max(1, int(d.pick(*CHANNELS)) // groups)
    w = weights(d, (out, channels // groups, size, size), channels // groups * size * size, kind)
    more = [d.new((out,), kind, True)] if d.rng.random() < 0.5 else []
    x = one(d, "Conv", [x, w, *more], pads=[size // 2] * 4, strides=[stride] * 2, group=groups)
    if d.rng.random() < 0.3:
        parts = [d.new((out,), kind, True) for _ in range(4)]
        d.constants[parts[3]] = np.abs(d.constants[parts[3]]) + np.asarray(0.5, kind)
        x = one(d, "BatchNormalization", [x, *parts])
    return activated(d, x)


def convolutions(d: Draft) -> None:
    """Convolutions in a row: of three pixels, of one, of each channel by itself; a sum with what they began with."""
    x = first = picture(d)
    for _ in range(int(d.rng.integers(1, 4))):
        channels = d.value(x).shape[1]
        kind = d.pick("3x3", "3x3", "1x1", "1x1", "each", "strided", "groups", "gate")
        if kind == "3x3":
            x = convolved(d, x, 3)
        elif kind == "1x1":
            x = convolved(d, x, 1, int(d.pick(1, 1, 1, 2)))
        elif kind == "each":
            x = convolved(d, x, int(d.pick(3, 3, 5)), int(d.pick(1, 1, 2)), channels, channels)
        elif kind == "strided":
            x = convolved(d, x, int(d.pick(3, 5, 7)), 2)
        elif kind == "groups":
            x = convolved(d, x, 3, 1, int(d.pick(*(g for g in (1, 2, 4, 8) if channels % g == 0))))
        else:
            few = convolved(d, one(d, "GlobalAveragePool", [x]), 1)
            x = one(d, "Mul", [x, one(d, "HardSigmoid", [convolved(d, few, 1, out=channels)])])
    if d.value(x).shape == d.value(first).shape and d.value(x).dtype == d.value(first).dtype and x != first:
        one(d, "Add", d.pick([x, first], [first, x]))


def branches(d: Draft) -> None:
    """Branches of one tensor, joined; what reads the joined tensor; perhaps joined once more."""
    x = picture(d)
    for _ in range(int(d.pick(1, 1, 2))):
        parts = []
        for _ in range(int(d.pick(2, 2, 3, 4))):
            kind = d.pick("conv", "conv", "pool", "same", "unary")
            if kind == "conv":
                parts.append(convolved(d, x, int(d.pick(1, 1, 3))))
            elif kind == "pool":
                parts.append(one(d, d.pick("MaxPool", "AveragePool"), [x], kernel_shape=[3, 3], pads=[1] * 4))
            else:
                parts.append(x if kind == "same" else activated(d, x))
        x = one(d, "Concat", parts, axis=int(d.pick(1, 1, 1, -3)))
        if d.rng.random() < 0.6:
            x = d.pick(activated, lambda d, x: convolved(d, x, 1), lambda d, x: convolved(d, x, 3), shuffled)(d, x)


def shuffled(d: Draft, x: str) -> str:
    """Channels of groups, alternately."""
    n, c, h, w = d.value(x).shape
    groups = int(d.pick(*(g for g in (1, 2, 3, 4) if c % g == 0)))
    x = one(d, "Transpose", [one(d, "Reshape", [x, ints(d, n, groups, c // groups, h, w)])], perm=[0, 2, 1, 3, 4])
    return one(d, "Reshape", [x, ints(d, n, c, h, w)])


def multiplied(d: Draft, x: str, columns: int, w: str | None = None) -> str:
    """A product by constant weights, a bias perhaps."""
    value = d.value(x)
    terms, kind = value.shape[-1], value.dtype.name
    w = w or weights(d, (terms, columns), terms, kind)
    bias = d.new((columns,), kind, True) if d.rng.random() < 0.6 else ""
    if value.ndim == 2 and d.rng.random() < 0.4:
        return one(d, "Gemm", [x, w, *([bias] if bias else [])])
    x = one(d, "MatMul", [x, w])
    return one(d, "Add", d.pick([x, bias], [bias, x])) if bias else x


def products(d: Draft) -> None:
    """Products by constants in a row; two of them may have the same weights."""
    kind, rows, terms = dtype(d), int(d.pick(*WHOLE, 512)), int(d.pick(*WHOLE))
    x = d.new((*d.pick((), (), (1,), (2,)), rows, terms), kind)
    w = weights(d, (terms, terms), terms, kind) if d.rng.random() < 0.25 else None
    for _ in range(int(d.rng.integers(1, 4))):
        x = activated(d, multiplied(d, x, int(d.pick(*WHOLE)) if w is None else terms, w))


def encoder(d: Draft) -> None:
    """Attention as transformers have it: heads, perhaps a mask, sums, norms and two products."""
    heads, rows, depth = int(d.pick(1, 2, 4)), int(d.pick(1, 7, 16, 32, 50)), int(d.pick(8, 16, 17, 32))
    width, batch, kind = heads * depth, int(d.pick(1, 1, 2)), dtype(d)
    x = d.new((batch, rows, width), kind)
    if d.rng.random() < 0.5:
        parts = d.add("Split", [multiplied(d, x, 3 * width), ints(d, width, width, width)], 3, axis=-1)
    else:
        parts = [multiplied(d, x, width) for _ in range(3)]
    if len(parts) < 3:
        raise Refused
    q, k, v = (
        one(d, "Transpose", [one(d, "Reshape", [p, ints(d, batch, rows, heads, depth)])], perm=perm)
        for p, perm in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
    )
    scores = one(d, d.pick("Mul", "Div"), [one(d, "MatMul", [q, k]), d.given(np.array(depth**0.5, kind))])
    if d.rng.random() < 0.5:
        ahead = np.triu(np.full((rows, rows), -100.0), 1).astype(kind)
        scores = one(d, "Add", [scores, d.given(ahead)])
    y = one(d, "MatMul", [one(d, "Softmax", [scores], axis=-1), v])
    y = one(d, "Reshape", [one(d, "Transpose", [y], perm=[0, 2, 1, 3]), ints(d, batch, rows, width)])
    if d.rng.random() < 0.7:
        y = one(d, "Add", [multiplied(d, y, width), x])
    if d.rng.random() < 0.7:
        scale, shift = (d.new((width,), kind, True) for _ in range(2))
        y = one(d, "LayerNormalization", [y, scale, shift], axis=-1)
    if d.rng.random() < 0.5:
        one(d, "Add", [multiplied(d, activated(d, multiplied(d, y, 2 * width)), width), y])


def recurrence(d: Draft) -> None:
    """An LSTM, a GRU or a plain recurrence."""
    kind, gates = d.pick(("LSTM", 4), ("LSTM", 4), ("GRU", 3), ("RNN", 1))
    way, units = d.pick("forward", "forward", "reverse", "bidirectional"), int(d.pick(1, 8, 16, 17, 32, 64))
    steps, batch, features = int(d.pick(1, 2, 5, 16)), int(d.pick(1, 1, 3)), int(d.pick(1, 7, 16, 32))
    ways = 2 if way == "bidirectional" else 1
    x = d.new((steps, batch, features), "float32")
    w, r = (weights(d, (ways, gates * units, n), n, "float32") for n in (features, units))
    b = d.new((ways, 2 * gates * units), "float32", True) if d.rng.random() < 0.7 else ""
    states = [d.new((ways, batch, units), "float32") for _ in range(2 if kind == "LSTM" else 1)]
    more = ["", *states] if d.rng.random() < 0.3 else []
    results = d.add(kind, [x, w, r, b, *more] if b or more else [x, w, r], 3 if kind == "LSTM" else 2,
                    hidden_size=units, direction=way,
                    **({"linear_before_reset": int(d.rng.integers(2))} if kind == "GRU" else {}))  # fmt: skip
    if results and d.rng.random() < 0.5:
        multiplied(d, one(d, "Squeeze", [results[1], ints(d, 0)]) if ways == 1 else results[1], int(d.pick(3, 16, 64)))


def copies(d: Draft) -> None:
    """One operator several times: of one tensor, with other attributes."""
    x = picture(d) if d.rng.random() < 0.5 else d.source(int(d.rng.integers(2, 5)), ("float32",))
    rank, square = d.value(x).ndim, d.value(x).ndim == 4
    kind = d.pick("Softmax", "ReduceMax", "Transpose", "Concat", "LeakyRelu", *(["MaxPool", "Conv", "LRN"] * square))
    for _ in range(int(d.rng.integers(2, 5))):
        axis, size = int(d.rng.integers(rank)), int(d.pick(1, 3, 5))
        if kind == "Softmax":
            one(d, kind, [x], axis=axis)
        elif kind == "ReduceMax":
            one(d, kind, [x], axes=[axis], keepdims=int(d.rng.integers(2)))
        elif kind == "Transpose":
            one(d, kind, [x], perm=[int(a) for a in d.rng.permutation(rank)])
        elif kind == "Concat":
            one(d, kind, [x, x], axis=axis)
        elif kind == "LeakyRelu":
            one(d, kind, [x], alpha=float(np.float32(d.rng.uniform(0, 1))))
        elif kind == "MaxPool":
            one(d, kind, [x], kernel_shape=[size, size], pads=[size // 2] * 4, strides=[int(d.pick(1, 2))] * 2)
        elif kind == "LRN":
            one(d, kind, [x], size=size, alpha=float(np.float32(d.rng.uniform(0, 1))))
        else:
            convolved(d, x, size, int(d.pick(1, 2)))


def integers(d: Draft) -> None:
    """Numbers as bytes and back: a product of bytes, or what lies between."""
    scale, zero = d.given(np.float32(0.02)), d.given(np.array(int(d.pick(0, 3)), d.pick("uint8", "int8")))
    bytes_ = d.constants[zero].dtype.name
    if (kind := d.pick("MatMulInteger", "QuantizeLinear", "QuantizeLinear")) == "MatMulInteger":
        rows, terms, columns = (int(d.pick(*WHOLE)) for _ in range(3))
        x, w = d.new((rows, terms), bytes_), d.new((terms, columns), "int8", True)
        one(d, "Cast", [one(d, kind, [x, w, zero])], to=1)
    else:
        x = one(d, "DequantizeLinear", [one(d, kind, [d.source(None, ("float32",)), scale, zero]), scale, zero])
        activated(d, x)


PARTS: tuple[Callable[[Draft], None], ...] = (
    convolutions, convolutions, convolutions, branches, branches, products, products, encoder, recurrence, copies,
    integers,
)  # fmt: skip


def part(d: Draft) -> None:
    """Add one of these parts, or what onnxruntime computes of it."""
    with contextlib.suppress(Refused):
        d.pick(*PARTS)(d)
