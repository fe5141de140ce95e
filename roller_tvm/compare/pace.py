"""Measure the CPU's current speed, which on a shared host may be below its peak without any other sign of it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from statistics import median

from roller_tvm.device import DeviceSpec
from roller_tvm.device.cpu_bench import NativeRunner
from roller_tvm.device.rates import Rates, Request
from roller_tvm.errors import ProfileError

#: Milliseconds and repeats of one look: multiply-adds in registers wait for nothing but the units, so few are enough.
LOOK_MS, REPEATS = 40, 20
#: Most looks until one repeat is undisturbed: a host takes the CPU away for longer than a look.
LOOKS = 5


class Pace:
    """Rate of multiply-adds on all threads, over the fastest known rate of this machine.

    Parameters
    ----------
    device : DeviceSpec
        Device to measure; the pace of anything but a CPU is nan.
    fastest : float
        Fastest rate seen, in GFLOP/s of float32; the device's peak counts if it is higher.
    runner : function, optional
        Returns a runner of the micro-benchmarks for vectors of so many bytes.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> Pace(load_device("h200"))()
    nan
    """

    def __init__(
        self, device: DeviceSpec, fastest: float = 0.0, runner: Callable[[int], NativeRunner] = NativeRunner
    ) -> None:
        self._fastest = max(fastest, device.peak("float32")) if device.kind == "cpu" else math.nan
        self._request = Request("fma32", device.units, budget_ms=LOOK_MS, repeats=REPEATS)
        self._bytes, self._runner = device.vector_bytes, runner
        self._run: Callable[[list[Request]], Rates] | None = None
        self._held = contextlib.ExitStack()

    def __call__(self) -> float:
        """Return the pace: about 1 if the units are free, 0 if every look was disturbed, nan if not measurable."""
        if not self._fastest > 0:
            return math.nan
        try:
            if self._run is None:
                self._run = self._held.enter_context(self._runner(self._bytes))
            looks = (self._run([self._request]).get(self._request, []) for _ in range(LOOKS))
            rates = next(filter(None, looks), [])
        except ProfileError:  # no C compiler
            self._fastest = math.nan
            return math.nan
        return median(rates) / self._fastest if rates else 0.0

    def close(self) -> None:
        """Remove the compiled benchmark program."""
        self._held.close()
        self._run = None
