"""A failing model made smaller: earlier results as outputs, later values as inputs, fewer nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from roller_check.fuzz.generate import as_model, run_onnx


def shrunk(
    model: Any, inputs: dict[str, np.ndarray], fails: Callable[[Any, dict[str, np.ndarray]], bool], tries: int = 30
) -> tuple[Any, dict[str, np.ndarray]]:
    """Return a model of fewer nodes, and its inputs, that still fails.

    Parameters
    ----------
    fails : function of (model, inputs)
    tries : int
        Calls of `fails` at most.
    """
    from onnx import numpy_helper

    constants = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    nodes, values = list(model.graph.node), _values(model, inputs)
    while tries > 0:
        for chosen in _smaller(nodes):
            candidate = _of(chosen, {**constants, **values, **inputs}, constants)
            tries -= 1
            if candidate is not None and fails(*candidate):
                (model, inputs), nodes = candidate, chosen
                break
            if tries <= 0:
                break
        else:
            break
    return model, inputs


def _smaller(nodes: list[Any]) -> list[list[Any]]:
    """Return parts of a list of nodes, the smallest first."""
    count, parts = len(nodes), []
    size = 1
    while size < count:
        parts += [nodes[at : at + size] for at in range(0, count - size + 1, max(1, size // 2))]
        size *= 2
    return parts + [nodes[:at] + nodes[at + 1 :] for at in reversed(range(count)) if count > 2]


def _values(model: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the values of all results by onnxruntime."""
    import onnx

    every = onnx.ModelProto()
    every.CopyFrom(model)
    del every.graph.output[:]
    names = [name for node in model.graph.node for name in node.output if name]
    every.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    return dict(zip(names, run_onnx(every, inputs), strict=True))


def _of(
    nodes: list[Any], values: dict[str, np.ndarray], constants: dict[str, np.ndarray]
) -> tuple[Any, dict[str, np.ndarray]] | None:
    """Return a model of some nodes; what the others made is an input."""
    made = {name for node in nodes for name in node.output}
    read = {name for node in nodes for name in node.input if name}
    inputs = {name: values[name] for name in sorted(read - made - set(constants))}
    ends = [name for node in nodes for name in node.output if name not in read]
    if not inputs or not ends:
        return None
    return as_model(nodes, inputs, {n: constants[n] for n in sorted(read & set(constants))}, ends, values), inputs
