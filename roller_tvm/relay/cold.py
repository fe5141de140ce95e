"""Weights among the operands of a Relay model's tasks (see ``measure.cold``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from roller_tvm.measure.cold import footprint_of, read_s_per_byte

if TYPE_CHECKING:  # workers need nothing of it
    from roller_tvm.device import DeviceSpec


@dataclass(frozen=True)
class ColdWeights:
    """The weights of a model by their sizes, and the cost of reading them from memory.

    Parameters
    ----------
    sizes : frozenset of int
        Numbers of elements of the model's constants.
    footprint_bytes : int
        Bytes read between two uses of one weight.
    read_s_per_byte : float
        Time to read one byte from memory, seconds.
    """

    sizes: frozenset[int]
    footprint_bytes: int
    read_s_per_byte: float

    @staticmethod
    def of_model(mod: Any, params: Any, device: DeviceSpec) -> ColdWeights:
        """Return the weights of a module: its constants, and the parameters in `params`."""
        from tvm import relay

        arrays: list[Any] = list((params or {}).values())

        def visit(node: Any) -> None:
            if isinstance(node, relay.Constant):
                arrays.append(node.data)

        relay.analysis.post_order_visit(mod["main"], visit)
        shapes = [(prod(int(e) for e in a.shape), np.dtype(str(a.dtype)).itemsize) for a in arrays]
        footprint = footprint_of(sum(n * size for n, size in shapes), device)
        return ColdWeights(frozenset(n for n, _ in shapes), footprint, read_s_per_byte(device))

    def options(self, tensors: Sequence[Any]) -> dict[str, Any]:
        """Return the options of a worker that times a task with these tensors.

        An operand counts as a weight if a constant of the model has its number of elements, which repacking keeps. The
        first operand never counts: it is an activation.
        """
        from tvm import te

        inputs = [t for t in tensors if isinstance(t.op, te.PlaceholderOp)]
        names = tuple(t.op.name for t in inputs[1:] if prod(int(e) for e in t.shape) in self.sizes)
        return {"weights": names, "footprint_bytes": self.footprint_bytes, "read_s_per_byte": self.read_s_per_byte}
