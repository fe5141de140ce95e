"""What a worker process does at its start so that it never outlives, or takes the place of, the one that started it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
#: The highest: where memory runs out, a candidate is to be killed, not who measures it.
_FIRST_TO_GO = "1000"


def tie_to_parent(parent: int) -> None:
    """Die when process `parent` dies, even hung in a kernel or stopped; go first where memory runs out (Linux)."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(_FIRST_TO_GO)
    if os.getppid() != parent:  # it died before it could be tied to
        os._exit(1)
