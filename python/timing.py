"""Measuring several implementations side by side, so that what else the machine does falls on all of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from roller_tvm.tvm_env.pin import pinned_calling_thread  # noqa: E402

#: Runs in a row, after one that is not counted, and a pause before them in which others' threads go to sleep.
BLOCK, PAUSE_S = 8, 0.015


def interleaved(
    functions: Mapping[str, Callable[[], object]],
    seconds: float,
    pinned: Callable[[str], bool] = lambda name: True,
) -> dict[str, list[float]]:
    """Times of each function, called in turns in blocks.

    Parameters
    ----------
    functions : mapping
    seconds : float
        How long to go on; every function gets at least two blocks.
    pinned : function of a name
        Whether the calling thread is kept off the CPUs of TVM's own threads while it runs: yes for TVM, no for
        libraries whose threads go where they want.

    Examples
    --------
    >>> times = interleaved({"a": lambda: sum(range(100))}, 0.1)
    >>> len(times["a"]) >= 2 * BLOCK
    True
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    until, rounds = time.perf_counter() + seconds, 0
    while rounds < 2 or time.perf_counter() < until:
        for name, function in functions.items():
            time.sleep(PAUSE_S)
            if pinned(name):
                function()  # the pool exists from here on
                with pinned_calling_thread():
                    times[name] += _block(function)
            else:
                times[name] += _block(function)
        rounds += 1
    return times


def _block(function: Callable[[], object]) -> list[float]:
    function()
    taken = []
    for _ in range(BLOCK):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return taken
