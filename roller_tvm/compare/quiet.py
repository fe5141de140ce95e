"""Whether anything else runs here, or beside it on a shared host: what is timed beside a compiler says little."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path

_STAT = Path("/proc/stat")
#: One look, in seconds, and the share of the CPUs that a machine at rest may use.
LOOK_S, REST = 0.5, 0.05
#: The share of its fastest pace that the CPU has to run at.
PACE = 0.9
#: Fields of /proc/stat's first line that are no work: idle, and waiting for a disk.
_IDLE = (3, 4)


def busy(look_s: float = LOOK_S) -> float:
    """The share of all CPUs that is in use, the host's other guests counted, while this process sleeps; else nan."""
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
    """Wait until the machine is at rest and at its pace, at most so long; how busy and how fast it is then.

    Parameters
    ----------
    pace : function
        See ``pace.Pace``; nan is not waited for.
    least : float
        The pace to wait for.

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
    """User, nice, system, idle, iowait, irq, softirq, steal; guests are part of user."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return [int(word) for word in _STAT.read_text().splitlines()[0].split()[1:9]]
    return []
