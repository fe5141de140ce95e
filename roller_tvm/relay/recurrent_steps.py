"""Recurrences written out step by step in Relay, for targets that have no kernel of all steps: GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relay

from ..recurrences.cell import Activation, Recurrence
from ..recurrences.kernel import tensor_shapes
from ..recurrences.tiles import Tiles
from ..recurrences.weights import in_columns


def written_out(layer: Recurrence, tiles: Tiles, arguments: Sequence[Any]) -> list[Any]:
    """Return the outputs of a layer's kernel as operators of Relay; those that only the kernel reads are zeros.

    Parameters
    ----------
    arguments : sequence of relay.Expr
        As the kernel reads them; ``weights`` is a constant.
    """
    reads, writes = tensor_shapes(layer, tiles)
    given = dict(zip(reads, arguments, strict=True))
    columns = in_columns(given["weights"].data.numpy(), layer, tiles)
    ways = [_Direction(layer, tiles, given, columns[d], d) for d in range(layer.directions)]
    for way in ways:
        way.run()
    y = relay.stack([relay.stack(steps, 0) for steps in zip(*(way.outputs for way in ways), strict=True)], 0)
    made = {"y": relay.transpose(y, [0, 2, 1, 3]) if layer.rows_first else y,
            "h": relay.stack([way.h for way in ways], 0), "c": relay.stack([way.c for way in ways], 0)}  # fmt: skip
    return [made.get(name, relay.const(np.zeros(shape, "float32"))) for name, shape in writes.items()]


class _Direction:
    """The steps of one direction: outputs by place in time, and the state after the steps so far."""

    def __init__(self, layer: Recurrence, tiles: Tiles, given: dict[str, Any], columns: Any, d: int) -> None:
        self.layer, self.given, self.d, self.units = layer, given, d, tiles.units
        # [gate, unit, state]: the state has units that are none, too
        missing = tiles.units - layer.hidden
        self.columns = np.pad(columns.transpose(1, 2, 0), [(0, 0), (0, 0), (0, missing)]).astype("float32")
        self.h, self.c = self._of_direction("h0"), self._of_direction("c0" if "c0" in given else "h0")
        self.outputs: list[Any] = [None] * layer.steps

    def run(self) -> None:
        """Make the steps one after the other."""
        steps = relay.split(self.given["sums"], self.layer.steps, 0)
        backward = self.layer.backward[self.d]
        for t in reversed(range(self.layer.steps)) if backward else range(self.layer.steps):
            parts = relay.split(self._squeezed(steps[t], self.d, 2, [0, 2]), len(self.layer.cell.gates), 1)
            h, c = self._step([relay.squeeze(part, [1]) for part in parts])
            if self.layer.lengths:
                lengths = relay.reshape(self.given["lengths"], (self.layer.batch, 1))
                within = relay.less(relay.const(np.int32(t)), lengths)
                self.outputs[t] = relay.where(within, h, relay.zeros_like(h))
                h, c = relay.where(within, h, self.h), relay.where(within, c, self.c)
            else:
                self.outputs[t] = h
            self.h, self.c = h, c

    def _step(self, x: list[Any]) -> tuple[Any, Any]:
        """Return the state after a step, given the products of its inputs for each gate."""
        cell = self.layer.cell
        if cell.kind == "RNN":
            return self._gate(0, x[0] + self._products(self.h, [0])[0]), self.c
        if cell.kind == "LSTM":
            return self._lstm([a + b for a, b in zip(x, self._products(self.h, range(4)), strict=True)])
        if cell.two_phases:
            z, r = (self._gate(0, a + b) for a, b in zip(x, self._products(self.h, [0, 1]), strict=False))
            inner = self._products(r * self.h, [2])[0]
        else:
            product = self._products(self.h, range(3))
            z, r = (self._gate(0, a + b) for a, b in zip(x, product[:2], strict=False))
            inner = r * (product[2] + self._of_direction("bias"))
        return (relay.const(1.0) - z) * self._gate(1, x[2] + inner) + z * self.h, self.c

    def _lstm(self, sums: list[Any]) -> tuple[Any, Any]:
        i, o, f, new = sums
        cell = self.layer.cell
        peepholes: list[Any] = []
        if cell.peepholes:
            own = relay.split(self._of_direction("peepholes"), 3, 0)
            peepholes = [own[number] for number in range(3)]
            i, f = i + peepholes[0] * self.c, f + peepholes[2] * self.c
        i = self._gate(0, i)
        forget = relay.const(1.0) - i if cell.input_forget else self._gate(0, f)
        c = forget * self.c + i * self._gate(1, new)
        out = o + peepholes[1] * c if peepholes else o
        return self._gate(0, out) * self._activated(2, c), c

    def _products(self, state: Any, gates: Sequence[int]) -> list[Any]:
        """Return the products of the state for some gates."""
        columns = self.columns[list(gates)].reshape(-1, self.units)
        parts = relay.split(relay.nn.dense(state, relay.const(columns)), len(gates), 1)
        return [parts[number] for number in range(len(gates))]

    def _gate(self, which: int, x: Any) -> Any:
        bound = self.layer.cell.clip
        return self._activated(which, relay.clip(x, -bound, bound) if bound else x)

    def _activated(self, which: int, x: Any) -> Any:
        own = self.layer.cell.activations[self.d][which]
        return _ACTIVATIONS[own.name](x, own)

    def _of_direction(self, name: str) -> Any:
        return self._squeezed(self.given[name], self.d, 0, [0])

    def _squeezed(self, x: Any, at: int, axis: int, axes: list[int]) -> Any:
        """Return the part of a tensor at one place of an axis, without axes of one element."""
        return relay.squeeze(relay.strided_slice(x, [at], [at + 1], axes=[axis]), axes)


def _elu(x: Any, f: Activation) -> Any:
    return relay.where(x < relay.const(0.0), relay.const(f.alpha) * (relay.exp(x) - relay.const(1.0)), x)


def _thresholded(x: Any, f: Activation) -> Any:
    return relay.where(x > relay.const(f.alpha), x, relay.zeros_like(x))


def _softplus(x: Any, _: Activation) -> Any:
    return relay.nn.relu(x) + relay.log(relay.const(1.0) + relay.exp(relay.negative(relay.abs(x))))


_ACTIVATIONS: dict[str, Callable[[Any, Activation], Any]] = {
    "Affine": lambda x, f: relay.const(f.alpha) * x + relay.const(f.beta),
    "Elu": _elu,
    "HardSigmoid": lambda x, f: relay.clip(relay.const(f.alpha) * x + relay.const(f.beta), 0.0, 1.0),
    "LeakyRelu": lambda x, f: relay.nn.leaky_relu(x, f.alpha),
    "Relu": lambda x, _: relay.nn.relu(x),
    "ScaledTanh": lambda x, f: relay.const(f.alpha) * relay.tanh(relay.const(f.beta) * x),
    "Sigmoid": lambda x, _: relay.sigmoid(x),
    "Softplus": _softplus,
    "Softsign": lambda x, _: x / (relay.const(1.0) + relay.abs(x)),
    "Tanh": lambda x, _: relay.tanh(x),
    "ThresholdedRelu": _thresholded,
}
