"""A built model's graph with its kernels called through sites (`explore.dispatch`), and weights in further layouts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..explore.dispatch import SITE, Site, Variant

#: TVM's name of a kernel that does nothing: the tensor is only seen in another shape.
_NOTHING = "__nop"


class Call:
    """A call of a kernel in a graph.

    Parameters
    ----------
    weights : dict of int to array
        Values of the inputs that are constants.

    Attributes
    ----------
    options : list of (label, kernel, sources)
        A source is ("in", n), ("more", n) for a weight that was added, or ("out", n).
    """

    def __init__(self, node: dict[str, Any], weights: Mapping[int, np.ndarray]) -> None:
        self.node, self.weights = node, weights
        self.name, self.kernel = str(node["name"]), str(node["attrs"]["func_name"])
        self.inputs, self.outputs = len(node["inputs"]), int(node["attrs"]["num_outputs"])
        self.more: list[np.ndarray] = []
        self.options: list[tuple[str, str, list[tuple[str, int]]]] = []

    def start(self, label: str) -> None:
        """Add the kernel that is called as built."""
        own = [("in", n) for n in range(self.inputs)] + [("out", n) for n in range(self.outputs)]
        self.options.append((label, self.kernel, own))

    def weight(self, at: int, values: np.ndarray) -> tuple[str, int]:
        """Return the source of an input's weight in another layout, added unless it is there."""
        if _same(values, self.weights[at]):
            return "in", at
        for n, known in enumerate(self.more):
            if _same(values, known):
                return "more", n
        self.more.append(values)
        return "more", len(self.more) - 1

    def site(self) -> Site:
        """Return the call as a site, whose arguments are inputs, added weights, outputs."""
        begins = {"in": 0, "more": self.inputs, "out": self.inputs + len(self.more)}
        variants = tuple(Variant(kernel, tuple(begins[kind] + n for kind, n in sources))
                         for _, kernel, sources in self.options)  # fmt: skip
        return Site(self.kernel, tuple(label for label, _, _ in self.options), variants)


class Graph:
    """The graph of a built model.

    Parameters
    ----------
    text : str
        JSON, as the graph executor reads it.
    params : dict of str to NDArray
    """

    def __init__(self, text: str, params: Mapping[str, Any]) -> None:
        self.data = json.loads(text)
        self.params = dict(params)
        self.calls = list(self._calls())

    def _calls(self) -> Iterator[Call]:
        nodes = self.data["nodes"]
        for node in nodes:
            if node["op"] == "tvm_op" and node["attrs"]["func_name"] != _NOTHING:
                names = [str(nodes[n]["name"]) for n, *_ in node["inputs"]]
                yield Call(node, {n: self.params[name].numpy() for n, name in enumerate(names) if name in self.params})

    def through_sites(self, sites: Sequence[Site]) -> str:
        """Return the graph whose n-th call is that of the n-th site; `params` has the added weights then."""
        for number, (call, _) in enumerate(zip(self.calls, sites, strict=True)):
            call.node["attrs"]["func_name"] = f"{SITE}{number}"
            call.node["inputs"] += [[self._add(values), 0, 0] for values in call.more]
            call.node["attrs"]["num_inputs"] = str(len(call.node["inputs"]))
        return json.dumps(self.data)

    def _add(self, values: np.ndarray) -> int:
        """Add a weight as the last node; return its number."""
        import tvm

        number, attrs = len(self.data["nodes"]), self.data["attrs"]
        name = f"roller_tvm_weight_{number}"
        self.params[name] = tvm.nd.array(values)
        self.data["nodes"].append({"op": "null", "name": name, "inputs": []})
        self.data["arg_nodes"].append(number)
        self.data["node_row_ptr"].append(self.data["node_row_ptr"][-1] + 1)
        attrs["dltype"][1].append(str(values.dtype))
        attrs["shape"][1].append(list(values.shape))
        attrs["storage_id"][1].append(max(attrs["storage_id"][1]) + 1)
        if "device_index" in attrs:
            attrs["device_index"][1].append(attrs["device_index"][1][0])
        return number


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bool(np.array_equal(one, other))
