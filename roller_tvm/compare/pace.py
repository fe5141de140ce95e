"""How fast the CPU runs just now: on a shared host less than it can, and nothing else on this machine shows it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from statistics import median

from roller_tvm.device import DeviceSpec
from roller_tvm.device.cpu_bench import NativeRunner
from roller_tvm.device.rates import Rates, Request
from roller_tvm.errors import ProfileError

#: Of multiply-adds in registers, which wait for nothing but the units: milliseconds are enough.
LOOK_MS, REPEATS = 40, 20
#: Looks until one repeat was undisturbed: a host takes the CPU away for longer than a look.
LOOKS = 5


class Pace:
    """The rate of multiply-adds on all threads over the fastest that is known of this machine.

    Parameters
    ----------
    device : DeviceSpec
        Of anything but a CPU nothing is measured: the pace is nan.
    fastest : float
        GFLOP/s of float32; the device's own peak unless a faster one was seen.
    runner : function, optional
        Makes what runs the micro-benchmarks, from the bytes of a vector.

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
        """A share, about 1 while nobody else has the units, 0 if never undisturbed; else nan."""
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
        """Remove the program."""
        self._held.close()
        self._run = None
