"""``tune_tir`` and ``tune_relax``: MetaSchedule's entry points, with Roller's plans instead of a search."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..device import DeviceSpec
from ..errors import BadInput
from ..tuning.results import TunedTask, header, row, summary
from ..tuning.selection import not_negative
from ..tuning.tune import Progress
from .devices import device_of, find_target
from .tuning import tune

#: What MetaSchedule takes and a plan has no use for: their defaults there.
_UNUSED = {"cost_model": "xgb", "task_scheduler": "gradient", "seed": None, "post_optimization": False,
           "special_space": None}  # fmt: skip
_COMPONENTS = "use s_tir.meta_schedule's own function with RollerSpace() and RollerStrategy() as components"


def tune_tir(
    mod: Any,
    target: Any,
    work_dir: str | os.PathLike[str],
    max_trials_global: int,
    *,
    max_trials_per_task: int | None = None,
    num_trials_per_iter: int = 64,
    builder: Any = "local",
    runner: Any = "local",
    database: Any = "json",
    cost_model: Any = "xgb",
    measure_callbacks: Any = "default",
    task_scheduler: Any = "gradient",
    space: Any = "roller",
    strategy: Any = "roller",
    num_tuning_cores: Any = "physical",
    seed: int | None = None,
    module_equality: str = "structural",
    special_space: Any = None,
    post_optimization: bool | None = False,
    device: DeviceSpec | str | None = None,
    progress: Progress | None = None,
    verbose: bool = True,
) -> Any:
    """``s_tir.meta_schedule.tune_tir`` with Roller's plans: same arguments, same database, no search.

    Parameters
    ----------
    mod : IRModule or PrimFunc
    target : Target, dict or str
    work_dir : path
        Made if it is missing. A second run resumes.
    max_trials_global, max_trials_per_task : int
        Plans measured in all, and each task (10 unless told). 0 plans without measuring.
    num_trials_per_iter : int
        Plans handed to `builder` and `runner` at a time.
    builder, runner, measure_callbacks
        'local': processes of our own, with answers checked and TVM's own kernel measured beside. Anything else:
        plans go through MetaSchedule's task scheduler to yours.
    database : Database, 'json' or 'memory'
    num_tuning_cores : 'physical', 'logical' or int
        Processes that build.
    cost_model, task_scheduler, seed, post_optimization, special_space
        Taken, with a warning where given, and without effect: plans are ranked by the model.
    device : DeviceSpec or str, optional
        By default the one that follows from the target.
    progress : function of (TunedTask, number of tasks), optional
    verbose : bool
        Print a line for each task.

    Returns
    -------
    Database
        ``with target, database: relax.transform.MetaScheduleApplyDatabase()(mod)`` applies it; so does a plain TVM.

    Examples
    --------
    >>> database = tune_tir(mod, target, "records", 100)
    """
    return _tune(
        mod, None, target, work_dir, max_trials_global, max_trials_per_task, None, num_trials_per_iter, builder, runner,
        database, measure_callbacks, space, strategy, num_tuning_cores, module_equality, device, progress, verbose,
        {"cost_model": cost_model, "task_scheduler": task_scheduler, "seed": seed,
         "post_optimization": post_optimization, "special_space": special_space},
    )  # fmt: skip


def tune_relax(
    mod: Any,
    params: Any,
    target: Any,
    work_dir: str | os.PathLike[str],
    max_trials_global: int,
    max_trials_per_task: int | None = None,
    op_names: Sequence[str] | None = None,
    *,
    num_trials_per_iter: int = 64,
    builder: Any = "local",
    runner: Any = "local",
    database: Any = "json",
    cost_model: Any = "xgb",
    measure_callbacks: Any = "default",
    task_scheduler: Any = "gradient",
    space: Any = "roller",
    strategy: Any = "roller",
    seed: int | None = None,
    module_equality: str = "structural",
    device: DeviceSpec | str | None = None,
    progress: Progress | None = None,
    verbose: bool = True,
) -> Any:
    """``s_tir.meta_schedule.relax_integration.tune_relax`` with Roller's plans (see ``tune_tir``).

    Parameters
    ----------
    mod : IRModule or relax.Function
        Legalized and fused: tasks are its PrimFuncs.
    params : dict of str to tensor or None
    op_names : sequence of str, optional
        Tune only functions in whose names one of these is.

    Returns
    -------
    Database

    Examples
    --------
    >>> database = tune_relax(mod, None, target, "records", 1000)
    >>> with target, database:
    ...     mod = relax.transform.MetaScheduleApplyDatabase()(mod)
    """
    return _tune(
        mod, params, target, work_dir, max_trials_global, max_trials_per_task, op_names, num_trials_per_iter, builder,
        runner, database, measure_callbacks, space, strategy, None, module_equality, device, progress, verbose,
        {"cost_model": cost_model, "task_scheduler": task_scheduler, "seed": seed},
    )  # fmt: skip


def _tune(
    mod: Any, params: Any, target: Any, work_dir: Any, total: int, per_task: int | None, op_names: Any, at_a_time: int,
    builder: Any, runner: Any, database: Any, callbacks: Any, space: Any, strategy: Any, cores: Any,
    module_equality: str, device: Any, progress: Progress | None, verbose: bool, others: dict[str, Any],
) -> Any:  # fmt: skip
    for name, value in (("space", space), ("strategy", strategy)):
        if value != "roller":
            raise BadInput(f"{name!r} must be 'roller' here (got {value!r})", remedy=_COMPONENTS)
    unused = [name for name, value in others.items() if value != _UNUSED.get(name)]
    if unused:
        warnings.warn(f"{', '.join(unused)}: without effect, plans are ranked by Roller's model", stacklevel=3)
    if (builder, runner, callbacks) != ("local", "local", "default"):
        from .components import tune_with

        return tune_with(
            mod, params, target, work_dir, total, per_task, op_names, at_a_time, builder, runner, database, callbacks,
            module_equality, device, cores,
        )  # fmt: skip
    plain = device_of(device, find_target(target)).built_by_tvm()
    rows = _Printer(progress) if verbose else progress
    made, result = tune(
        mod, params, target, work_dir, total, max_trials_per_task=per_task, op_names=op_names, database=database,
        module_equality=module_equality, device=plain, workers=_cores(cores), progress=rows,
    )  # fmt: skip
    if verbose:
        print(summary(result).split("\n\n", 1)[1], flush=True)
    return made


def _cores(cores: Any) -> int | None:
    if cores in ("physical", "logical", None):
        return None
    return int(not_negative("num_tuning_cores", cores, None, "leave it out: one for each core")) or None


@dataclass
class _Printer:
    """A line of the table as each task is done."""

    progress: Progress | None
    started: bool = False

    def __call__(self, tuned: TunedTask, count: int) -> None:
        if not self.started:
            print(header())
            self.started = True
        print(row(tuned), flush=True)
        if self.progress is not None:
            self.progress(tuned, count)
