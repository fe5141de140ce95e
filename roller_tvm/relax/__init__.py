"""The Relax line (apache-tvm 0.25 and later): the pass, tuning, and what MetaSchedule needs of Roller."""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: Name -> module that has it; imported when it is asked for, so that each costs only what it needs.
_LAZY = {"ScheduleWithRoller": "schedule"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f".{_LAZY[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])


__all__ = ["ScheduleWithRoller"]  # noqa: F822
