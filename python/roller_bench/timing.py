"""Time implementations side by side, so that other work on the machine affects all of them alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller_tvm.tuning.timing import Memory
from roller_tvm.tvm_env.pin import pinned_calling_thread

#: Seconds to fill with runs for one time, which is their mean.
RUN_S = 0.004
#: Number of rounds in which each kernel is timed, and of times per round.
ROUNDS, TIMES = 8, 3


@dataclass(frozen=True)
class Timer:
    """A kernel ready to be timed.

    Parameters
    ----------
    once : function
        Runs the kernel and waits until it is done.
    evaluate : function of (int, int)
        Takes (runs, times); returns so many times in seconds, each a mean over so many runs.
    """

    once: Callable[[], object]
    evaluate: Callable[[int, int], Sequence[float]]


def kernel_timer(module: Any, entry: str, args: Sequence[Any], device: Any) -> Timer:
    """Return the timer of a built kernel with its arguments, on either line of TVM."""
    function = module[entry]

    def once() -> None:
        function(*args)
        device.sync()

    def evaluate(number: int, times: int) -> Sequence[float]:
        return [float(s) for s in module.time_evaluator(entry, device, number=number, repeat=times)(*args).results]

    return Timer(once, evaluate)


def random_arguments(
    shapes: Sequence[tuple[Sequence[int], str]], memory: Memory, made: Callable[[np.ndarray], Any]
) -> list[Any]:
    """Return random arguments of these shapes and dtypes, in memory shared with other kernels.

    Parameters
    ----------
    shapes : sequence of (shape, dtype)
    memory : Memory
    made : function of array -> tensor
    """
    rng = np.random.default_rng(0)
    return [memory.of(n, (rng.random(shape) + 0.5).astype(dtype), made) for n, (shape, dtype) in enumerate(shapes)]


def rounds_in_turns(timers: Sequence[Timer], rounds: int = ROUNDS, times: int = TIMES) -> list[list[list[float]]]:
    """Time each kernel in seconds, round by round, all kernels once per round.

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
    """Return the number of runs that fill `run_s` seconds."""
    once()
    start = time.perf_counter()
    once()
    return max(1, math.ceil(run_s / max(time.perf_counter() - start, 1e-9)))


def typical(rounds: Sequence[Sequence[float]]) -> float:
    """Return the median of all times."""
    return statistics.median([s for times in rounds for s in times])


def medians_of(ways: Mapping[str, Callable[[], Iterable[float]]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each way, taken in turns; a way returns the seconds of some runs.

    Examples
    --------
    >>> medians_of({"one": lambda: [1.0, 3.0, 2.0]}, 2)
    {'one': 2.0}
    """
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            taken[name] += way()
    return {name: statistics.median(own) for name, own in taken.items()}
