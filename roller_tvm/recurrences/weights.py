"""Weights of a recurrence as its kernel reads them, by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cell import Recurrence
from .tiles import Tiles


def padded(array: Any, gates: int, hidden: int, units: int) -> Any:
    """Return [directions, gates * hidden, ...] as [directions, gates, units, ...], zeros for units that are none."""
    shaped = array.reshape(array.shape[0], gates, hidden, *array.shape[2:])
    return np.pad(shaped, [(0, 0), (0, 0), (0, units - hidden), *[(0, 0)] * (array.ndim - 2)])


def prepared(layer: Recurrence, tiles: Tiles, w: Any, r: Any, b: Any, p: Any) -> dict[str, Any]:
    """Return the constants of a layer, given ONNX's W, R, B and P (None where absent).

    ``inputs`` [features, directions * gates * units] and ``start`` of the same columns are for the product of the
    inputs; the others are the kernel's.
    """
    gates, hidden, units = len(layer.cell.gates), layer.hidden, tiles.units
    d = layer.directions
    b = np.zeros((d, 2 * gates * hidden), "float32") if b is None else np.asarray(b)
    wb, rb = (padded(half, gates, hidden, units) for half in np.split(b, 2, axis=1))
    made: dict[str, Any] = {}
    if layer.cell.kind == "GRU" and layer.cell.linear_before_reset:
        made["bias"] = np.ascontiguousarray(rb[:, 2])
        rb = rb.copy()
        rb[:, 2] = 0
    made["start"] = (wb + rb).reshape(-1)
    columns = padded(w, gates, hidden, units).reshape(-1, w.shape[2])
    made["inputs"] = np.ascontiguousarray(columns.T)
    made["weights"] = in_blocks(padded(r, gates, hidden, units).transpose(0, 3, 1, 2), tiles.block)
    if layer.cell.peepholes:
        made["peepholes"] = padded(p, 3, hidden, units)
    return made


def in_blocks(columns: Any, block: int) -> Any:
    """Return [direction, state, gate, unit] as [direction, ...]: block, state, gate, unit of the block.

    Examples
    --------
    >>> in_blocks(np.arange(8).reshape(1, 1, 2, 4), 2)
    array([[0, 1, 4, 5, 2, 3, 6, 7]])
    """
    d, hidden, gates, units = columns.shape
    blocks = columns.reshape(d, hidden, gates, units // block, block).transpose(0, 3, 1, 2, 4)
    return np.ascontiguousarray(blocks.reshape(d, -1))


def in_columns(weights: Any, layer: Recurrence, tiles: Tiles) -> Any:
    """Return a state's weights, which are in the blocks of some tiles, as [direction, state, gate, unit]."""
    gates = len(layer.cell.gates)
    blocks = weights.reshape(layer.directions, tiles.blocks, layer.hidden, gates, tiles.block)
    return blocks.transpose(0, 2, 3, 1, 4).reshape(layer.directions, layer.hidden, gates, tiles.units)


def in_other_blocks(weights: Any, layer: Recurrence, before: Tiles, after: Tiles) -> Any:
    """Return a state's weights, which are in the blocks of some tiles, in those of others."""
    return in_blocks(in_columns(weights, layer, before), after.block)
