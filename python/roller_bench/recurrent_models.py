"""ONNX models of recurrent layers with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from roller_tvm.recurrences.cell import GATES


def recurrent_model(
    kind: str, steps: int, batch: int, features: int, hidden: int, direction: str = "forward", layers: int = 1,
    biases: bool = True, states: bool = False, lengths: Sequence[int] | None = None, peepholes: bool = False,
    seed: int = 0, **attributes: Any,
) -> tuple[Any, dict[str, np.ndarray]]:  # fmt: skip
    """Return a model of some layers one on the other, and random inputs by name.

    Parameters
    ----------
    kind : {'LSTM', 'GRU', 'RNN'}
    states : bool
        Whether the first states are inputs.
    lengths : sequence of int, optional
        Of the rows.
    **attributes
        Of the nodes.

    Examples
    --------
    >>> model, inputs = recurrent_model("GRU", steps=5, batch=1, features=4, hidden=8, layers=2)
    >>> [node.op_type for node in model.graph.node], inputs["X"].shape
    (['GRU', 'Transpose', 'Reshape', 'GRU'], (5, 1, 4))
    """
    rng, ways, gates = np.random.default_rng(seed), 1 + (direction == "bidirectional"), len(GATES[kind])
    turned = bool(attributes.get("layout"))

    def values(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (rng.normal(size=shape) * scale).astype("float32")

    if "activations" in attributes:
        attributes["activations"] = attributes["activations"] * (ways if len(attributes["activations"]) < 2 * ways
                                                                 and kind != "RNN" else 1)  # fmt: skip
    inputs = {"X": values(batch, steps, features) if turned else values(steps, batch, features)}
    tensors: dict[str, np.ndarray] = {"shape": np.array([steps, batch, ways * hidden], "int64")}
    nodes, current = [], "X"
    if lengths is not None:
        tensors["lengths"] = np.array(lengths, "int32")
    for number in range(layers):
        wide = features if number == 0 else ways * hidden
        own = {"W": values(ways, gates * hidden, wide, scale=wide**-0.5)}
        own["R"] = values(ways, gates * hidden, hidden, scale=hidden**-0.5)
        if biases:
            own["B"] = values(ways, 2 * gates * hidden, scale=0.3)
        if peepholes:
            own["P"] = values(ways, 3 * hidden, scale=0.5)
        tensors |= {f"{name}{number}": array for name, array in own.items()}
        given = [current, *(f"{name}{number}" if name in own else "" for name in "WRB"), "lengths" if lengths else ""]
        for state in ("h", "c") if kind == "LSTM" else ("h",):
            given.append(f"{state}{number}" if states else "")
            if states:
                inputs[given[-1]] = values(*((batch, ways) if turned else (ways, batch)), hidden)
        if peepholes:
            given.append(f"P{number}")
        while not given[-1]:
            given.pop()
        outs = [f"Y{number}", f"Y_h{number}", f"Y_c{number}"][: 3 if kind == "LSTM" else 2]
        nodes.append(helper.make_node(kind, given, outs, f"node{number}", hidden_size=hidden, direction=direction,
                                      **attributes))  # fmt: skip
        if number < layers - 1:
            current = f"x{number + 1}"
            nodes.append(helper.make_node("Transpose", outs[:1], [f"t{number}"], perm=[0, 2, 1, 3]))
            nodes.append(helper.make_node("Reshape", [f"t{number}", "shape"], [current]))
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape) for name, value in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outs]
    used = {name for node in nodes for name in node.input}
    constants = [numpy_helper.from_array(array, name) for name, array in tensors.items() if name in used]
    graph = helper.make_graph(nodes, kind, infos, results, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    return model, inputs
