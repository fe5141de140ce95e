"""Models of many small operators, of the kinds that Rammer (OSDI'20) was measured with: real sizes, batch 1.

Scales and shifts of batch normalisation stand in the convolutions already, as inference has them; recurrent networks
are unrolled. ``scale`` divides channels and lengths for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

Make = Callable[["Net"], Any]


class Net:
    """A Relax function being written: weights are parameters, named and remembered with their shapes."""

    def __init__(self, scale: int = 1) -> None:
        self.scale = scale
        self.builder = relax.BlockBuilder()
        self.params: list[Any] = []
        self.shapes: dict[str, tuple[int, ...]] = {}

    def thin(self, channels: int, least: int = 4) -> int:
        """Channels, or a length, by the scale."""
        return max(least, channels // self.scale)

    def param(self, name: str, *shape: int) -> Any:
        var = relax.Var(name, relax.TensorType(shape, "float32"))
        self.params.append(var)
        self.shapes[name] = shape
        return var

    def weight(self, *shape: int) -> Any:
        return self.param(f"w{len(self.params)}", *shape)

    def emit(self, value: Any) -> Any:
        return self.builder.emit(value)

    def shape(self, x: Any) -> list[int]:
        return [int(e) for e in (x.ty if hasattr(x, "ty") and x.ty is not None else x.struct_info).shape]

    # Layers -------------------------------------------------------------------------------------------

    def conv(self, x: Any, filters: int, kernel: int | tuple[int, int], stride: int | tuple[int, int] = 1,
             padding: Any = None, relu: bool = True) -> Any:
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        pads = (high // 2, wide // 2) if padding is None else padding
        out = self.emit(relax.op.nn.conv2d(x, self.weight(filters, self.shape(x)[1], high, wide),
                                           strides=stride, padding=pads))
        out = self.emit(relax.op.add(out, self.weight(1, filters, 1, 1)))
        return self.relu(out) if relu else out

    def separable(self, x: Any, filters: int, kernel: int, stride: int = 1) -> Any:
        """NASNet's: ReLU, depthwise, pointwise; twice."""
        for step in (stride, 1):
            x, channels = self.relu(x), self.shape(x)[1]
            x = self.emit(relax.op.nn.conv2d(x, self.weight(channels, 1, kernel, kernel), strides=step,
                                             padding=kernel // 2, groups=channels))
            x = self.conv(x, filters, 1, relu=False)
        return x

    def dense(self, x: Any, units: int, bias: bool = True) -> Any:
        out = self.emit(relax.op.matmul(x, relax.op.permute_dims(self.weight(units, self.shape(x)[-1]))))
        return self.emit(relax.op.add(out, self.weight(units))) if bias else out

    def relu(self, x: Any) -> Any:
        return self.emit(relax.op.nn.relu(x))

    def add(self, x: Any, y: Any) -> Any:
        return self.emit(relax.op.add(x, y))

    def concat(self, *xs: Any, axis: int = 1) -> Any:
        return self.emit(relax.op.concat(list(xs), axis=axis))

    def max_pool(self, x: Any, kernel: int, stride: int = 1, padding: int = 0) -> Any:
        return self.emit(relax.op.nn.max_pool2d(x, (kernel, kernel), (stride, stride), (padding, padding)))

    def avg_pool(self, x: Any, kernel: int, stride: int = 1, padding: int = 0) -> Any:
        return self.emit(relax.op.nn.avg_pool2d(x, (kernel, kernel), (stride, stride), (padding, padding)))

    def mean(self, x: Any) -> Any:
        return self.emit(relax.op.mean(x, axis=[2, 3]))

    def part(self, x: Any, number: int, size: int) -> Any:
        """Columns of a matrix."""
        return relax.op.strided_slice(x, axes=[1], begin=[number * size], end=[(number + 1) * size])

    def finish(self, *results: Any) -> Any:
        return results[0] if len(results) == 1 else relax.Tuple(list(results))


def lstm_cell(net: Net, x: Any, h: Any, c: Any, size: int, weights: Sequence[Any]) -> tuple[Any, Any]:
    """h and c of one step; the four gates are two products."""
    wx, wh, bias = weights
    gates = net.emit(relax.op.add(relax.op.matmul(x, wx), bias))
    gates = net.emit(relax.op.add(relax.op.matmul(h, wh), gates))
    sigmoid, tanh = relax.op.sigmoid, relax.op.tanh
    kept = relax.op.multiply(sigmoid(net.part(gates, 1, size)), c)
    new = relax.op.multiply(sigmoid(net.part(gates, 0, size)), tanh(net.part(gates, 2, size)))
    c = net.emit(relax.op.add(kept, new))
    h = net.emit(relax.op.multiply(sigmoid(net.part(gates, 3, size)), tanh(c)))
    return h, c


def lstm_weights(net: Net, inputs: int, size: int) -> tuple[Any, Any, Any]:
    return net.weight(inputs, 4 * size), net.weight(size, 4 * size), net.weight(1, 4 * size)


def lstm_stack(net: Net, xs: Sequence[Any], layers: int, size: int, states: Any = None) -> tuple[list[Any], list[Any]]:
    """Outputs of the last layer, and (h, c) of each layer."""
    made = []
    for layer in range(layers):
        weights = lstm_weights(net, net.shape(xs[0])[1], size)
        h, c = states[layer] if states else (net.param(f"h{len(net.params)}", 1, size),
                                             net.param(f"c{len(net.params)}", 1, size))
        out = []
        for x in xs:
            h, c = lstm_cell(net, x, h, c, size, weights)
            out.append(h)
        xs = out
        made.append((h, c))
    return list(xs), made


# Models -----------------------------------------------------------------------------------------------


def resnext(net: Net) -> Any:
    """ResNeXt-29, 16x64d (Xie et al., CIFAR-10), its sixteen paths as operators of their own (their figure 3b)."""
    x = net.conv(net.param("x", 1, 3, 32, 32), net.thin(64), 3)
    paths = 16 if net.scale == 1 else 4
    for stage, width in enumerate((64, 128, 256)):
        for block in range(3 if net.scale == 1 else 1):
            stride, out, width_ = (2 if stage and not block else 1), net.thin(4 * width), net.thin(width)
            branches = [net.conv(net.conv(x, width_, 1), width_, 3, stride) for _ in range(paths)]
            y = net.conv(net.concat(*branches), out, 1, relu=False)
            short = x if net.shape(x)[1:] == net.shape(y)[1:] else net.conv(x, out, 1, stride, relu=False)
            x = net.relu(net.add(short, y))
    return net.finish(net.dense(net.mean(x), 10))


def _squeezed(net: Net, x: Any, filters: int, like: Any) -> Any:
    """NASNet's adjustment of a cell's other input: by a pair of strided paths where it is larger."""
    if net.shape(x)[2] == net.shape(like)[2]:
        return net.conv(net.relu(x), filters, 1, relu=False)
    x = net.relu(x)
    side = net.shape(x)[2]
    shifted = net.emit(relax.op.strided_slice(x, axes=[2, 3], begin=[1, 1], end=[side, side]))
    shifted = net.emit(relax.op.nn.pad(shifted, [0, 0, 0, 0, 0, 1, 0, 1]))
    halves = [net.conv(net.avg_pool(half, 1, 2), filters // 2, 1, relu=False) for half in (x, shifted)]
    return net.concat(*halves)


def nasnet_normal(net: Net, before: Any, x: Any, filters: int) -> Any:
    """NASNet-A's normal cell (Zoph et al., figure 4)."""
    p = _squeezed(net, before, filters, x)
    h = net.conv(net.relu(x), filters, 1, relu=False)
    parts = [
        net.add(net.separable(h, filters, 5), net.separable(p, filters, 3)),
        net.add(net.separable(p, filters, 5), net.separable(p, filters, 3)),
        net.add(net.avg_pool(h, 3, 1, 1), p),
        net.add(net.avg_pool(p, 3, 1, 1), net.avg_pool(p, 3, 1, 1)),
        net.add(net.separable(h, filters, 3), h),
    ]
    return net.concat(p, *parts)


def nasnet_reduction(net: Net, before: Any, x: Any, filters: int) -> Any:
    """NASNet-A's reduction cell."""
    p = _squeezed(net, before, filters, x)
    h = net.conv(net.relu(x), filters, 1, relu=False)
    a = net.add(net.separable(h, filters, 5, 2), net.separable(p, filters, 7, 2))
    b = net.add(net.max_pool(h, 3, 2, 1), net.separable(p, filters, 7, 2))
    c = net.add(net.avg_pool(h, 3, 2, 1), net.separable(p, filters, 5, 2))
    d = net.add(net.max_pool(h, 3, 2, 1), net.separable(a, filters, 3))
    e = net.add(net.avg_pool(a, 3, 1, 1), b)
    return net.concat(b, c, d, e)


def nasnet(net: Net) -> Any:
    """NASNet-A mobile, 4 @ 1056, 224 x 224."""
    filters, side = net.thin(44) // 4 * 4, 224 if net.scale == 1 else 32
    before = net.conv(net.param("x", 1, 3, side, side), net.thin(32), 3, 2, relu=False)
    x = before
    for width in (filters // 4, filters // 2):
        before, x = x, nasnet_reduction(net, before, x, max(2, width))
    for group in range(3):
        for _ in range(4 if net.scale == 1 else 1):
            before, x = x, nasnet_normal(net, before, x, filters * 2**group)
        if group < 2:
            before, x = x, nasnet_reduction(net, before, x, filters * 2 ** (group + 1))
    return net.finish(net.dense(net.mean(net.relu(x)), 1000 // net.scale))


def alexnet(net: Net) -> Any:
    """AlexNet as torchvision has it (one tower), 224 x 224."""
    side = 224 if net.scale == 1 else 64
    x = net.conv(net.param("x", 1, 3, side, side), net.thin(64), 11, 4, (2, 2))
    x = net.conv(net.max_pool(x, 3, 2), net.thin(192), 5)
    x = net.max_pool(x, 3, 2)
    for filters in (384, 256, 256):
        x = net.conv(x, net.thin(filters), 3)
    if net.scale == 1:
        x = net.max_pool(x, 3, 2)
    n, c, h, w = net.shape(x)
    x = net.emit(relax.op.reshape(x, (n, c * h * w)))
    for units in (4096, 4096):
        x = net.relu(net.dense(x, net.thin(units)))
    return net.finish(net.dense(x, net.thin(1000)))


def deepspeech2(net: Net) -> Any:
    """DeepSpeech2: two convolutions over half a second of 161 frequencies, five bidirectional GRUs of 800."""
    frames, size, layers = (50, 800, 5) if net.scale == 1 else (8, net.thin(800), 2)
    x = net.conv(net.param("x", 1, 1, frames, 161), net.thin(32), (11, 41), (2, 2), (5, 20))
    x = net.conv(x, net.thin(32), (11, 21), (1, 2), (5, 10))
    _, c, steps, width = net.shape(x)
    x = net.emit(relax.op.reshape(relax.op.permute_dims(x, [0, 2, 1, 3]), (steps, c * width)))
    for _ in range(layers):
        inputs = net.shape(x)[1]
        sides = []
        for backwards in (False, True):
            wx, bias = net.weight(inputs, 3 * size), net.weight(1, 3 * size)
            wh, h = net.weight(size, 3 * size), net.param(f"h{len(net.params)}", 1, size)
            every = net.emit(relax.op.add(relax.op.matmul(x, wx), bias))  # of all steps at once
            out = [None] * steps
            for step in reversed(range(steps)) if backwards else range(steps):
                a = relax.op.strided_slice(every, axes=[0], begin=[step], end=[step + 1])
                b = net.emit(relax.op.matmul(h, wh))
                h = out[step] = _gru_gates(net, a, b, h, size)
            sides.append(net.concat(*out, axis=0))
        x = net.concat(*sides, axis=1)
    return net.finish(net.emit(relax.op.nn.softmax(net.dense(x, 29))))


def _gru_gates(net: Net, a: Any, b: Any, h: Any, size: int) -> Any:
    sigmoid = relax.op.sigmoid
    update = sigmoid(relax.op.add(net.part(a, 0, size), net.part(b, 0, size)))
    reset = sigmoid(relax.op.add(net.part(a, 1, size), net.part(b, 1, size)))
    new = relax.op.tanh(relax.op.add(net.part(a, 2, size), relax.op.multiply(reset, net.part(b, 2, size))))
    return net.emit(relax.op.add(new, relax.op.multiply(update, relax.op.subtract(h, new))))


def lstm(net: Net) -> Any:
    """Eight layers of 256 over eight steps, as in Rammer's artifact."""
    layers, steps, size = (8, 8, 256) if net.scale == 1 else (2, 3, net.thin(256))
    xs, _ = lstm_stack(net, [net.param(f"x{n}", 1, size) for n in range(steps)], layers, size)
    return net.finish(xs[-1])


def lstm_long(net: Net) -> Any:
    """The same over 33 steps: more than a thousand operators."""
    layers, steps, size = (8, 33, 256) if net.scale == 1 else (2, 5, net.thin(256))
    xs, _ = lstm_stack(net, [net.param(f"x{n}", 1, size) for n in range(steps)], layers, size)
    return net.finish(xs[-1])


def seq2seq(net: Net) -> Any:
    """An encoder of eight LSTM layers over twenty words, a decoder of four that says ten, 128 wide, 30 000 words."""
    size, words = (128, 30_000) if net.scale == 1 else (net.thin(128), 64)
    said, answer = (20, 10) if net.scale == 1 else (3, 2)
    xs, states = lstm_stack(net, [net.param(f"x{n}", 1, size) for n in range(said)], 8 if net.scale == 1 else 2, size)
    ys = [net.param(f"y{n}", 1, size) for n in range(answer)]
    out, _ = lstm_stack(net, ys, 4 if net.scale == 1 else 2, size, states[-4:] if net.scale == 1 else states)
    whole = net.concat(*out, axis=0)
    return net.finish(net.dense(whole, words))


def inception(net: Net) -> Any:
    """GoogLeNet's cells 3a to 3b on 28 x 28 x 192."""
    x = net.param("x", 1, net.thin(192), 28 // min(2, net.scale), 28 // min(2, net.scale))
    for one, three, five, pool in (((64), (96, 128), (16, 32), 32), ((128), (128, 192), (32, 96), 64)):
        t = net.thin
        x = net.concat(
            net.conv(x, t(one), 1), net.conv(net.conv(x, t(three[0]), 1), t(three[1]), 3),
            net.conv(net.conv(x, t(five[0]), 1), t(five[1]), 5), net.conv(net.max_pool(x, 3, 1, 1), t(pool), 1),
        )  # fmt: skip
    return net.finish(x)


def attention(net: Net) -> Any:
    """A block of multi-head attention, heads as operators of their own: 128 words, 12 heads of 64."""
    words, heads, size = (128, 12, 64) if net.scale == 1 else (16, 3, 16)
    x = net.param("x", words, heads * size)
    made = []
    for _ in range(heads):
        q, k, v = (net.dense(x, size) for _ in range(3))
        scores = net.emit(relax.op.matmul(q, relax.op.permute_dims(k)))
        scores = net.emit(relax.op.nn.softmax(relax.op.multiply(scores, relax.const(np.float32(size**-0.5)))))
        made.append(net.emit(relax.op.matmul(scores, v)))
    return net.finish(net.add(net.dense(net.concat(*made), heads * size), x))


def nasnet_cell(net: Net) -> Any:
    """One normal cell, 28 x 28 x 44."""
    side, filters = 28 // min(4, net.scale), net.thin(44) // 2 * 2
    before, x = net.param("p", 1, filters, side, side), net.param("x", 1, filters, side, side)
    return net.finish(nasnet_normal(net, before, x, filters))


#: The paper's six, and parts of branchy models beside them.
MODELS: dict[str, Make] = {
    "resnext": resnext, "nasnet": nasnet, "alexnet": alexnet, "deepspeech2": deepspeech2, "lstm": lstm,
    "seq2seq": seq2seq,
}  # fmt: skip
PARTS: dict[str, Make] = {
    "inception": inception, "attention": attention, "nasnet_cell": nasnet_cell, "lstm_long": lstm_long,
}  # fmt: skip


def build(name: str, scale: int = 1) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """A model as a Relax module whose function takes its inputs and weights, and their shapes."""
    net = Net(scale)
    make = {**MODELS, **PARTS}[name]
    builder = net.builder
    with builder.function("main"):
        with builder.dataflow():
            result = builder.emit_output(make(net))
        builder.emit_func_output(result, net.params)
    return builder.finalize(), net.shapes


def values(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs and weights that keep activations neither dead nor exploding."""
    rng = np.random.default_rng(seed)
    result = {}
    for name, shape in shapes.items():
        fan = float(np.prod(shape[1:])) if len(shape) == 4 else float(shape[0])
        spread = (2.0 / max(1.0, fan)) ** 0.5 if name.startswith("w") and min(shape) > 0 and shape[0] > 1 else 1.0
        if name.startswith("w") and shape[0] == 1:
            spread = 0.1
        result[name] = (rng.standard_normal(shape) * spread).astype("float32")
    return result
