"""Models with open extents, written as ONNX: BERT, GPT-2, a Llama-like decoder with a cache, ResNet-50, a detector.

Random weights of the papers' sizes; fewer layers are the same kernels in less time. Shapes are taken from the inputs as
exporters write it: Shape, Gather, Concat, Reshape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.networks import RESIDUAL, SEED, VOCABULARY, Network

#: An input's extents: numbers and names of open ones, and its type.
Inputs = dict[str, tuple[tuple[int | str, ...], str]]


@dataclass(frozen=True)
class OpenModel:
    """A model with open extents.

    Parameters
    ----------
    name : str
    path : Path
    inputs : dict
        Name -> (extents, dtype).
    bounds : dict
        Open extent -> (least, most) of the sizes to draw.
    multiple : int
        What the sizes are a multiple of.
    """

    name: str
    path: Path
    inputs: Inputs
    bounds: Mapping[str, tuple[int, int]]
    multiple: int = 1

    def shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the shape of each input for sizes of the open extents."""
        return {
            name: tuple(e if isinstance(e, int) else sizes[e] for e in shape)
            for name, (shape, _) in self.inputs.items()
        }

    def values(self, sizes: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:
        """Return inputs for sizes: token numbers, or normal values."""
        rng, shapes = np.random.default_rng(seed), self.shapes(sizes)
        return {
            name: rng.integers(0, 1000, shapes[name]) if dtype == "int64"
            else rng.standard_normal(shapes[name], np.float32)
            for name, (_, dtype) in self.inputs.items()
        }  # fmt: skip

    def drawn(self, count: int, rng: Any) -> list[dict[str, int]]:
        """Return random sizes within the bounds."""
        step = self.multiple
        return [
            {name: int(rng.integers(low // step, high // step + 1)) * step for name, (low, high) in self.bounds.items()}
            for _ in range(count)
        ]


class OpenNetwork(Network):
    """A graph whose extents are read from its tensors."""

    def size(self, x: str, dim: int) -> str:
        """Return an extent of a tensor, as an array of one number."""
        return self.node("Gather", [self.node("Shape", [x]), self.whole([dim])], axis=0)

    def whole(self, values: Sequence[int]) -> str:
        return self.constant(np.asarray(values, np.int64))

    def shaped(self, x: str, *shape: int | str) -> str:
        """Reshape to numbers and computed extents."""
        parts = [e if isinstance(e, str) else self.whole([e]) for e in shape]
        return self.node("Reshape", [x, self.node("Concat", parts, axis=0)])

    def part(self, x: str, start: str, stop: str, axis: int = 0) -> str:
        return self.node("Slice", [x, start, stop, self.whole([axis])])

    def rms_norm(self, x: str, size: int) -> str:
        squared = self.node("ReduceMean", [self.node("Mul", [x, x])], axes=[-1], keepdims=1)
        root = self.node("Sqrt", [self.node("Add", [squared, self.scalar(1e-5)])])
        gamma = self.constant(self.rng.uniform(0.8, 1.2, size).astype(np.float32))
        return self.node("Mul", [self.node("Div", [x, root]), gamma])

    def product(self, x: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
        return self.node("MatMul", [x, self.random(inputs, outputs, scale=math.sqrt(gain / inputs))])

    def heads(self, x: str, count: int, size: int, order: Sequence[int] = (0, 2, 1, 3)) -> str:
        split = self.shaped(x, self.size(x, 0), self.size(x, 1), count, size)
        return self.node("Transpose", [split], perm=list(order))

    def merged(self, x: str, size: int) -> str:
        y = self.node("Transpose", [x], perm=[0, 2, 1, 3])
        return self.shaped(y, self.size(y, 0), self.size(y, 1), size)


def bert(folder: Path, layers: int = 12) -> OpenModel:
    """BERT-base's encoder: batch 1, any sequence."""
    net, size, count, wide = OpenNetwork(), 64, 12, 768
    length = net.size("tokens", 1)
    places = net.part(net.random(512, wide, scale=1.0), net.whole([0]), length)
    x = net.node("Gather", [net.random(VOCABULARY, wide, scale=1.0), "tokens"])
    x = net.layer_norm(net.node("Add", [x, places]), wide)
    for _ in range(layers):
        q, v = (net.heads(net.linear(x, wide, wide), count, size) for _ in range(2))
        k = net.heads(net.linear(x, wide, wide), count, size, (0, 2, 3, 1))
        scores = net.node("Div", [net.node("MatMul", [q, k]), net.scalar(math.sqrt(size))])
        mixed = net.merged(net.node("MatMul", [net.node("Softmax", [scores], axis=-1), v]), wide)
        x = net.layer_norm(net.node("Add", [x, net.linear(mixed, wide, wide)]), wide)
        y = net.linear(net.gelu(net.linear(x, wide, 4 * wide, gain=2.0)), 4 * wide, wide)
        x = net.layer_norm(net.node("Add", [x, y]), wide)
    return _written(net, folder, f"bert-{layers}", {"tokens": ((1, "n"), "int64")}, [x], {"n": (1, 512)})


def gpt2(folder: Path, layers: int = 12) -> OpenModel:
    """GPT-2 (117 M): causal, the last token's scores over all words."""
    net, size, count, wide, words = OpenNetwork(), 64, 12, 768, 50257
    length = net.size("tokens", 1)
    places = net.part(net.random(1024, wide, scale=0.1), net.whole([0]), length)
    x = net.node("Add", [net.node("Gather", [net.random(words, wide, scale=0.2), "tokens"]), places])
    hidden = net.constant(np.triu(np.full((1, 1, 1024, 1024), -1e9, np.float32), 1))
    mask = net.part(net.part(hidden, net.whole([0]), length, 2), net.whole([0]), length, 3)
    for _ in range(layers):
        y = net.linear(net.layer_norm(x, wide), wide, 3 * wide)
        split = net.node("Split", [y, net.whole([wide] * 3)], outputs=3, axis=-1)
        q, v = (net.heads(split[n], count, size) for n in (0, 2))
        k = net.heads(split[1], count, size, (0, 2, 3, 1))
        scores = net.node("Mul", [net.node("MatMul", [q, k]), net.scalar(size**-0.5)])
        shares = net.node("Softmax", [net.node("Add", [scores, mask])], axis=-1)
        x = net.node("Add", [x, net.linear(net.merged(net.node("MatMul", [shares, v]), wide), wide, wide)])
        y = net.linear(net.layer_norm(x, wide), wide, 4 * wide, gain=2.0)
        x = net.node("Add", [x, net.linear(_tanh_gelu(net, y), 4 * wide, wide)])
    last = net.part(net.layer_norm(x, wide), net.whole([-1]), net.whole([2**31 - 1]), 1)
    return _written(net, folder, f"gpt2-{layers}", {"tokens": ((1, "n"), "int64")},
                    [net.product(last, wide, words)], {"n": (1, 512)})  # fmt: skip


def _tanh_gelu(net: OpenNetwork, x: str) -> str:
    cube = net.node("Mul", [net.node("Mul", [net.node("Mul", [x, x]), x]), net.scalar(0.044715)])
    inner = net.node("Mul", [net.node("Add", [x, cube]), net.scalar(math.sqrt(2 / math.pi))])
    half = net.node("Mul", [x, net.scalar(0.5)])
    return net.node("Mul", [half, net.node("Add", [net.node("Tanh", [inner]), net.scalar(1.0)])])


def llama(folder: Path, layers: int = 12, wide: int = 768, count: int = 12, feed: int = 2048) -> OpenModel:
    """A Llama-like decoder with a cache: n tokens after p past ones; 1 past token for a prefill, n = 1 to decode."""
    net, size, words, most = OpenNetwork(), 64, 32000, 2048
    inputs: Inputs = {"tokens": ((1, "n"), "int64")}
    for layer in range(layers):
        for kind in "kv":
            inputs[f"past_{kind}{layer}"] = ((1, count, "p", size), "float32")
    past, length = net.size("past_k0", 2), net.size("tokens", 1)
    total = net.node("Add", [past, length])
    angles = np.outer(np.arange(most), 1e4 ** (-np.arange(0, size, 2) / size))
    cos, sin = (net.part(net.constant(np.concatenate([f(angles)] * 2, 1).astype(np.float32)), past, total)
                for f in (np.cos, np.sin))  # fmt: skip
    hidden = net.constant(np.triu(np.full((1, 1, most, most), -1e9, np.float32), 1))
    mask = net.part(net.part(hidden, past, total, 2), net.whole([0]), total, 3)
    x = net.node("Gather", [net.random(words, wide, scale=0.5), "tokens"])
    results = []

    def turned(y: str) -> str:
        first, second = net.node("Split", [y, net.whole([size // 2] * 2)], outputs=2, axis=-1)
        other = net.node("Concat", [net.node("Neg", [second]), first], axis=-1)
        return net.node("Add", [net.node("Mul", [y, cos]), net.node("Mul", [other, sin])])

    for layer in range(layers):
        y = net.rms_norm(x, wide)
        q, k = (turned(net.heads(net.product(y, wide, wide), count, size)) for _ in range(2))
        v = net.heads(net.product(y, wide, wide), count, size)
        k = net.node("Concat", [f"past_k{layer}", k], axis=2)
        v = net.node("Concat", [f"past_v{layer}", v], axis=2)
        results += [k, v]
        scores = net.node("MatMul", [q, net.node("Transpose", [k], perm=[0, 1, 3, 2])])
        scores = net.node("Add", [net.node("Mul", [scores, net.scalar(size**-0.5)]), mask])
        mixed = net.merged(net.node("MatMul", [net.node("Softmax", [scores], axis=-1), v]), wide)
        x = net.node("Add", [x, net.product(mixed, wide, wide)])
        y = net.rms_norm(x, wide)
        gate = net.product(y, wide, feed)
        gate = net.node("Mul", [net.node("Mul", [gate, net.node("Sigmoid", [gate])]), net.product(y, wide, feed)])
        x = net.node("Add", [x, net.product(gate, feed, wide)])
    last = net.part(net.rms_norm(x, wide), net.whole([-1]), net.whole([2**31 - 1]), 1)
    results.insert(0, net.product(last, wide, words))
    return _written(net, folder, f"llama-{layers}", inputs, results, {"n": (1, 512), "p": (1, 1)})


def resnet50(folder: Path, blocks: Sequence[int] = (3, 4, 6, 3)) -> OpenModel:
    """ResNet-50, any batch."""
    net = OpenNetwork()
    x = net.node("Relu", [net.convolution("x", 3, 64, 7, 2)])
    x = net.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, count in enumerate(blocks):
        wide = 64 << stage
        for number in range(count):
            stride = 2 if number == 0 and stage else 1
            y = net.node("Relu", [net.convolution(x, channels, wide)])
            y = net.node("Relu", [net.convolution(y, wide, wide, 3, stride)])
            y = net.convolution(y, wide, 4 * wide, gain=RESIDUAL)
            if number == 0:
                x = net.convolution(x, channels, 4 * wide, 1, stride, gain=1.0)
            x, channels = net.node("Relu", [net.node("Add", [x, y])]), 4 * wide
    x = net.node("Flatten", [net.node("GlobalAveragePool", [x])], axis=1)
    logits = net.linear(x, channels, 1000)
    return _written(net, folder, f"resnet50-{sum(blocks)}", {"x": (("n", 3, 224, 224), "float32")}, [logits],
                    {"n": (1, 16)})  # fmt: skip


def detector(folder: Path, wide: int = 96) -> OpenModel:
    """A text detector like PP-OCR's: depthwise layers, features of four sizes added and joined, a map of all pixels."""
    net = OpenNetwork()

    def separable(x: str, inputs: int, outputs: int, stride: int, kernel: int = 3) -> str:
        y = net.relu6(net.convolution(x, inputs, inputs, kernel, stride, groups=inputs))
        return net.relu6(net.convolution(y, inputs, outputs))

    def larger(x: str, times: int) -> str:
        scales = net.constant(np.asarray([1, 1, times, times], np.float32))
        return net.node("Resize", [x, "", scales], mode="nearest", coordinate_transformation_mode="asymmetric",
                        nearest_mode="floor")  # fmt: skip

    x = separable(net.relu6(net.convolution("x", 3, 16, 3, 2)), 16, 32, 1)
    found = []
    for inputs, outputs, size in ((32, 64, 3), (64, 128, 3), (128, 256, 5), (256, 384, 5)):
        x = separable(separable(x, inputs, outputs, 2, size), outputs, outputs, 1, size)
        found.append((x, outputs))
    lateral = [net.convolution(x, outputs, wide) for x, outputs in found]
    for n in (2, 1, 0):
        lateral[n] = net.node("Add", [lateral[n], larger(lateral[n + 1], 2)])
    parts = [net.convolution(x, wide, wide // 4, 3) for x in lateral]
    x = net.node("Concat", [parts[0], *(larger(p, 2**n) for n, p in enumerate(parts[1:], 1))], axis=1)
    x = net.node("Relu", [net.convolution(x, wide, wide // 4, 3)])
    for inputs, outputs in ((wide // 4, wide // 4), (wide // 4, 1)):
        kernel = net.random(inputs, outputs, 2, 2, scale=math.sqrt(1 / inputs))
        x = net.node("ConvTranspose", [x, kernel], strides=[2, 2], kernel_shape=[2, 2])
        x = net.node("Relu", [x]) if outputs > 1 else net.node("Sigmoid", [x])
    return _written(net, folder, "detector", {"x": ((1, 3, "h", "w"), "float32")}, [x],
                    {"h": (64, 640), "w": (64, 640)}, 32)  # fmt: skip


def _written(net: OpenNetwork, folder: Path, name: str, inputs: Inputs, results: Sequence[str],
             bounds: Mapping[str, tuple[int, int]], multiple: int = 1) -> OpenModel:  # fmt: skip
    path = folder / f"open-{name}.onnx"
    net.write(path, inputs, results)
    return OpenModel(name, path, inputs, bounds, multiple)


MODELS: dict[str, Callable[..., Any]] = {
    "bert": bert, "gpt2": gpt2, "llama": llama, "resnet50": resnet50, "detector": detector,
}  # fmt: skip
__all__ = ["MODELS", "OpenModel", "SEED"]
