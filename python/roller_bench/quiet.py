"""Wait for a quiet machine: other work, also of a shared host's other guests, makes measured times useless."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from roller_tvm.device import DeviceSpec
from roller_tvm.device.cpu_bench import NativeRunner
from roller_tvm.device.rates import Rates, Request
from roller_tvm.errors import ProfileError

_STAT = Path("/proc/stat")
#: Seconds of one look, and the largest share of the CPUs in use on a machine at rest.
LOOK_S, REST = 0.5, 0.05
#: Least share of its fastest pace that the CPU must run at.
PACE = 0.9
#: Fields of /proc/stat's first line that count as idle: idle, and waiting for a disk.
_IDLE = (3, 4)


def busy(look_s: float = LOOK_S) -> float:
    """Return the share of all CPUs in use, also by other guests of the host, while this process sleeps; else nan."""
    before = _ticks()
    time.sleep(look_s)
    after = _ticks()
    spent = [b - a for a, b in zip(before, after, strict=False)]
    if not spent or not sum(spent):
        return math.nan
    return 1.0 - sum(spent[n] for n in _IDLE) / sum(spent)


def wait(
    limit_s: float, pace: Callable[[], float] = lambda: math.nan, least: float = PACE, look_s: float = LOOK_S
) -> tuple[float, float]:
    """Wait up to `limit_s` seconds until the machine is at rest and at its pace; return (share of CPUs in use, pace).

    Parameters
    ----------
    pace : function
        Returns the pace (see ``pace.Pace``); nan is not waited for.
    least : float
        Least pace to wait for.

    Examples
    --------
    >>> wait(0.0, lambda: 0.5)[1]
    0.5
    """
    until = time.monotonic() + limit_s
    while True:
        share, speed = busy(look_s), pace()
        if not (share > REST or speed < least) or time.monotonic() >= until:
            return share, speed


def _ticks() -> list[int]:
    """Return the ticks of user, nice, system, idle, iowait, irq, softirq and steal; guests are part of user."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return [int(word) for word in _STAT.read_text().splitlines()[0].split()[1:9]]
    return []


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
