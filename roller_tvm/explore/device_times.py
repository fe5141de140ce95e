"""Times of a model's kernels on an NVIDIA GPU: each site leaves an event before and one behind its kernel.

The driver writes the time of an event when the device comes to it, so that nothing waits while the model runs. Runs
without anybody waiting are held first: a kernel with no work but looking at the clock occupies the device until the
host has queued the whole run. No time holds a gap then, in which the device waited for the host.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from pathlib import Path
from typing import Any

from ..errors import MeasureError
from .dispatch import Table

#: The driver's library.
DRIVER = "libcuda.so.1"
#: Runs whose queueing is timed before runs are held; how much longer than their median; the longest hold.
UNHELD, LONGER, MOST_S = 5, 1.5, 0.05
#: Waits until the device's clock has gone on by so many nanoseconds.
_HOLD = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry hold(.param .u64 wanted)
{
  .reg .pred %more;
  .reg .u64 %start, %now, %passed, %ns;
  ld.param.u64 %ns, [wanted];
  mov.u64 %start, %globaltimer;
AGAIN:
  mov.u64 %now, %globaltimer;
  sub.u64 %passed, %now, %start;
  setp.lt.u64 %more, %passed, %ns;
  @%more bra AGAIN;
  ret;
}
"""


class Driver:
    """NVIDIA's driver, as far as times need it; on the context that TVM uses too.

    Raises
    ------
    MeasureError
        There is no driver, or no card.
    """

    def __init__(self, library: str = DRIVER) -> None:
        try:
            self.library = ctypes.CDLL(library)
        except OSError as error:
            raise MeasureError(f"NVIDIA's driver is not here: {error}", "explore", "run it where a card is") from error
        self._hold: ctypes.c_void_p | None = None
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._context = context
        self.enter()

    def _call(self, name: str, *arguments: Any) -> None:
        if code := self.library[name](*arguments):
            raise MeasureError(f"{name} of NVIDIA's driver fails with {code}", "explore", "run it where a card is")

    def enter(self) -> None:
        """Make this thread's calls those of the device."""
        self._call("cuCtxSetCurrent", self._context)

    def event(self) -> int:
        """Return a new event."""
        made = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(made), ctypes.c_uint(0))
        return int(made.value or 0)

    def seconds(self, first: int, last: int) -> float:
        """Return the time between two events that the device has passed."""
        taken = ctypes.c_float()
        name = "cuEventElapsedTime_v2" if hasattr(self.library, "cuEventElapsedTime_v2") else "cuEventElapsedTime"
        self._call(name, ctypes.byref(taken), ctypes.c_void_p(first), ctypes.c_void_p(last))
        return float(taken.value) * 1e-3

    def hold(self, seconds: float, stream: int) -> None:
        """Queue a kernel that takes so long."""
        if self._hold is None:
            module, made = ctypes.c_void_p(), ctypes.c_void_p()
            self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(_HOLD))
            self._call("cuModuleGetFunction", ctypes.byref(made), module, ctypes.c_char_p(b"hold"))
            self._hold = made
        wanted = ctypes.c_uint64(int(seconds * 1e9))
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(wanted))
        one, zero = ctypes.c_uint(1), ctypes.c_uint(0)
        self._call("cuLaunchKernel", self._hold, *([one] * 6), zero, ctypes.c_void_p(stream), arguments, None)


class EventTable(Table):
    """The table of a loaded library whose kernels run on a GPU.

    Parameters
    ----------
    library, count
        See `Table`.
    driver : Driver
    stream : function of C
        TVM's: the type and the number of a device -> its stream.
    """

    lazy = True

    def __init__(self, library: Path, count: int, driver: Driver, stream: Any) -> None:
        super().__init__(library, count)
        self.driver, self._stream = driver, stream
        self._stream.restype = ctypes.c_void_p
        self._events = (ctypes.c_void_p * (2 * count)).in_dll(self._library, "roller_tvm_events")
        self._events[:] = [driver.event() for _ in range(2 * count)]
        self._last = ctypes.c_int64.in_dll(self._library, "roller_tvm_last_ns")
        ctypes.c_void_p.in_dll(self._library, "roller_tvm_stream").value = _address(stream)
        self._record = ctypes.c_void_p.in_dll(self._library, "roller_tvm_record")
        self._began, self._queued = 0, list[float]()
        self.timing(True)

    def timing(self, on: bool) -> None:
        """Leave events or not; captured graphs must hold none."""
        self._record.value = _address(self.driver.library.cuEventRecord) if on else None

    @property
    def hold_s(self) -> float:
        """Seconds for which a run is held."""
        return min(MOST_S, LONGER * statistics.median(self._queued)) if len(self._queued) >= UNHELD else 0.0

    def start(self) -> None:
        if len(self._queued) < UNHELD:
            if self._began and self._last.value > self._began:  # of the run before
                self._queued.append((self._last.value - self._began) * 1e-9)
            self._began = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            return
        self.driver.enter()
        self.driver.hold(self.hold_s, int(self._stream(2, 0) or 0))

    def seconds(self) -> list[float]:
        self.driver.enter()
        found = []
        for at, calls in enumerate(self._calls):
            taken = self.driver.seconds(self._events[2 * at] or 0, self._events[2 * at + 1] or 0) if calls else 0.0
            found.append(taken if calls else float("nan"))
        return found


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)
