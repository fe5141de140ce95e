"""Networks written as ONNX files with seeded random weights: MobileNet v2 and BERT-base.

Their shapes are those of the papers (Sandler et al. 2018, table 2; Devlin et al. 2018, section 3). Batch
normalisation is folded into the convolutions, as exporters for inference do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SEED = 20220711
# MobileNet v2: expansion, channels, repeats, stride.
INVERTED_RESIDUALS = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
HIDDEN, HEADS, FEED_FORWARD, LAYERS, VOCABULARY = 768, 12, 3072, 12, 30522
#: Magnitude of a residual branch's result, as a fraction of its input's.
RESIDUAL = 0.5


@dataclass(frozen=True)
class Prepared:
    """A model file with its inputs."""

    title: str
    path: Path
    inputs: dict[str, np.ndarray]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(array.shape) for name, array in self.inputs.items()}


@dataclass
class Network:
    """An ONNX graph under construction: every method adds nodes and returns the name of the result."""

    rng: Any = field(default_factory=lambda: np.random.default_rng(SEED))
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def constant(self, values: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = values
        return name

    def random(self, *shape: int, scale: float) -> str:
        return self.constant((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def node(self, kind: str, inputs: Iterable[str], outputs: int = 1, **attributes: Any) -> Any:
        from onnx import helper

        names = [f"t{len(self.nodes)}_{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def scalar(self, value: float) -> str:
        return self.constant(np.asarray(value, np.float32))

    def convolution(
        self, x: str, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, gain: float = 2.0
    ) -> str:
        fan = inputs // groups * kernel * kernel
        weights = self.random(outputs, inputs // groups, kernel, kernel, scale=math.sqrt(gain / fan))
        return self.node(
            "Conv", [x, weights, self.random(outputs, scale=0.05)], group=groups, kernel_shape=[kernel] * 2,
            strides=[stride] * 2, pads=[kernel // 2] * 4,
        )  # fmt: skip

    def relu6(self, x: str) -> str:
        return self.node("Clip", [x, self.scalar(0.0), self.scalar(6.0)])

    def linear(self, x: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
        product = self.node("MatMul", [x, self.random(inputs, outputs, scale=math.sqrt(gain / inputs))])
        return self.node("Add", [product, self.random(outputs, scale=0.02)])

    def layer_norm(self, x: str, size: int) -> str:
        """Add a layer normalisation as exporters write it before opset 17."""
        mean = self.node("ReduceMean", [x], axes=[-1], keepdims=1)
        centred = self.node("Sub", [x, mean])
        squared = self.node("Pow", [centred, self.scalar(2.0)])
        variance = self.node("ReduceMean", [squared], axes=[-1], keepdims=1)
        deviation = self.node("Sqrt", [self.node("Add", [variance, self.scalar(1e-12)])])
        normal = self.node("Div", [centred, deviation])
        gamma = self.constant(self.rng.uniform(0.8, 1.2, size).astype(np.float32))
        return self.node("Add", [self.node("Mul", [normal, gamma]), self.random(size, scale=0.05)])

    def gelu(self, x: str) -> str:
        error = self.node("Erf", [self.node("Div", [x, self.scalar(math.sqrt(2.0))])])
        return self.node("Mul", [self.node("Mul", [x, self.node("Add", [error, self.scalar(1.0)])]), self.scalar(0.5)])

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        return self.node("Reshape", [x, self.constant(np.asarray(shape, np.int64))])

    def write(
        self, path: Path, inputs: Mapping[str, tuple[Sequence[int | str], str]], results: Sequence[str],
        infer: bool = False,
    ) -> None:  # fmt: skip
        """Write the graph to a file; an input is its extents, numbers or names of open ones, and its type."""
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        kinds = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
        graph = helper.make_graph(
            self.nodes, path.stem,
            [helper.make_tensor_value_info(n, kinds[dtype], shape) for n, (shape, dtype) in inputs.items()],
            [helper.make_tensor_value_info(result, TensorProto.FLOAT, None) for result in results],
            [numpy_helper.from_array(a, n) for n, a in self.constants.items()],
        )  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
        model.ir_version = 8
        onnx.save(onnx.shape_inference.infer_shapes(model) if infer else model, str(path))

    def save(self, path: Path, inputs: Mapping[str, np.ndarray], result: str) -> None:
        """Write the graph for inputs of these shapes, with the shape of each tensor."""
        self.write(path, {n: (a.shape, str(a.dtype)) for n, a in inputs.items()}, [result], infer=True)


def mobilenet_v2(folder: Path, batch: int = 1, size: int = 224) -> Prepared:
    """Write MobileNet v2, width 1.0, and return it with an input."""
    net = Network()
    image = np.random.default_rng(SEED + 1).standard_normal((batch, 3, size, size), np.float32)
    x, channels = net.relu6(net.convolution("x", 3, 32, 3, 2)), 32
    for expansion, outputs, repeats, first_stride in INVERTED_RESIDUALS:
        for number in range(repeats):
            stride, wide, y = (first_stride if number == 0 else 1), channels * expansion, x
            if expansion > 1:
                y = net.relu6(net.convolution(y, channels, wide))
            y = net.relu6(net.convolution(y, wide, wide, 3, stride, groups=wide))
            joined = stride == 1 and channels == outputs
            y = net.convolution(y, wide, outputs, gain=RESIDUAL if joined else 1.0)
            x, channels = (net.node("Add", [x, y]) if joined else y), outputs
    x = net.relu6(net.convolution(x, channels, 1280))
    x = net.node("Flatten", [net.node("GlobalAveragePool", [x])], axis=1)
    logits = net.node("Gemm", [x, net.random(1000, 1280, scale=0.03), net.random(1000, scale=0.05)], transB=1)
    path = folder / f"mobilenet_v2_b{batch}.onnx"
    net.save(path, {"x": image}, logits)
    return Prepared(f"MobileNet v2, batch {batch}", path, {"x": image})


def bert_base(folder: Path, batch: int = 1, length: int = 128, layers: int = LAYERS) -> Prepared:
    """Write BERT-base's encoder, from token numbers to the last hidden state, and return it with an input."""
    net = Network()
    tokens = np.random.default_rng(SEED + 1).integers(0, VOCABULARY, (batch, length), dtype=np.int64)
    size = HIDDEN // HEADS
    x = net.node("Gather", [net.random(VOCABULARY, HIDDEN, scale=1.0), "tokens"])
    x = net.layer_norm(net.node("Add", [x, net.random(1, length, HIDDEN, scale=1.0)]), HIDDEN)

    def heads(y: str, order: Sequence[int]) -> str:
        return net.node("Transpose", [net.reshape(y, (batch, length, HEADS, size))], perm=list(order))

    for _ in range(layers):
        query = heads(net.linear(x, HIDDEN, HIDDEN), (0, 2, 1, 3))
        key = heads(net.linear(x, HIDDEN, HIDDEN), (0, 2, 3, 1))
        value = heads(net.linear(x, HIDDEN, HIDDEN), (0, 2, 1, 3))
        scores = net.node("Div", [net.node("MatMul", [query, key]), net.scalar(math.sqrt(size))])
        mixed = net.node("MatMul", [net.node("Softmax", [scores], axis=-1), value])
        mixed = net.reshape(net.node("Transpose", [mixed], perm=[0, 2, 1, 3]), (batch, length, HIDDEN))
        x = net.layer_norm(net.node("Add", [x, net.linear(mixed, HIDDEN, HIDDEN)]), HIDDEN)
        wide = net.gelu(net.linear(x, HIDDEN, FEED_FORWARD, gain=2.0))
        x = net.layer_norm(net.node("Add", [x, net.linear(wide, FEED_FORWARD, HIDDEN)]), HIDDEN)
    path = folder / f"bert_base_b{batch}_l{layers}.onnx"
    net.save(path, {"tokens": tokens}, x)
    return Prepared(f"BERT-base, batch {batch}, {length} tokens, {layers} layers", path, {"tokens": tokens})
