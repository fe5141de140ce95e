"""Timing implementations side by side, so that what else the machine does falls on all of them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roller_tvm.tvm_env.pin import pinned_calling_thread

#: Runs in a row, after one that is not counted, and a pause before them in which others' threads go to sleep.
BLOCK, PAUSE_S = 8, 0.015
#: One time is a mean over as many runs as fill this.
RUN_S = 0.004
#: Rounds in which each kernel is timed, and times a round.
ROUNDS, TIMES = 8, 3


@dataclass(frozen=True)
class Timer:
    """A kernel ready to be timed.

    Parameters
    ----------
    once : function
        Runs it, and waits until it is done.
    evaluate : function of (int, int)
        Seconds of each of so many times, each a mean over so many runs.
    """

    once: Callable[[], object]
    evaluate: Callable[[int, int], Sequence[float]]


def rounds_in_turns(timers: Sequence[Timer], rounds: int = ROUNDS, times: int = TIMES) -> list[list[list[float]]]:
    """Seconds of each kernel, round by round, all kernels once a round.

    Examples
    --------
    >>> timer = Timer(lambda: None, lambda number, times: [1e-6] * times)
    >>> rounds_in_turns([timer, timer], rounds=2, times=1)
    [[[1e-06], [1e-06]], [[1e-06], [1e-06]]]
    """
    numbers = [runs_to_fill(timer.once) for timer in timers]
    taken: list[list[list[float]]] = [[] for _ in timers]
    for _ in range(rounds):
        for found, timer, number in zip(taken, timers, numbers, strict=True):
            with pinned_calling_thread():
                timer.evaluate(number, 1)  # not counted: the caches are still another's
                found.append([float(s) for s in timer.evaluate(number, times)])
    return taken


def runs_to_fill(once: Callable[[], object], run_s: float = RUN_S) -> int:
    """How many runs one time is a mean of."""
    once()
    start = time.perf_counter()
    once()
    return max(1, math.ceil(run_s / max(time.perf_counter() - start, 1e-9)))


def typical(rounds: Sequence[Sequence[float]]) -> float:
    """The median of all times."""
    return statistics.median([s for times in rounds for s in times])


def interleaved(
    functions: Mapping[str, Callable[[], Any]],
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


def _block(function: Callable[[], Any]) -> list[float]:
    function()
    taken = []
    for _ in range(BLOCK):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return taken
