"""A worker whose builds and runs take longer, as on a slow machine with a slow board: cores are free meanwhile."""

from __future__ import annotations

import os
import time
from typing import Any

from roller_tvm.tuning import remote_worker, worker

#: Seconds that each takes longer.
VARIABLE = "ROLLER_BENCH_SLOWER"


def build(key: str, number: int, line: str, mode: int) -> float:
    """Build a candidate, and wait."""
    seconds = remote_worker.build(key, number, line, mode)
    time.sleep(float(os.environ[VARIABLE]))
    return seconds


def run(key: str, number: int, mode: int, best: float, options: dict[str, Any]) -> dict[str, Any]:
    """Run a candidate on a server, and wait."""
    time.sleep(float(os.environ[VARIABLE]))
    return remote_worker.run(key, number, mode, best, options)


if __name__ == "__main__":
    worker.main({**remote_worker.FUNCTIONS, "build": build, "run": run})
