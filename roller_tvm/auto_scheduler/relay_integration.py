"""Extract the tasks of a Relay model as TVM does; Roller tunes them."""

# ruff: noqa: F403
from __future__ import annotations

from typing import Any

from tvm.auto_scheduler import relay_integration as _ansor
from tvm.auto_scheduler.relay_integration import *
from tvm.target import Target

from roller_tvm.auto_scheduler.search_task import SearchTask, hardware_params_for


def extract_tasks(
    mod: Any,
    params: Any,
    target: Any,
    target_host: Any = None,
    hardware_params: Any = None,
    include_simple_tasks: bool = False,
    *args: Any,
    **kwargs: Any,
) -> tuple[list[SearchTask], list[int]]:
    """Return a Relay model's tasks and the number of calls of each; parameters as ``tvm.auto_scheduler.extract_tasks``.

    Examples
    --------
    >>> tasks, weights = extract_tasks(mod["main"], params, "llvm -mcpu=core-avx2")
    >>> tuner = TaskScheduler(tasks, weights)
    """
    if hardware_params is None:
        hardware_params = hardware_params_for(Target.canon_target_and_host(target, target_host)[0])
    tasks, weights = _ansor.extract_tasks(
        mod, params, target, target_host, hardware_params, include_simple_tasks, *args, **kwargs
    )
    return [SearchTask.of(task) for task in tasks], weights


def __getattr__(name: str) -> Any:
    return getattr(_ansor, name)
