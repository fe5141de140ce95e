"""Wait for a quiet machine: other work, also of a shared host's other guests, makes measured times useless."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path

_STAT = Path("/proc/stat")
#: Seconds of one look, and the largest share of the CPUs in use on a machine at rest.
LOOK_S, REST = 0.5, 0.05
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


def wait(limit_s: float, look_s: float = LOOK_S) -> float:
    """Wait up to `limit_s` seconds until the machine is at rest; return the share of the CPUs in use.

    Examples
    --------
    >>> 0 <= wait(0.0) <= 1
    True
    """
    until = time.monotonic() + limit_s
    while (share := busy(look_s)) > REST and time.monotonic() < until:
        pass
    return share


def _ticks() -> list[int]:
    """Return the ticks of user, nice, system, idle, iowait, irq, softirq and steal; guests are part of user."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return [int(word) for word in _STAT.read_text().splitlines()[0].split()[1:9]]
    return []
