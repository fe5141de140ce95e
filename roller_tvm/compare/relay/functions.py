"""Named operators as Relay modules, as in a network: weights are parameters known at build time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from roller_tvm.compare.suite import Case
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.ir.operators import lookup, normalize, parse_params, resolve_axes
from roller_tvm.ir.parameters import Window

SEED = 20220711
Build = Callable[["Graph", dict[str, Any]], Any]
_BUILDERS: dict[str, Build] = {}


class Graph:
    """Inputs and weights of a function under construction."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.params: dict[str, np.ndarray] = {}
        self.rng = np.random.default_rng(SEED)

    def data(self, name: str, shape: Any) -> Any:
        from tvm import relay

        return relay.var(name, shape=tuple(shape), dtype=self.dtype)

    def weight(self, name: str, shape: Any) -> Any:
        self.params[name] = self.rng.standard_normal(tuple(shape)).astype(self.dtype)
        return self.data(name, shape)

    def epilogue(self, out: Any, p: dict[str, Any], channels: int, axis: int) -> Any:
        from tvm import relay

        if p["bias"]:
            out = relay.nn.bias_add(out, self.weight("bias", (channels,)), axis)
        return relay.nn.relu(out) if p["relu"] else out


def relay_function(case: Case) -> tuple[Any, dict[str, np.ndarray]]:
    """Return the module and the parameters of a named operator.

    Raises
    ------
    UnsupportedOperator
        Relay splits the operator into several kernels, or has no such operator.

    Examples
    --------
    >>> mod, params = relay_function(Case("D", "dense", "m=4 n=8 k=16 bias=1"))  # doctest: +SKIP
    >>> sorted(params)  # doctest: +SKIP
    ['bias', 'weight']
    """
    import tvm
    from tvm import relay

    name = lookup(case.operator).name
    if name not in _BUILDERS:
        raise UnsupportedOperator(f"Relay splits '{name}' into several kernels", case.id)
    p = normalize(name, parse_params(case.params))
    graph = Graph(p["dtype"])
    out = _BUILDERS[name](graph, p)
    mod = tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(out), out))
    return relay.transform.InferType()(mod), graph.params


def _builds(*names: str) -> Callable[[Build], Build]:
    def enter(build: Build) -> Build:
        _BUILDERS.update(dict.fromkeys(names, build))
        return build

    return enter


def _pads(p: dict[str, Any]) -> tuple[int, int, int, int]:
    high = Window.fit("", "h", p["h"], p["kh"], p["stride"][0], p["dilation"][0], p["padding"], 0)
    wide = Window.fit("", "w", p["w"], p["kw"], p["stride"][1], p["dilation"][1], p["padding"], 1)
    return high.before, wide.before, high.after, wide.after


def _conv(graph: Graph, p: dict[str, Any], layout: str, kernel: str, sizes: dict[str, int], groups: int) -> Any:
    from tvm import relay

    image = {"N": p["n"], "C": p["c"], "H": p["h"], "W": p["w"]}
    channels = sizes["channels"]
    out = relay.nn.conv2d(
        graph.data("data", [image[d] for d in layout]), graph.weight("weight", [sizes[d] for d in kernel]),
        strides=p["stride"], padding=_pads(p), dilation=p["dilation"], groups=groups, channels=channels,
        kernel_size=(p["kh"], p["kw"]), data_layout=layout, kernel_layout=kernel, out_dtype=p["dtype"],
    )  # fmt: skip
    return graph.epilogue(out, p, channels, layout.index("C"))


def _conv2d(layout: str) -> Build:
    def build(graph: Graph, p: dict[str, Any]) -> Any:
        sizes = {"O": p["f"], "I": p["c"] // p["groups"], "H": p["kh"], "W": p["kw"], "channels": p["f"]}
        return _conv(graph, p, layout, {"NCHW": "OIHW", "NHWC": "HWIO"}[layout], sizes, p["groups"])

    return build


def _depthwise(layout: str) -> Build:
    def build(graph: Graph, p: dict[str, Any]) -> Any:
        sizes = {"O": p["c"], "I": p["multiplier"], "H": p["kh"], "W": p["kw"], "channels": p["c"] * p["multiplier"]}
        return _conv(graph, p, layout, {"NCHW": "OIHW", "NHWC": "HWOI"}[layout], sizes, p["c"])

    return build


for _layout in ("NCHW", "NHWC"):
    _builds(f"conv2d_{_layout.lower()}")(_conv2d(_layout))
    _builds(f"depthwise_conv2d_{_layout.lower()}")(_depthwise(_layout))


@_builds("dense")
def _dense(graph: Graph, p: dict[str, Any]) -> Any:
    from tvm import relay

    out = relay.nn.dense(graph.data("data", (p["m"], p["k"])), graph.weight("weight", (p["n"], p["k"])))
    return graph.epilogue(out, p, p["n"], 1)


@_builds("matmul")
def _matmul(graph: Graph, p: dict[str, Any]) -> Any:
    from tvm import relay

    left, right = (letter == "T" for letter in p["layout"])
    a = graph.data("A", (p["k"], p["m"]) if left else (p["m"], p["k"]))
    b = graph.data("B", (p["n"], p["k"]) if right else (p["k"], p["n"]))
    out = relay.nn.matmul(a, b, transpose_a=left, transpose_b=right)
    return graph.epilogue(out, p, p["n"], 1)


@_builds("batch_matmul")
def _batch_matmul(graph: Graph, p: dict[str, Any]) -> Any:
    from tvm import relay

    left, right = (letter == "T" for letter in p["layout"])
    a = graph.data("A", (p["b"], *((p["k"], p["m"]) if left else (p["m"], p["k"]))))
    b = graph.data("B", (p["b"], *((p["n"], p["k"]) if right else (p["k"], p["n"]))))
    out = relay.nn.batch_matmul(a, b, transpose_a=left, transpose_b=right)
    return graph.epilogue(out, p, p["n"], 2)


@_builds("avg_pool2d_nchw", "max_pool2d_nchw")
def _pool(graph: Graph, p: dict[str, Any]) -> Any:
    from tvm import relay

    data = graph.data("data", (p["n"], p["c"], p["h"], p["w"]))
    pool = {"avg": relay.nn.avg_pool2d, "max": relay.nn.max_pool2d}[p["kind"]]
    return pool(data, (p["kh"], p["kw"]), p["stride"], p["dilation"], _pads(p))


@_builds("global_avg_pool2d_nchw")
def _mean(graph: Graph, p: dict[str, Any]) -> Any:
    from tvm import relay

    return relay.nn.global_avg_pool2d(graph.data("data", (p["n"], p["c"], p["h"], p["w"])))


def _reduce(kind: str) -> Build:
    def build(graph: Graph, p: dict[str, Any]) -> Any:
        from tvm import relay

        axes = list(resolve_axes(kind, p["shape"], p["axis"]))
        return getattr(relay, kind)(graph.data("data", p["shape"]), axes, p["keepdims"])

    return build


for _kind in ("sum", "max"):
    _builds(f"reduce_{_kind}")(_reduce(_kind))


@_builds("softmax")
def _softmax(graph: Graph, p: dict[str, Any]) -> Any:
    from tvm import relay

    return relay.nn.softmax(graph.data("data", p["shape"]), resolve_axes("softmax", p["shape"], p["axis"])[0])


@_builds("relu")
def _relu(graph: Graph, p: dict[str, Any]) -> Any:
    from tvm import relay

    return relay.nn.relu(graph.data("data", p["shape"]))


@_builds("add")
def _add(graph: Graph, p: dict[str, Any]) -> Any:
    from tvm import relay

    return relay.add(graph.data("A", p["shape"]), graph.data("B", p["other"] or p["shape"]))


@_builds("transpose")
def _transpose(graph: Graph, p: dict[str, Any]) -> Any:
    from tvm import relay

    return relay.transpose(graph.data("data", p["shape"]), p["perm"])
