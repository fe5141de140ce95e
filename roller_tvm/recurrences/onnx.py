"""ONNX's LSTM, GRU and RNN nodes as recurrences. Needs no onnx."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UnsupportedOperator
from .cell import DIRECTIONS, GATES, Cell, Recurrence, activations

#: Input of a node -> its place.
PLACES = {"X": 0, "W": 1, "R": 2, "B": 3, "sequence_lens": 4, "initial_h": 5, "initial_c": 6, "P": 7}


@dataclass(frozen=True, eq=False)
class Node:
    """A recurrent node: its layer, its weights, and whether the batch is its tensors' first axis.

    Parameters
    ----------
    weights : dict
        'W', 'R', 'B', 'P' -> array, or None where it is absent.
    """

    layer: Recurrence
    weights: dict[str, Any]
    batch_first: bool


def of_node(
    kind: str, attributes: Mapping[str, Any], shape: Sequence[Any], dtype: str, weights: Mapping[str, Any],
    lengths: bool,
) -> Node:  # fmt: skip
    """Return a node's layer.

    Parameters
    ----------
    kind : {'LSTM', 'GRU', 'RNN'}
    attributes : mapping
        Name -> value; text may be bytes.
    shape, dtype
        Of its input X; an extent that is no int is open.
    weights : mapping
        'W', 'R', 'B', 'P' -> array, None where it is absent; left out where it is computed in the graph.
    lengths : bool
        Whether it has sequence_lens.

    Raises
    ------
    UnsupportedOperator
        Weights are computed, extents are open, numbers are not float32, an attribute's value is unknown.

    Examples
    --------
    >>> w, r = np.zeros((1, 32, 4), "float32"), np.zeros((1, 32, 8), "float32")
    >>> weights = {"W": w, "R": r, "B": None, "P": None}
    >>> of_node("LSTM", {"hidden_size": 8}, (5, 1, 4), "float32", weights, False).layer.steps
    5
    """
    own = {name: _plain(value) for name, value in attributes.items()}
    for name in ("W", "R", "B", "P"):
        if name not in weights:
            raise _refused(kind, f"its {name} is computed in the graph", "give its weights as constants")
        if weights[name] is not None and (str(weights[name].dtype) != "float32" or dtype != "float32"):
            raise _refused(kind, f"its numbers are {dtype} and {weights[name].dtype}", "export it in float32")
    direction = str(own.get("direction", "forward"))
    if direction not in DIRECTIONS:
        raise _refused(kind, f"its direction is '{direction}'", f"give one of {', '.join(DIRECTIONS)}")
    if not all(isinstance(extent, int) for extent in shape):
        raise _refused(kind, f"its input has open extents [{', '.join(map(str, shape))}]", "fix them: --input-shapes")
    backward = DIRECTIONS[direction]
    functions = activations(
        kind, len(backward), [str(_plain(name)) for name in own.get("activations", ())],
        list(own.get("activation_alpha", ())), list(own.get("activation_beta", ())),
    )  # fmt: skip
    hidden, gates = weights["R"].shape[-1], len(GATES[kind])
    wanted = (len(backward), gates * hidden)
    if weights["W"].shape[:2] != wanted or weights["R"].shape[:2] != wanted or hidden != own.get("hidden_size", hidden):
        told = f"W is {list(weights['W'].shape)} and R {list(weights['R'].shape)} for a hidden size of {hidden}"
        raise _refused(kind, told, "check the model")
    batch_first = bool(own.get("layout", 0))
    steps, batch = (shape[1], shape[0]) if batch_first else (shape[0], shape[1])
    if 0 in (steps, batch, hidden):
        raise _refused(kind, f"its input [{', '.join(map(str, shape))}] has no elements", "leave the node out")
    cell = Cell(
        kind, functions, float(own.get("clip", 0.0)), bool(own.get("linear_before_reset", 0)),
        bool(own.get("input_forget", 0)), weights["P"] is not None,
    )  # fmt: skip
    return Node(Recurrence(cell, steps, batch, hidden, backward, lengths), dict(weights), batch_first)


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _refused(kind: str, why: str, remedy: str) -> UnsupportedOperator:
    return UnsupportedOperator(f"{kind}: {why}", remedy=remedy)


def zeros(layer: Recurrence, units: int) -> Any:
    """Return the first state where none is given."""
    return np.zeros((layer.directions, layer.batch, units), "float32")
