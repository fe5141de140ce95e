"""One entry for every description of a kernel: how long it takes on a device, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..device import DeviceSpec
from ..micro_perf.effects import ALL, Effects
from ..micro_perf.gpu_kernel import KernelTime, staged_time
from ..micro_perf.gpu_nest import GpuNest
from ..micro_perf.kernel import DirectKernel, Kernel, StagedKernel
from ..recipes.gpu_direct import direct_times
from ..recipes.gpu_nests import linear_tiles
from ..recipes.gpu_reduce import reduce_times


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


def predict(kernel: Kernel, device: DeviceSpec, effects: Effects = ALL) -> Prediction:
    """Return the predicted time of a kernel of any description."""
    if not effects.block_starts:
        device = replace(device, limits=replace(device.limits, block_interval_ns=None))
    if isinstance(kernel, StagedKernel):
        told = staged_time(kernel, device, effects)
        return Prediction(told.seconds, told.bound, told) if told else Prediction(float("inf"), "does not fit")
    nest = GpuNest.of(kernel.geometry)
    if isinstance(kernel, DirectKernel):
        threads, items, vector = (np.array([n]) for n in (kernel.threads, kernel.outputs, kernel.vector))
        block, thread = linear_tiles(nest, threads * items * vector), linear_tiles(nest, vector)
        times = direct_times(nest, device, block, thread, threads, items, vector)
    else:
        times = reduce_times(nest, device, np.array([kernel.rows]), np.array([kernel.lanes]))
    if not times.resident[0]:
        return Prediction(float("inf"), "does not fit")
    return Prediction(float(times.seconds[0]), str(times.bound[0]))
