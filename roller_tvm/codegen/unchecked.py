"""TVM's schedules without the checks of their arguments' types, a quarter of the time of scheduling a kernel."""

from __future__ import annotations

from functools import partial
from typing import Any


class Unchecked:
    """A schedule whose primitives take their arguments as they are.

    TVM compares each argument with the annotation of its parameter, in Python, at every call. What the steps of a plan
    hand on has the right types, and TVM's C++ asks for them again.

    Parameters
    ----------
    schedule : tvm.s_tir.Schedule

    Examples
    --------
    >>> Unchecked([3, 4]).index(4)  # whatever is not checked is as it was
    1
    """

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    def __getattr__(self, name: str) -> Any:
        plain = getattr(getattr(type(self._schedule), name, None), "__wrapped__", None)
        if plain is None:
            return getattr(self._schedule, name)
        found = self.__dict__[name] = partial(plain, self._schedule)
        return found
