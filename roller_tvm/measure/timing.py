"""Time a built kernel on given arguments."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from roller_tvm.measure.cold import SHARE, Rotation

#: Runs on cold weights per repeat on warm ones: a single run is noisier than a repeat of many.
COLD_RUNS = 2
#: Number of calls of an empty function to measure the cost of a call.
CALLS = 20
#: Least seconds of a kernel, after the cost of the call is subtracted.
SHORTEST = 1e-7


@dataclass(frozen=True)
class Kernel:
    """A kernel, its arguments, and its TVM's functions for timing.

    Parameters
    ----------
    call : function
        Runs the kernel on the arguments.
    arguments : sequence of tensor
    sync : function
        Waits until the device is done.
    evaluate : function of (int, int)
        Takes (runs, repeats); returns the mean seconds of a run in each repeat.
    weights : tuple of int
        Positions of arguments that are weights (see ``cold``).
    nothing : function or None
        Function that does nothing, whatever its arguments; None if there is none.
    """

    call: Callable[..., Any]
    arguments: Sequence[Any]
    sync: Callable[[], Any]
    evaluate: Callable[[int, int], Sequence[float]]
    weights: tuple[int, ...] = ()
    nothing: Callable[..., Any] | None = None


def run_timed(
    kernel: Kernel,
    best: float,
    options: dict[str, Any],
    rotations: dict[tuple[int, ...], Rotation],
    make: Callable[[Any], Any],
    first_s: float = 0.0,
) -> dict[str, Any]:
    """Time a kernel, or give it up if it is far slower than the best so far.

    Parameters
    ----------
    kernel : Kernel
    best : float
        Seconds of the best kernel so far.
    options : dict
        Options of ``Limits.options``, and for cold weights those of ``ColdWeights``.
    rotations : dict
        Copies of weights, kept for the next candidates.
    make : function of array
        Returns a tensor of these values.
    first_s : float
        Seconds of its first run, perhaps including a cold start.

    Returns
    -------
    dict
        'repeats': seconds of each repeat; 'pruned': True if it was given up; 'wrong': ''.
    """
    # No cold start is that slow, and more single runs would take longer than everything else.
    if first_s > max(best * options["give_up"] ** 2, options["budget_s"]):
        return {"repeats": [first_s], "pruned": True, "wrong": ""}
    once, call = float("inf"), _call_s(kernel.nothing, kernel.arguments)
    for _ in range(int(options["tries"])):  # one slow run may be another process's fault
        start = time.perf_counter()
        kernel.call(*kernel.arguments)
        kernel.sync()
        once = min(once, max(time.perf_counter() - start - call, SHORTEST))
        if once <= best * options["give_up"] + call:  # a single run cannot tell times below a call's cost
            break
    else:
        return {"repeats": [once], "pruned": True, "wrong": ""}
    where = kernel.weights
    size = sum(kernel.arguments[n].numpy().nbytes for n in where)
    if where and size * options["read_s_per_byte"] >= SHARE * once:
        rotation = rotations.setdefault(where, Rotation(where, options["footprint_bytes"], make))
        return {"repeats": _timed_cold(kernel, rotation.lists(kernel.arguments), options, once, call), "pruned": False,
                "wrong": ""}  # fmt: skip
    number = max(1, ceil(options["repeat_s"] / once))
    repeats = int(min(options["repeats"], max(1.0, options["budget_s"] // (once * number))))
    return {"repeats": [float(s) for s in kernel.evaluate(number, repeats)], "pruned": False, "wrong": ""}


def _timed_cold(
    kernel: Kernel, lists: Iterator[list[Any]], options: dict[str, Any], once: float, call: float
) -> list[float]:
    """Time single runs, each on other weights, without the cost of a call."""
    taken: list[float] = []
    for _ in range(int(min(options["repeats"] * COLD_RUNS, max(1.0, options["budget_s"] // once)))):
        arguments = next(lists)
        start = time.perf_counter()
        kernel.call(*arguments)
        taken.append(max(time.perf_counter() - start - call, call))
    return taken


def _call_s(nothing: Callable[..., Any] | None, arguments: Sequence[Any]) -> float:
    """Return the seconds of calling a function that does nothing with these arguments; 0.0 without one."""
    if nothing is None:
        return 0.0
    taken = []
    for _ in range(CALLS):
        start = time.perf_counter()
        nothing(*arguments)
        taken.append(time.perf_counter() - start)
    return min(taken)
