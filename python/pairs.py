"""Time pairs of kernels, for the comparisons with a peer's tuner."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path


def measure(
    jobs: list[tuple[str, str]], results: Path, until: float, side_by_side: Callable[[list[Path]], list[float]]
) -> bool:
    """Time the pairs of kernels missing in `results`; return False if time was up before the end."""
    done = {(a, b) for a, b, *_ in map(json.loads, results.read_text().splitlines() if results.exists() else [])}
    for left, (theirs, ours) in enumerate(jobs):
        if (theirs, ours) in done:
            continue
        if time.monotonic() > until:
            print(f"{len(jobs) - left} pairs are left to time", flush=True)
            return False
        taken = side_by_side([Path(theirs), Path(ours)])
        with results.open("a") as file:
            file.write(json.dumps([theirs, ours, *taken]) + "\n")
    return True
