"""A recurrent layer in a model's graph: a product of all its inputs, and one call of a loop over its steps.

Once for both lines, over a `Graph`. An import does not know the target: the call is of a kernel for any CPU
(`plain_tiles`), which each line replaces by the one that the model chooses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from .cell import Recurrence
from .kernel import tensor_shapes
from .onnx import PLACES, Node, of_node, zeros
from .tiles import plain_tiles
from .weights import prepared


class Graph(ABC):
    """Makes the nodes of a model's graph; a subclass a line."""

    @abstractmethod
    def kind(self, x: Any) -> tuple[list[int | str], str]:
        """Return the shape, text where an extent is open, and the dtype of a tensor."""

    @abstractmethod
    def array(self, x: Any) -> Any:
        """Return the values of a constant; None if the tensor is computed."""

    @abstractmethod
    def constant(self, array: Any) -> Any:
        """Return values as a constant."""

    @abstractmethod
    def turned(self, x: Any, axes: Sequence[int]) -> Any:
        """Return a tensor with its axes in another order."""

    @abstractmethod
    def reshaped(self, x: Any, shape: Sequence[int]) -> Any:
        """Return a tensor in another shape."""

    @abstractmethod
    def product(self, x: Any, columns: Any, start: Any) -> Any:
        """Return the product of a matrix and an array [terms, columns], plus an array of the columns."""

    @abstractmethod
    def padded(self, x: Any, zeros: int) -> Any:
        """Return a tensor of three axes with zeros behind the last axis."""

    @abstractmethod
    def cut(self, x: Any, rank: int, count: int) -> Any:
        """Return the first elements of the last axis."""

    @abstractmethod
    def int32(self, x: Any) -> Any:
        """Return integers as int32."""

    @abstractmethod
    def called(self, layer: Recurrence, arguments: Sequence[Any]) -> Sequence[Any]:
        """Return the outputs of a call of a layer's kernel, in the order of `tensor_shapes`."""


def onnx_outputs(graph: Graph, kind: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> list[Any]:
    """Return Y, Y_h (and Y_c) of a node of ONNX.

    Parameters
    ----------
    kind : {'LSTM', 'GRU', 'RNN'}
    inputs : sequence
        Of the node; None where one is absent.

    Raises
    ------
    UnsupportedOperator
        See `onnx.of_node`.
    """
    given = {name: inputs[at] if at < len(inputs) else None for name, at in PLACES.items()}
    arrays = {name: None if given[name] is None else graph.array(given[name]) for name in ("W", "R", "B", "P")}
    known = {name: array for name, array in arrays.items() if array is not None or given[name] is None}
    x: Any = given["X"]
    node = of_node(kind, attributes, *graph.kind(x), known, given["sequence_lens"] is not None)
    names = {"sequence_lens": "lengths", "initial_h": "h0", "initial_c": "c0"}
    states = {own: given[name] for name, own in names.items() if given[name] is not None}
    if node.batch_first:
        x = graph.turned(x, [1, 0, 2])
        states |= {name: graph.turned(one, [1, 0, 2]) for name, one in states.items() if name != "lengths"}
    y, *last = layer_outputs(graph, node, x, states)
    if node.batch_first:
        y, last = graph.turned(y, [2, 0, 1, 3]), [graph.turned(one, [1, 0, 2]) for one in last]
    return [y, *last]


def layer_outputs(graph: Graph, node: Node, x: Any, states: Mapping[str, Any]) -> list[Any]:
    """Return the outputs of all steps, the last state and, of an LSTM, the cell's.

    Parameters
    ----------
    x : tensor
        [steps, batch, features].
    states : mapping
        'h0', 'c0', 'lengths' -> tensor, as far as they are given.
    """
    layer, tiles = node.layer, plain_tiles(node.layer)
    own = prepared(layer, tiles, *(node.weights[name] for name in ("W", "R", "B", "P")))
    reads, writes = tensor_shapes(layer, tiles)
    flat = graph.reshaped(x, (layer.steps * layer.batch, own["inputs"].shape[0]))
    sums = graph.product(flat, own["inputs"], own["start"])
    given: dict[str, Any] = {"sums": graph.reshaped(sums, reads["sums"])}
    missing = tiles.units - layer.hidden
    for name, state in states.items():
        if name == "lengths":
            given[name] = state if graph.kind(state)[1] == "int32" else graph.int32(state)
        else:
            given[name] = graph.padded(state, missing) if missing else state
    arrays = {**{name: zeros(layer, tiles.units) for name in ("h0", "c0")}, **own}
    arguments = [given[name] if name in given else graph.constant(arrays[name]) for name in reads]
    made = dict(zip(writes, graph.called(layer, arguments), strict=True))
    results = [(made[name], len(shape)) for name, shape in writes.items() if name in ("y", "h", "c")]
    return [graph.cut(one, rank, layer.hidden) if missing else one for one, rank in results]
