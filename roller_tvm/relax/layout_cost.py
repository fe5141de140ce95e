"""Predicted seconds of convolutions in each arrangement, and of the transformations between arrangements."""

from __future__ import annotations

from typing import Any

from ..device import DeviceSpec
from .arrangement import Arrangement, Convolution, Shape


class LayoutCosts:
    """Asks the micro-performance model, once for each operator.

    Parameters
    ----------
    device : DeviceSpec
    """

    def __init__(self, device: DeviceSpec) -> None:
        self.device = device
        self._known: dict[Any, float] = {}

    def convolution(self, conv: Convolution, arrangement: Arrangement | None) -> float:
        """Seconds of the best plan; infinite where there is none."""
        key = (conv, arrangement)
        if key not in self._known:
            inputs, output = conv.compute(arrangement)
            self._known[key] = self._seconds([*inputs, output], constants=inputs[1:])
        return self._known[key]

    def transformation(self, shape: Shape, arrangement: Arrangement) -> float:
        """Seconds of arranging a tensor (or of the way back, which moves as much)."""
        from tvm import te

        key = (shape, arrangement)
        if key not in self._known:
            data = te.placeholder(shape, "float32", name="data")
            if arrangement.block:
                x = arrangement.block
                out = te.compute(
                    arrangement.shape(shape), lambda n, c, h, w, v: data[n, c * x + v, h, w], name="arranged"
                )
            else:
                out = te.compute(arrangement.shape(shape), lambda n, h, w, c: data[n, c, h, w], name="arranged")
            self._known[key] = self._seconds([data, out])
        return self._known[key]

    def _seconds(self, tensors: list[Any], constants: list[Any] | None = None) -> float:
        from ..errors import UnsupportedOperator
        from ..planner.plan_cache import plan_cache
        from ..te.read import read_te

        try:
            reading = read_te(tensors, constants=constants or ())
            return plan_cache().construct(reading.expression, self.device, 1).best.seconds
        except UnsupportedOperator:
            return float("inf")
