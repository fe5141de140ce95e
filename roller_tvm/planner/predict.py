"""One entry for every description of a kernel: how long it takes on a device, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from ..device import DeviceSpec
from ..micro_perf.effects import ALL, Effects
from ..micro_perf.geometry import Geometry, Tile
from ..micro_perf.gpu_kernel import KernelTime, staged_time
from ..micro_perf.kernel import DirectKernel, Kernel, StagedKernel
from ..recipes.gpu_direct import direct_estimate, reduce_estimate


@dataclass(frozen=True)
class Prediction:
    """Predicted time of one kernel.

    Parameters
    ----------
    seconds : float
        Infinite if not even one block fits on a unit.
    bound : str
        The limit, according to the model.
    told : KernelTime or None
        Details; only for staged kernels.
    """

    seconds: float
    bound: str
    told: KernelTime | None = None


def linear_tile(geometry: Geometry, length: int) -> Tile:
    """Return the box of axes that `length` consecutive outputs cover (innermost first); reductions whole."""
    tile = list(geometry.extents)
    for i in reversed(geometry.spatial):
        tile[i] = max(1, min(geometry.extents[i], length))
        length = ceil(length / geometry.extents[i])
    return tuple(tile)


def predict(kernel: Kernel, device: DeviceSpec, effects: Effects = ALL) -> Prediction:
    """Return the predicted time of a kernel of any description."""
    if not effects.block_starts:
        device = replace(device, limits=replace(device.limits, block_interval_ns=None))
    if isinstance(kernel, StagedKernel):
        told = staged_time(kernel, device, effects)
        return Prediction(told.seconds, told.bound, told) if told else Prediction(float("inf"), "does not fit")
    if isinstance(kernel, DirectKernel):
        g = kernel.geometry
        estimate = direct_estimate(
            g, device, linear_tile(g, kernel.threads * kernel.outputs * kernel.vector), linear_tile(g, kernel.vector),
            kernel.threads, kernel.outputs, kernel.vector,
        )  # fmt: skip
    else:
        estimate = reduce_estimate(kernel.geometry, device, kernel.rows, kernel.lanes)
    return Prediction(estimate.seconds, estimate.bound) if estimate else Prediction(float("inf"), "does not fit")
