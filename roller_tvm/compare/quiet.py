"""Whether anything else runs here: what is timed beside a compiler says little."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path

_STAT = Path("/proc/stat")
#: One look, in seconds, and the share of the CPUs that a machine at rest may use.
LOOK_S, REST = 0.5, 0.05
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


def wait(limit_s: float, look_s: float = LOOK_S) -> float:
    """Wait until the machine is at rest, at most so long; how busy it is then.

    Examples
    --------
    >>> 0.0 <= wait(0.0) <= 1.0
    True
    """
    until = time.monotonic() + limit_s
    while (share := busy(look_s)) > REST and time.monotonic() < until:
        pass
    return share


def _ticks() -> list[int]:
    """User, nice, system, idle, iowait, irq, softirq, steal; guests are part of user."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return [int(word) for word in _STAT.read_text().splitlines()[0].split()[1:9]]
    return []
