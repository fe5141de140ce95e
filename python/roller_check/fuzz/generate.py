"""Random ONNX models: each node is proposed at random and kept if onnxruntime can compute it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roller_check.fuzz.parts import part

FLOATS = ("float32", "float32", "float32", "float32", "float64", "float16")
INTS = ("int64", "int32", "int8", "uint8")
UNARY = (
    "Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Neg", "Abs", "Erf", "Floor", "Ceil", "Round", "Sin", "Cos",
    "Sinh", "Cosh", "Asin", "Acos", "Atan", "Softplus", "Softsign", "Elu", "LeakyRelu", "HardSigmoid", "HardSwish",
    "Selu", "Reciprocal", "Sign", "Identity", "Softmax", "LogSoftmax", "Not", "Hardmax", "IsNaN",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Mod", "PRelu", "Equal", "Greater", "Less", "And", "Or")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceSumSquare",
              "ReduceLogSumExp", "ArgMax", "ArgMin")  # fmt: skip
MOVING = (
    "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Concat", "Split", "Slice", "Pad", "Expand", "Tile",
    "Gather", "DepthToSpace", "CumSum", "Where", "Clip", "Cast", "Cast", "Resize", "TopK",
)  # fmt: skip
#: Elements of a tensor at most.
LARGEST = 60_000
#: Numbers of nodes: most faults show in one or two, which build in a fraction of a second.
SIZES = (*[1] * 16, *[2] * 10, *[3] * 6, 4, 4, 4, 5, 6, 8, 12, 20)
#: Share of inputs with a number that is none or has no end.
ODD = 0.04
#: Share of models with an open extent, where those are asked for; of models that give some inner results too.
OPEN, MORE_OUTPUTS = 0.15, 0.15


@dataclass
class Draft:
    """A model that is growing: nodes, and the value of every tensor."""

    rng: np.random.Generator
    nodes: list[Any] = field(default_factory=list)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    made: dict[str, np.ndarray] = field(default_factory=dict)

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def value(self, name: str) -> np.ndarray:
        return next(d[name] for d in (self.made, self.inputs, self.constants) if name in d)

    def new(self, shape: Any, dtype: str, constant: bool = False) -> str:
        """Return the name of a new input or constant."""
        name = f"{'c' if constant else 'x'}{len(self.inputs) + len(self.constants)}"
        (self.constants if constant else self.inputs)[name] = value = self.array(shape, dtype)
        if not constant and "float" in dtype and value.size and self.rng.random() < ODD:
            value[tuple(int(self.rng.integers(e)) for e in value.shape)] = self.pick(np.inf, -np.inf, np.nan, -0.0)
        return name

    def given(self, data: Any) -> str:
        name = f"c{len(self.inputs) + len(self.constants)}"
        self.constants[name] = np.asarray(data)
        return name

    def array(self, shape: Any, dtype: str) -> np.ndarray:
        if dtype == "bool":
            return self.rng.random(shape) < 0.5
        if "float" in dtype:
            return np.asarray(self.rng.uniform(-1, 1, shape)).astype(dtype)
        return np.asarray(self.rng.integers(0 if dtype == "uint8" else -5, 6, shape)).astype(dtype)

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = int(self.rng.integers(0, 7)) if rank is None else rank
        extents = [self.pick(1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 27, 31, 32, 46, 64) for _ in range(rank)]
        while np.prod(extents, dtype=float) > LARGEST / 4:
            extents[int(np.argmax(extents))] //= 2
        if rank and self.rng.random() < 0.03:
            extents[int(self.rng.integers(rank))] = 0
        return tuple(extents)

    def source(self, rank: int | None = None, kinds: tuple[str, ...] = ()) -> str:
        """Return a tensor of this rank and one of these dtypes: one that is there, or a new input."""
        fitting = [n for d in (self.made, self.inputs) for n, v in d.items()
                   if (rank is None or v.ndim == rank) and (not kinds or v.dtype.name in kinds)]  # fmt: skip
        if fitting and self.rng.random() < 0.85:
            return str(fitting[-1] if self.rng.random() < 0.5 else self.pick(*fitting))
        return self.new(self.shape(rank), self.pick(*(kinds or (*FLOATS, *FLOATS, *INTS, "bool"))))

    def add(self, kind: str, inputs: list[str], outputs: int = 1, **attributes: Any) -> list[str]:
        """Add a node if onnxruntime computes it; return the names of its results, [] if it does not."""
        from onnx import helper

        names = [f"v{len(self.made) + n}" for n in range(outputs)]
        feeds = {name: self.value(name) for name in inputs if name}
        constants = {n: v for n, v in feeds.items() if n in self.constants}
        try:
            node = helper.make_node(kind, inputs, names, **attributes)
            results = run_onnx(as_model([node], {n: v for n, v in feeds.items() if n not in constants}, constants,
                                        names), {n: v for n, v in feeds.items() if n not in constants})  # fmt: skip
        except Exception:  # whatever onnxruntime or the checker refuse
            return []
        if any(not isinstance(r, np.ndarray) or r.size > LARGEST for r in results):
            return []
        if any("float" in r.dtype.name and r.size and not np.all(np.abs(r[np.isfinite(r)]) < 1e4) for r in results):
            return []
        self.nodes.append(node)
        self.made.update(zip(names, results, strict=True))
        return names


def as_model(nodes: list[Any], inputs: dict[str, np.ndarray], constants: dict[str, np.ndarray], outputs: list[str],
             values: dict[str, np.ndarray] | None = None) -> Any:  # fmt: skip
    """Return an ONNX model of these nodes."""
    from onnx import ValueInfoProto, helper, numpy_helper

    def told(name: str, value: np.ndarray) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)

    # An output without a type is of the type that it has.
    results = [told(n, values[n]) if values is not None else ValueInfoProto(name=n) for n in outputs]
    graph = helper.make_graph(nodes, "fuzz", [told(n, v) for n, v in inputs.items()], results,
                              [numpy_helper.from_array(v, n) for n, v in constants.items()])  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def run_onnx(model: Any, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return onnxruntime's answers, computed without its optimisations."""
    found: list[np.ndarray] = session(model.SerializeToString()).run(None, inputs)
    return found


def session(model: bytes) -> Any:
    """Return onnxruntime's session of a model, without optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options)


def unary(d: Draft) -> None:
    x = d.source()
    if (kind := d.pick(*UNARY)) in ("Softmax", "LogSoftmax", "Hardmax") and (rank := d.value(x).ndim):
        d.add(kind, [x], axis=int(d.rng.integers(-rank, rank)))
    else:
        d.add(kind, [x])


def binary(d: Draft) -> None:
    x = d.source()
    value = d.value(x)
    shape = [1 if d.rng.random() < 0.3 else e for e in value.shape][int(d.rng.integers(0, value.ndim + 1)) :]
    alike = [
        n for group in (d.made, d.inputs) for n, v in group.items() if v.shape == value.shape and v.dtype == value.dtype
    ]
    other = d.pick(*alike) if d.rng.random() < 0.4 else d.new(shape, value.dtype.name, d.rng.random() < 0.6)
    pair = [x, other] if d.rng.random() < 0.7 else [other, x]
    kind = str(d.pick(*BINARY))
    d.add(kind, pair, **({"fmod": 1} if kind == "Mod" and "float" in value.dtype.name else {}))


def reduction(d: Draft) -> None:
    x = d.source()
    if not (rank := d.value(x).ndim):
        return
    axes = sorted({int(a) for a in d.rng.integers(0, rank, int(d.rng.integers(1, 3)))})
    keep = int(d.rng.integers(2))
    if (kind := d.pick(*REDUCTIONS)).startswith("Arg"):
        d.add(kind, [x], axis=axes[0], keepdims=keep)
    elif kind == "ReduceSum":
        d.add(kind, [x, d.given(np.array(axes, "int64"))], keepdims=keep)
    else:
        d.add(kind, [x], axes=axes, keepdims=keep)


def matmul(d: Draft) -> None:
    x = d.source(d.pick(2, 2, 3, 4, 1), FLOATS[:5])
    value = d.value(x)
    n = int(d.pick(1, 2, 5, 8, 16, 33, 64, 100, 521))
    if value.ndim == 2 and d.rng.random() < 0.4:
        turned = int(d.rng.integers(2))
        w = d.new((n, value.shape[1]) if turned else (value.shape[1], n), value.dtype.name, d.rng.random() < 0.7)
        d.add("Gemm", [x, w, *([d.new((n,), value.dtype.name, True)] if d.rng.random() < 0.6 else [])], transB=turned)
        return
    lead = value.shape[:-2] if value.ndim > 2 and d.rng.random() < 0.5 else ()
    d.add("MatMul", [x, d.new((*lead, value.shape[-1], n), value.dtype.name, d.rng.random() < 0.6)])


def attention(d: Draft) -> None:
    heads, rows, depth = int(d.pick(1, 2, 4)), int(d.pick(1, 3, 8, 17, 32)), int(d.pick(4, 8, 16))
    q, k, v = (d.new((heads, rows, depth), "float32") for _ in range(3))
    if (turned := d.add("Transpose", [k], perm=[0, 2, 1])) and (s := d.add("MatMul", [q, turned[0]])):
        scaled = d.add("Mul", [s[0], d.given(np.float32(depth**-0.5))])
        if scaled and (p := d.add("Softmax", scaled, axis=-1)):
            d.add("MatMul", [p[0], v])


def convolution(d: Draft) -> None:
    spatial = int(d.pick(1, 2, 2, 2, 3))
    x = d.source(spatial + 2, ("float32",))
    channels = d.value(x).shape[1]
    divisors = [g for g in range(1, channels + 1) if channels % g == 0]
    groups = int(d.pick(1, 1, *divisors)) if divisors else 1
    per, kernel = int(d.pick(1, 1, 2, 3, 8)), [int(d.pick(1, 1, 2, 3, 5)) for _ in range(spatial)]
    same: dict[str, Any] = {"strides": [int(d.pick(1, 1, 2, 3)) for _ in kernel], "group": groups,
                            "dilations": [int(d.pick(1, 1, 2, 3)) for _ in kernel],
                            "pads": [int(d.rng.integers(0, max(1, (k + 1) // 2 + 1))) for k in kernel * 2]}  # fmt: skip
    if d.rng.random() < 0.35:
        w, out = d.new((channels, per, *kernel), "float32", True), per * groups
        if d.rng.random() < 0.3:
            same["output_padding"] = [int(d.rng.integers(0, s)) for s in same["strides"]]
        kind = "ConvTranspose"
    else:
        w, out, kind = (
            d.new((per * groups, channels // groups, *kernel), "float32", d.rng.random() < 0.8),
            per * groups,
            "Conv",
        )
    d.add(kind, [x, w, *([d.new((out,), "float32", True)] if d.rng.random() < 0.5 else [])], **same)


def pooling(d: Draft) -> None:
    spatial = int(d.pick(1, 2, 2, 2, 3))
    x = d.source(spatial + 2, ("float32",))
    kind = d.pick("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LRN")
    if kind.startswith("Global"):
        d.add(kind, [x])
    elif kind == "LRN":
        d.add(kind, [x], size=int(d.pick(1, 3, 5)))
    else:
        kernel = [int(d.pick(1, 2, 3, 3, 5)) for _ in range(spatial)]
        more = {"count_include_pad": int(d.rng.integers(2))} if kind == "AveragePool" else {}
        more["ceil_mode"] = int(d.rng.random() < 0.3)
        strides, pads = [int(d.pick(1, 2, 3)) for _ in kernel], [int(d.rng.integers(0, k // 2 + 1)) for k in kernel * 2]
        d.add(kind, [x], kernel_shape=kernel, strides=strides, pads=pads, **more)


def norm(d: Draft) -> None:
    x = d.source(d.pick(2, 3, 4, 5), ("float32",))
    shape = d.value(x).shape
    kind = d.pick("BatchNormalization", "InstanceNormalization", "LayerNormalization")
    if kind == "LayerNormalization":
        d.add(kind, [x, d.new(shape[-1:], "float32", True), d.new(shape[-1:], "float32", True)], axis=-1)
        return
    parts = [d.new((shape[1],), "float32", True) for _ in range(4 if kind.startswith("Batch") else 2)]
    if kind.startswith("Batch"):
        d.constants[parts[3]] = np.abs(d.constants[parts[3]]) + np.float32(0.5)
    d.add(kind, [x, *parts])


def moving(d: Draft) -> None:
    """Operators that move elements."""
    x = d.source()
    value = d.value(x)
    rank, ints = value.ndim, lambda values: d.given(np.array(values, "int64"))
    axis = int(d.rng.integers(0, max(1, rank)))
    kind = d.pick(*MOVING)
    if kind == "Transpose":
        d.add(kind, [x], perm=[int(a) for a in d.rng.permutation(rank)])
    elif kind == "Reshape":
        d.add(kind, [x, ints(d.pick([-1], [1, -1], [*value.shape[::-1]], [*value.shape[:1], -1]))])
    elif kind == "Flatten":
        d.add(kind, [x], axis=axis)
    elif kind == "Squeeze" or kind == "Unsqueeze":
        d.add(kind, [x, ints([axis])])
    elif kind == "Concat":
        other = d.new([int(d.pick(1, 3, e)) if a == axis else e for a, e in enumerate(value.shape)], value.dtype.name)
        d.add(kind, d.pick([x, other], [other, x], [x, x]), axis=axis)
    elif kind == "Split" and rank and value.shape[axis] > 1:
        at = int(d.rng.integers(1, value.shape[axis]))
        d.add(kind, [x, ints([at, value.shape[axis] - at])], 2, axis=axis)
    elif kind == "Slice" and rank:
        ends = sorted(int(e) for e in d.rng.integers(0, value.shape[axis] + 1, 2))
        step = int(d.pick(1, 1, 2, -1))
        start, end = (ends[0], ends[1]) if step > 0 else (ends[1], ends[0])
        d.add(kind, [x, ints([start]), ints([end]), ints([axis]), ints([step])])
    elif kind == "Pad" and rank:
        pads = [int(p) for p in d.rng.integers(0, 3, 2 * rank)]
        d.add(kind, [x, ints(pads)], mode=d.pick("constant", "constant", "reflect", "edge"))
    elif kind == "Expand":
        d.add(kind, [x, ints([int(d.pick(1, 2)), *(int(d.pick(3, 8)) if e == 1 else e for e in value.shape)])])
    elif kind == "Tile":
        d.add(kind, [x, ints([int(d.pick(1, 1, 2)) for _ in range(rank)])])
    elif kind == "Gather" and rank and value.shape[axis]:
        places = d.rng.integers(0, value.shape[axis], d.shape(int(d.pick(0, 1, 1, 2))))
        d.add(kind, [x, ints(places)], axis=axis)
    elif kind == "DepthToSpace":
        d.add(d.pick(kind, "SpaceToDepth"), [x], blocksize=2)
    elif kind == "CumSum":
        d.add(kind, [x, d.given(np.int64(axis))], exclusive=int(d.rng.integers(2)), reverse=int(d.rng.integers(2)))
    elif kind == "Where":
        d.add(kind, [d.new(value.shape, "bool"), x, d.new(value.shape[-1:], value.dtype.name)])
    elif kind == "Clip":
        low = -0.5 if "float" in value.dtype.name else 0
        d.add(kind, [x, d.given(np.array(low, value.dtype)), d.given(np.array(1, value.dtype))])
    elif kind == "Cast":
        from onnx import helper

        if value.dtype.name == "bool" or "float" not in value.dtype.name or np.all(np.abs(value) < 100):
            to = np.dtype(d.pick("float32", "float32", "float64", "float16", "int32", "int64", "int8", "bool"))
            d.add(kind, [x], to=helper.np_dtype_to_tensor_dtype(to))
    elif kind == "Resize" and rank == 4 and value.size:
        sizes = [*value.shape[:2], *(int(e * d.pick(1, 2, 3)) for e in value.shape[2:])]
        d.add(kind, [x, "", "", ints(sizes)], mode=d.pick("nearest", "linear"),
              coordinate_transformation_mode=d.pick("half_pixel", "asymmetric", "align_corners"))  # fmt: skip
    elif kind == "TopK" and rank and value.shape[axis]:
        d.add(kind, [x, ints([int(d.rng.integers(1, value.shape[axis] + 1))])], 2, axis=axis)


KINDS: tuple[Callable[[Draft], None], ...] = (
    unary, unary, unary, binary, binary, reduction, matmul, attention, convolution, convolution, pooling, norm, moving,
    moving, moving, *[part] * 10,
)  # fmt: skip


def random_model(seed: int, opens: bool = False) -> tuple[Any, dict[str, np.ndarray]]:
    """Return the random ONNX model of a seed, with 1 to 20 nodes, and values of its inputs.

    Parameters
    ----------
    opens : bool
        Leave an extent open in some models: of an input, and of the inputs that are as long.

    Examples
    --------
    >>> model, inputs = random_model(0)
    """
    draft = Draft(np.random.default_rng(seed))
    wanted, tries = int(draft.pick(*SIZES)), 0
    with np.errstate(all="ignore"):
        while len(draft.nodes) < wanted and (tries := tries + 1) < 200:
            draft.pick(*KINDS)(draft)
    read = {name for node in draft.nodes for name in node.input}
    more = draft.rng.random() < MORE_OUTPUTS
    ends = [n for n in draft.made if n not in read or (more and draft.rng.random() < 0.5)]
    inputs = {name: value for name, value in draft.inputs.items() if name in read}
    constants = {name: value for name, value in draft.constants.items() if name in read}
    model = as_model(draft.nodes, inputs, constants, ends, draft.made)
    axis = int(draft.pick(0, 0, 0, 1, 2))
    lengths = [value.shape[axis] for value in inputs.values() if value.ndim > axis and value.shape[axis]]
    if opens and lengths and draft.rng.random() < OPEN:
        model = _opened(model, axis, int(draft.pick(*lengths)))
    return model, inputs


def _opened(model: Any, axis: int, length: int) -> Any:
    """Return a model whose inputs of this length have an open one."""
    for value in model.graph.input:
        extents = value.type.tensor_type.shape.dim
        if len(extents) > axis and extents[axis].dim_value == length:
            extents[axis].dim_param = "n"
    for value in model.graph.output:
        value.type.ClearField("value")
    return model
