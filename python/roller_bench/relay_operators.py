"""Named operators as Relay modules, as in a network: weights are parameters known at build time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from roller_bench.cases import Case
from roller_bench.networks import SEED
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.ir.operators import lookup, normalize, parse_params, resolve_axes
from roller_tvm.ir.parameters import Window


def relay_function(case: Case) -> tuple[Any, dict[str, np.ndarray]]:
    """Return the module and the parameters of a named operator.

    Raises
    ------
    UnsupportedOperator
        Relay splits the operator into several kernels, or has no such operator.

    Examples
    --------
    >>> mod, params = relay_function(Case("D", "dense", "m=4 n=8 k=16 bias=1"))
    >>> sorted(params)
    ['bias', 'weight']
    """
    import tvm
    from tvm import relay

    name = lookup(case.operator).name
    if name not in BUILDERS:
        raise UnsupportedOperator(f"Relay splits '{name}' into several kernels", case.id)
    p = normalize(name, parse_params(case.params))
    graph = Graph(relay, p)
    out = BUILDERS[name](graph, p)
    mod = tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(out), out))
    return relay.transform.InferType()(mod), graph.params


class Graph:
    """Inputs and weights of a function under construction.

    Parameters
    ----------
    relay : module
        ``tvm.relay``, which is imported only where there is one.
    p : dict
        Parameters of the operator.
    """

    def __init__(self, relay: Any, p: dict[str, Any]) -> None:
        self.relay, self.p = relay, p
        self.params: dict[str, np.ndarray] = {}
        self.rng = np.random.default_rng(SEED)

    def data(self, *shape: int, name: str = "data") -> Any:
        return self.relay.var(name, shape=shape, dtype=self.p["dtype"])

    def weight(self, *shape: int, name: str = "weight") -> Any:
        self.params[name] = self.rng.standard_normal(shape).astype(self.p["dtype"])
        return self.data(*shape, name=name)

    def epilogue(self, out: Any, channels: int, axis: int) -> Any:
        """Add the bias and the ReLU that the operator asks for."""
        if self.p["bias"]:
            out = self.relay.nn.bias_add(out, self.weight(channels, name="bias"), axis)
        return self.relay.nn.relu(out) if self.p["relu"] else out


def _pads(p: dict[str, Any]) -> tuple[int, int, int, int]:
    high = Window.fit("", "h", p["h"], p["kh"], p["stride"][0], p["dilation"][0], p["padding"], 0)
    wide = Window.fit("", "w", p["w"], p["kw"], p["stride"][1], p["dilation"][1], p["padding"], 1)
    return high.before, wide.before, high.after, wide.after


def _conv(layout: str, kernel: str, depthwise: bool, graph: Graph, p: dict[str, Any]) -> Any:
    image = {"N": p["n"], "C": p["c"], "H": p["h"], "W": p["w"]}
    groups = p["c"] if depthwise else p["groups"]
    channels = p["c"] * p["multiplier"] if depthwise else p["f"]
    sizes = {"O": p["c"] if depthwise else p["f"], "I": p["multiplier"] if depthwise else p["c"] // groups,
             "H": p["kh"], "W": p["kw"]}  # fmt: skip
    out = graph.relay.nn.conv2d(
        graph.data(*(image[d] for d in layout)), graph.weight(*(sizes[d] for d in kernel)),
        strides=p["stride"], padding=_pads(p), dilation=p["dilation"], groups=groups, channels=channels,
        kernel_size=(p["kh"], p["kw"]), data_layout=layout, kernel_layout=kernel, out_dtype=p["dtype"],
    )  # fmt: skip
    return graph.epilogue(out, channels, layout.index("C"))


def _dense(graph: Graph, p: dict[str, Any]) -> Any:
    out = graph.relay.nn.dense(graph.data(p["m"], p["k"]), graph.weight(p["n"], p["k"]))
    return graph.epilogue(out, p["n"], 1)


def _matmul(function: str, graph: Graph, p: dict[str, Any]) -> Any:
    batch = (p["b"],) if function == "batch_matmul" else ()
    left, right = (letter == "T" for letter in p["layout"])
    a = graph.data(*batch, *((p["k"], p["m"]) if left else (p["m"], p["k"])), name="A")
    b = graph.data(*batch, *((p["n"], p["k"]) if right else (p["k"], p["n"])), name="B")
    out = getattr(graph.relay.nn, function)(a, b, transpose_a=left, transpose_b=right)
    return graph.epilogue(out, p["n"], 1 + len(batch))


def _pool(graph: Graph, p: dict[str, Any]) -> Any:
    pool = getattr(graph.relay.nn, f"{p['kind']}_pool2d")
    data = graph.data(p["n"], p["c"], p["h"], p["w"])
    return pool(data, (p["kh"], p["kw"]), p["stride"], p["dilation"], _pads(p))


def _reduce(kind: str, graph: Graph, p: dict[str, Any]) -> Any:
    axes = list(resolve_axes(kind, p["shape"], p["axis"]))
    return getattr(graph.relay, kind)(graph.data(*p["shape"]), axes, p["keepdims"])


def _softmax(graph: Graph, p: dict[str, Any]) -> Any:
    return graph.relay.nn.softmax(graph.data(*p["shape"]), resolve_axes("softmax", p["shape"], p["axis"])[0])


def _add(graph: Graph, p: dict[str, Any]) -> Any:
    return graph.relay.add(graph.data(*p["shape"], name="A"), graph.data(*(p["other"] or p["shape"]), name="B"))


#: Name of an operator -> function of its graph and parameters that returns the result.
BUILDERS: dict[str, Callable[[Graph, dict[str, Any]], Any]] = {
    "conv2d_nchw": partial(_conv, "NCHW", "OIHW", False), "conv2d_nhwc": partial(_conv, "NHWC", "HWIO", False),
    "depthwise_conv2d_nchw": partial(_conv, "NCHW", "OIHW", True),
    "depthwise_conv2d_nhwc": partial(_conv, "NHWC", "HWOI", True),
    "dense": _dense, "matmul": partial(_matmul, "matmul"), "batch_matmul": partial(_matmul, "batch_matmul"),
    "avg_pool2d_nchw": _pool, "max_pool2d_nchw": _pool,
    "global_avg_pool2d_nchw": lambda g, p: g.relay.nn.global_avg_pool2d(g.data(p["n"], p["c"], p["h"], p["w"])),
    "reduce_sum": partial(_reduce, "sum"), "reduce_max": partial(_reduce, "max"), "softmax": _softmax, "add": _add,
    "relu": lambda g, p: g.relay.nn.relu(g.data(*p["shape"])),
    "transpose": lambda g, p: g.relay.transpose(g.data(*p["shape"]), p["perm"]),
}  # fmt: skip
