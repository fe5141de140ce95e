"""torch's LSTM, GRU and RNN modules in Relax: each layer one loop over its steps (`recurrent`).

torch's own decomposition, and TVM's importer, write out every step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tvm import relax

from ..recurrences.cell import Cell, Recurrence, activations
from ..recurrences.graph import layer_outputs
from ..recurrences.onnx import Node
from .recurrent import RelaxGraph

#: Operator of torch -> kind of a cell, and its activations where they are not the usual ones.
KINDS: dict[str, tuple[str, list[str]]] = {
    "lstm.input": ("LSTM", []),
    "gru.input": ("GRU", []),
    "rnn_tanh.input": ("RNN", []),
    "rnn_relu.input": ("RNN", ["Relu"]),
}
#: Place of each of ONNX's gates among torch's.
ORDER = {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2], "RNN": [0]}

Converter = Callable[[Any, Any], Any]


def kept(program: Any) -> list[str]:
    """Return the operators of a program that `converters` read, and that need not be written out step by step.

    An operator stays if all its calls have known weights and sizes, numbers in float32, and no dropout or projection.
    """
    weights = _weights(program)
    fits: dict[str, bool] = {}
    for node in program.graph.nodes:
        name = str(node.target).removeprefix("aten.")
        if node.op == "call_function" and name in KINDS:
            fits[name] = fits.get(name, True) and _fits(node, weights)
    return [name for name, all_fit in fits.items() if all_fit]


def without_steps(program: Any) -> Any:
    """Return a program in core ATen, in which the operators of `kept` stay."""
    import torch

    table = torch.export.default_decompositions()
    for name in kept(program):
        packet, overload = name.split(".")
        table.pop(getattr(getattr(torch.ops.aten, packet), overload), None)
    return program.run_decompositions(table)


def converters(program: Any) -> dict[str, Converter]:
    """Return converters for TVM's importer: of a node and the importer to a tuple of Relax."""
    weights = _weights(program)
    return {name: partial(_converted, name, weights) for name in KINDS}


def _weights(program: Any) -> dict[str, Any]:
    """Return the parameters, buffers and constants of a program by the names of their nodes."""
    found = {}
    for spec in program.graph_signature.input_specs:
        values = program.constants if spec.kind.name == "CONSTANT_TENSOR" else program.state_dict
        if spec.target in values:
            found[spec.arg.name] = values[spec.target]
    return found


def _fits(node: Any, weights: dict[str, Any]) -> bool:
    import torch

    x, _, params, biases, layers, _, _, both_ways = node.args[:8]
    value = x.meta["val"]
    each = 4 if biases else 2
    known = len(params) == each * layers * (1 + both_ways) and all(one.name in weights for one in params)
    fixed = all(isinstance(extent, int) and extent > 0 for extent in value.shape)
    wide = all(one.meta["val"].dtype == torch.float32 for one in (x, *params))
    return known and fixed and wide and without_dropout(node)


def without_dropout(node: Any) -> bool:
    """Return whether a node is one of these operators, and drops nothing between its layers."""
    recurrent = node.op == "call_function" and str(node.target).removeprefix("aten.") in KINDS
    return recurrent and not (node.args[5] and node.args[6])


def _converted(name: str, weights: dict[str, Any], node: Any, importer: Any) -> Any:
    """Return the outputs of all steps, and the last states of all layers."""
    bb, (kind, functions) = importer.block_builder, KINDS[name]
    x_node, states, params, biases, layers, _, _, both_ways, batch_first = node.args
    arrays = [np.ascontiguousarray(weights[one.name].detach().cpu().numpy()) for one in params]
    x, backward = importer.env[x_node], (False, True) if both_ways else (False,)
    first = [importer.env[one] for one in (states if kind == "LSTM" else [states])]
    if batch_first:
        x = bb.emit(relax.op.permute_dims(x, [1, 0, 2]))
    steps, batch = (int(extent) for extent in x.ty.shape.values[:2])
    cell = Cell(kind, activations(kind, len(backward), functions * len(backward), [], []), linear_before_reset=True)
    lasts: list[list[Any]] = [[] for _ in first]
    each, ways = 4 if biases else 2, len(backward)
    for number in range(layers):
        some = arrays[number * ways * each : (number + 1) * ways * each]
        own = _in_onnx_order(kind, [some[d * each : (d + 1) * each] for d in range(ways)])
        layer = Recurrence(cell, steps, batch, own["R"].shape[-1], backward, rows_first=True)
        given = {}
        for state, whole in zip(("h0", "c0"), first, strict=False):
            part = relax.op.strided_slice(whole, [0], [number * ways], [(number + 1) * ways])
            given[state] = bb.emit(part) if layers > 1 else whole
        y, *last = layer_outputs(RelaxGraph(bb), Node(layer, own, False), x, given)
        for found, one in zip(lasts, last, strict=True):
            found.append(one)
        x = bb.emit(relax.op.reshape(y, (steps, batch, ways * layer.hidden)))
    if batch_first:
        x = bb.emit(relax.op.permute_dims(x, [1, 0, 2]))
    together = [bb.emit(relax.op.concat(found, 0)) if layers > 1 else found[0] for found in lasts]
    return relax.Tuple([x, *together])


def _in_onnx_order(kind: str, directions: list[list[Any]]) -> dict[str, Any]:
    """Return W, R, B and P, given the weights and biases of each direction in torch's order of gates."""
    def ordered(array: Any) -> Any:
        parts = np.split(array, len(ORDER[kind]))
        return np.concatenate([parts[at] for at in ORDER[kind]])

    turned = [[ordered(array) for array in own] for own in directions]
    stacked = [np.stack(arrays) for arrays in zip(*turned, strict=True)]
    bias = np.concatenate(stacked[2:], axis=1) if len(stacked) > 2 else None
    return {"W": stacked[0], "R": stacked[1], "B": bias, "P": None}
