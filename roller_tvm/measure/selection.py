"""Parse a user's selection of tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from roller_tvm.errors import UsageError


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
