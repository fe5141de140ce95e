"""Choose the tasks to tune, their order, their trials, and the end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from roller_tvm.errors import BadInput, UsageError, must_be


def select(tasks: str | Iterable[int], count: int) -> list[int]:
    """Return the numbers of the selected tasks, sorted; `tasks` is 'all', '0,2,3-5', or numbers.

    Examples
    --------
    >>> select("0,2,3-5", 8)
    [0, 2, 3, 4, 5]
    """
    if isinstance(tasks, str):
        if tasks.strip().lower() == "all":
            return list(range(count))
        chosen: list[int] = []
        for part in tasks.split(","):
            match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
            if match is None:
                raise UsageError(
                    f"'{part.strip()}' is not a task number or range",
                    "tasks",
                    "write 'all', or numbers and ranges such as 0,2,3-5",
                )
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first:
                raise UsageError(f"'{part.strip()}' is a range without a task", "tasks", f"write {last}-{first}")
            chosen += range(first, last + 1)
    else:
        given = list(tasks)
        odd = next((t for t in given if not hasattr(t, "__index__")), None)
        if odd is not None:
            raise UsageError(f"{odd!r} is not a task number", "tasks", "give 'all', text such as '0,2,3-5', or numbers")
        chosen = [int(t) for t in given]
    for number in chosen:
        if not 0 <= number < count:
            raise UsageError(f"no task {number}: there are {count}, from 0", "tasks", "see --tasks list")
    return sorted(set(chosen))


def ordered(tasks: Sequence[Any], seconds: float | None) -> list[Any]:
    """Return the tasks in the order of tuning: with a time limit those with the most work first.

    Parameters
    ----------
    tasks : sequence of Task
        With `flops` of one call and `weight`, the number of calls.
    seconds : float, optional
        Time limit.
    """
    return list(tasks) if seconds is None else sorted(tasks, key=lambda task: -task.flops * task.weight)


def time_is_up(started: float, seconds: float | None, done: int, count: int, notes: list[str]) -> bool:
    """Return True if no further task is to be started; a note tells how many were.

    Parameters
    ----------
    started : float
        Seconds since then.
    seconds : float, optional
        Time limit; None for none.
    """
    if seconds is None or started < seconds or done == count:
        return False
    notes.append(f"time was up after {started:.0f} s: {done} of {count} operators, those with the most work, are tuned")
    return True


def not_negative(name: str, value: Any, default: Any = None, remedy: str = "0 plans without measuring") -> Any:
    """Return a number that a user gave, or the default for None; raise ``BadInput`` if it is none.

    Examples
    --------
    >>> not_negative("trials", 3), not_negative("trials", None, 10)
    (3, 10)
    """
    if value is None and default is not None:
        return default
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if isinstance(value, bool) or number < 0:
        raise BadInput(must_be(name, "an int >= 0", value), remedy=remedy)
    return number


def shares(tasks: Sequence[Any], total: int | None, per_task: int) -> list[int]:
    """Return the trials of each task; if they do not suffice for all, more for those that are called more often.

    Parameters
    ----------
    tasks : sequence of Task
        With `weight`, the number of calls.
    total : int, optional
        Trials of all tasks together.
    per_task : int
        Most trials of one task.
    """
    if total is None or total >= per_task * len(tasks):
        return [per_task] * len(tasks)
    counts = [min(per_task, total // max(1, len(tasks)))] * len(tasks)
    left = total - sum(counts)
    for n in sorted(range(len(tasks)), key=lambda n: -tasks[n].weight):
        if left > 0 and counts[n] < per_task:
            counts[n], left = counts[n] + 1, left - 1
    return counts
