"""A worker that knows no TVM: what is asked of it shows what becomes of the process."""

import os
import time
from pathlib import Path

from roller_tvm.tuning import supervise as serving


def nap(seconds):
    """Sleep; return when it began and ended, by a clock that all processes share."""
    began = time.monotonic()
    time.sleep(seconds)
    return began, time.monotonic()


FUNCTIONS = {
    "nap": nap,
    "hello": os.getpid,
    "echo": lambda value, seconds=0.0: (time.sleep(seconds), value)[1],
    "score": lambda: int(Path("/proc/self/oom_score_adj").read_text()),
    "fail": lambda: 1 / 0,
}

if __name__ == "__main__":
    serving.main(FUNCTIONS)
