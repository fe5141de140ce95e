"""Tie a worker process to its parent, so that it never outlives it and is killed first if memory runs out."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
#: Highest score: if memory runs out, a candidate should be killed, not the process that measures it.
_FIRST_TO_GO = "1000"


def tie_to_parent(parent: int) -> None:
    """Die when process `parent` dies, even hung or stopped; be killed first if memory runs out (Linux)."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(_FIRST_TO_GO)
    if os.getppid() != parent:  # it died before it could be tied to
        os._exit(1)
