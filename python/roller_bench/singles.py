"""Single operators as ONNX models, each with numpy's answer, torch's function and the least work on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.peers_graph import session_of
from roller_bench.running import Arrays, Running
from roller_bench.torch_running import opened_module
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import UsageError
from roller_tvm.tvm_env.pin import pin_calling_thread

Function = Callable[..., Any]
#: The input's and the output's name, in the models.
INPUT, OUTPUT = "A", "C"
#: Numbers of an operand start from this seed. What normalisations add to a variance.
SEED, EPSILON = 0, 1e-5


@dataclass(frozen=True)
class Single:
    """An operator of one input and constants.

    Parameters
    ----------
    name : str
        Also the stem of its files.
    node : str
        ONNX's operator, with `attributes`.
    shape : tuple of int
        Of the input.
    constants : tuple of shapes
    result : tuple of int
        Shape of the output.
    numpy, torch : function
        Compute it from the input and the constants; torch's takes also ``torch`` itself, first, and ``out`` where
        the function has it.
    flops : int
        Multiplications and additions.
    """

    name: str
    node: str
    shape: tuple[int, ...]
    constants: tuple[tuple[int, ...], ...]
    result: tuple[int, ...]
    numpy: Function
    torch: Function
    flops: int
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def values(self) -> list[np.ndarray]:
        """Return the input and the constants: random numbers, the same each time."""
        rng = np.random.default_rng(SEED)
        return [rng.standard_normal(shape, np.float32) for shape in (self.shape, *self.constants)]

    def model(self) -> Any:
        """Return the ONNX model."""
        import onnx
        from onnx import helper, numpy_helper

        names = [f"W{n}" for n in range(len(self.constants))]
        told = partial(helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT)
        graph = helper.make_graph(
            [helper.make_node(self.node, [INPUT, *names], [OUTPUT], **self.attributes)], "single",
            [told(INPUT, shape=self.shape)], [told(OUTPUT, shape=self.result)],
            [numpy_helper.from_array(value, name) for name, value in zip(names, self.values()[1:], strict=True)],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def answer(self) -> np.ndarray:
        """Return numpy's answer."""
        return np.asarray(self.numpy(*self.values()))

    def roof(self, device: DeviceSpec) -> float:
        """Return the least seconds on a CPU: the longer of its flops at the FMA peak and its operands' way.

        The operands come from, and go to, the nearest memory that holds them all.

        Examples
        --------
        >>> from roller_tvm.device import device_for_target
        >>> device = device_for_target("llvm -mcpu=haswell -num-cores=2")
        >>> matmul((1024, 1024, 1024)).roof(device) == 2 * 1024**3 / device.peak("float32") / 1e9
        True
        >>> far = device.far.bandwidth_gbps
        >>> matmul((1, 4096, 4096)).roof(device) == 4 * (4096 * 4097 + 4096) / far / 1e9
        True
        """
        size = 4 * sum(map(prod, (self.shape, self.result, *self.constants)))

        def held(level: Any) -> bool:
            return bool(level.capacity_bytes * (1 if level.scope == "device" else device.units) >= size)

        nearest = next((level for level in reversed(device.levels[:-1]) if held(level)), device.far)
        return max(self.flops / device.peak("float32"), size / nearest.bandwidth_gbps) / 1e9


def _told(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _pooled(shape: tuple[int, ...], window: int, stride: int) -> tuple[int, ...]:
    return (*shape[:2], *((extent + window // 2 * 2 - window) // stride + 1 for extent in shape[2:]))


def _sliding(window: int, stride: int) -> dict[str, Any]:
    """Return ONNX's attributes of windows over pictures that are padded by half of one."""
    return {"strides": [stride] * 2, "pads": [window // 2] * 4, "kernel_shape": [window] * 2}


def _normalised(data: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Return the data, a mean of 0 and a variance of 1 along some axes."""
    mean, variance = data.mean(axes, keepdims=True), data.var(axes, keepdims=True)
    return np.asarray((data - mean) / np.sqrt(variance + EPSILON))


def _windows(data: np.ndarray, window: int, stride: int, filled: float) -> np.ndarray:
    """Return the windows of a padded picture as two more axes."""
    padding = window // 2
    padded = np.pad(data, ((0, 0), (0, 0), (padding, padding), (padding, padding)), constant_values=filled)
    found = np.lib.stride_tricks.sliding_window_view(padded, (window, window), axis=(2, 3))  # type: ignore[call-overload]
    return np.asarray(found[:, :, ::stride, ::stride])


def shape_of(text: str) -> tuple[int, int, int]:
    """Read the shape of a product, rows, K and N.

    Raises
    ------
    UsageError

    Examples
    --------
    >>> shape_of("197x768x3072")
    (197, 768, 3072)
    """
    try:
        m, k, n = map(int, text.split("x"))
    except ValueError:
        raise UsageError(f"a shape is ROWSxKxN (got '{text}')", "--shapes", "for instance 197x768x3072") from None
    return m, k, n


def matmul(shape: tuple[int, int, int]) -> Single:
    """Return a product (rows, K, N) by a constant."""
    m, k, n = shape

    def by_torch(torch: Any, a: Any, b: Any) -> Any:
        return partial(torch.mm, out=torch.zeros(m, n)), (a, b)

    return Single("x".join(map(str, shape)), "MatMul", (m, k), ((k, n),), (m, n), np.matmul, by_torch, 2 * m * k * n)


def depthwise(shape: tuple[int, ...], window: int, stride: int = 1) -> Single:
    """Return a depthwise convolution (NCHW, as ONNX has it), padded by half of its window."""
    batch, channels, *_ = shape
    padding, result = window // 2, _pooled(shape, window, stride)

    def by_numpy(data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return np.einsum("nchwij,cij->nchw", _windows(data, window, stride, 0.0), weight[:, 0], optimize=True)

    def by_torch(torch: Any, data: Any, weight: Any) -> Any:
        convolve = partial(torch.nn.functional.conv2d, stride=stride, padding=padding, groups=channels)
        return convolve, (data, weight)

    attributes = {"group": channels, **_sliding(window, stride)}
    weight = (channels, 1, window, window)
    name = f"depthwise {_told(shape)} {window}x{window} stride {stride}"
    return Single(name, "Conv", shape, (weight,), result, by_numpy, by_torch, 2 * window**2 * prod(result), attributes)


def pool(kind: str, shape: tuple[int, ...], window: int, stride: int) -> Single:
    """Return a pooling of greatest values ("max") or of means ("average"), padded by half of its window."""
    padding, greatest = window // 2, kind == "max"

    def by_numpy(data: np.ndarray) -> np.ndarray:
        windows = _windows(data, window, stride, -np.inf if greatest else 0.0)
        return windows.max((4, 5)) if greatest else windows.mean((4, 5))

    def by_torch(torch: Any, data: Any) -> Any:
        own = torch.nn.functional.max_pool2d if greatest else torch.nn.functional.avg_pool2d
        return partial(own, kernel_size=window, stride=stride, padding=padding), (data,)

    result = _pooled(shape, window, stride)
    attributes = _sliding(window, stride) | ({} if greatest else {"count_include_pad": 1})
    name, node = f"{kind} pool {_told(shape)} {window}x{window} stride {stride}", f"{kind.title()}Pool"
    flops = 0 if greatest else window**2 * prod(result)
    return Single(name, node, shape, (), result, by_numpy, by_torch, flops, attributes)


def means(shape: tuple[int, ...]) -> Single:
    """Return the means of all pixels of each channel."""

    def by_torch(torch: Any, data: Any) -> Any:
        return partial(torch.mean, dim=(2, 3), keepdim=True), (data,)

    name, result = f"global mean {_told(shape)}", (*shape[:2], 1, 1)
    return Single(name, "GlobalAveragePool", shape, (), result, partial(np.mean, axis=(2, 3), keepdims=True), by_torch,
                  prod(shape))  # fmt: skip


def softmax(shape: tuple[int, ...]) -> Single:
    """Return a softmax over the last axis; an exponential counts as no flop."""

    def by_numpy(data: np.ndarray) -> np.ndarray:
        above = np.exp(data - data.max(-1, keepdims=True))
        return above / above.sum(-1, keepdims=True)

    def by_torch(torch: Any, data: Any) -> Any:
        return partial(torch.softmax, dim=-1, out=torch.zeros(shape)), (data,)

    flops, attributes = 4 * prod(shape), {"axis": -1}
    return Single(f"softmax {_told(shape)}", "Softmax", shape, (), shape, by_numpy, by_torch, flops, attributes)


def layer_norm(shape: tuple[int, ...]) -> Single:
    """Return a normalisation of the last axis, with a scale and a bias."""
    last = shape[-1:]

    def by_numpy(data: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
        return _normalised(data, (-1,)) * scale + bias

    def by_torch(torch: Any, *given: Any) -> Any:
        data, scale, bias = given
        return partial(torch.nn.functional.layer_norm, normalized_shape=last, weight=scale, bias=bias), (data,)

    attributes = {"axis": -1, "epsilon": EPSILON}
    return Single(f"layer norm {_told(shape)}", "LayerNormalization", shape, (last, last), shape, by_numpy, by_torch,
                  8 * prod(shape), attributes)  # fmt: skip


def instance_norm(shape: tuple[int, ...]) -> Single:
    """Return a normalisation of each channel's pixels, with a scale and a bias."""
    channels = shape[1:2]

    def by_numpy(data: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
        return _normalised(data, (2, 3)) * scale[:, None, None] + bias[:, None, None]

    def by_torch(torch: Any, *given: Any) -> Any:
        data, scale, bias = given
        return partial(torch.nn.functional.instance_norm, weight=scale, bias=bias), (data,)

    name, constants = f"instance norm {_told(shape)}", (channels, channels)
    return Single(name, "InstanceNormalization", shape, constants, shape, by_numpy, by_torch, 8 * prod(shape),
                  {"epsilon": EPSILON})  # fmt: skip


#: Rows, and (K, N) of layers: BERT-base, GPT-2 and ViT-B/16; ViT-L; Llama-7B; an audio encoder; GPT-2's words.
ROWS = (1, 7, 49, 77, 128, 197, 577, 1500, 2048)
PRODUCTS = tuple(matmul(shape) for shape in (
    *((m, 768, n) for m in ROWS for n in (768, 2304, 3072)), *((m, 3072, 768) for m in ROWS),
    *((m, 1024, n) for m in (1, 128, 197, 577) for n in (1024, 4096)), *((m, 4096, 1024) for m in (1, 128, 197, 577)),
    *((m, 4096, n) for m in (1, 7, 128) for n in (4096, 11008)), *((m, 11008, 4096) for m in (1, 7, 128)),
    (1500, 512, 2048), (1, 768, 50257), (7, 768, 50257),
))  # fmt: skip
#: Operators with little arithmetic, as networks have them and larger than a core's cache.
MEMORY_BOUND = (
    depthwise((1, 144, 56, 56), 3), depthwise((1, 96, 112, 112), 3, 2), depthwise((1, 240, 28, 28), 5),
    depthwise((1, 96, 56, 56), 7), depthwise((8, 144, 56, 56), 3), depthwise((8, 96, 112, 112), 3, 2),
    pool("max", (1, 64, 112, 112), 3, 2), pool("max", (8, 64, 112, 112), 3, 2), pool("average", (1, 256, 56, 56), 3, 1),
    means((1, 2048, 7, 7)), means((8, 1280, 7, 7)), means((1, 256, 112, 112)),
    softmax((12, 128, 128)), softmax((12, 384, 384)), softmax((128, 30522)), softmax((16, 1024, 1024)),
    layer_norm((128, 768)), layer_norm((1500, 512)), layer_norm((2048, 4096)),
    instance_norm((1, 64, 128, 128)), instance_norm((1, 256, 128, 128)),
)  # fmt: skip


def open_onnxruntime(file: Path, arrays: Arrays, threads: int) -> Running:
    """Open onnxruntime's operator, its result in memory of its own."""
    import onnxruntime

    session = session_of(file, threads)
    binding = session.io_binding()
    given, result = arrays[INPUT], np.zeros(session.get_outputs()[0].shape, np.float32)
    held = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in (given, result)]
    binding.bind_ortvalue_input(INPUT, held[0])
    binding.bind_ortvalue_output(OUTPUT, held[1])

    def run() -> np.ndarray:
        session.run_with_iobinding(binding)
        return (given, result)[1]  # onnxruntime reads and writes their memory: they are to live as long as this

    pin_calling_thread()
    return Running(run, lambda: [run()])


def open_torch(file: Path, arrays: Arrays, threads: int) -> Running:
    """Open torch's operator; the file's stem is its name."""
    single = next((s for s in MEMORY_BOUND if s.name == file.stem), None) or matmul(shape_of(file.stem))

    def made() -> tuple[Any, Sequence[Any]]:
        import torch

        found: tuple[Any, Sequence[Any]] = single.torch(torch, *map(torch.from_numpy, single.values()))
        return found

    return opened_module(made, threads)
