"""Roller inside MetaSchedule: a space generator and a search strategy, with the user's builder, runner and RPC."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate, PySearchStrategy
from tvm.s_tir.meta_schedule.space_generator import PySpaceGenerator

from ..codegen.tensorir_packing import constant_parameters
from ..device import DeviceSpec
from ..errors import BadInput, MeasureError, NothingTuned
from ..tuning.checking import Workers
from ..tuning.machine import same_machine
from ..tuning.selection import shares
from ..tuning.tune import TOP
from ..tvm_env import use_threads
from .candidates import make_candidates
from .database import Store
from .devices import device_of, find_target
from .line import LINE
from .tasks import Task, extract_tasks, hash_of, normalized, without_names


@derived_object
class RollerSpace(PySpaceGenerator):
    """Design spaces that are Roller's plans, best first by prediction.

    Parameters
    ----------
    device : DeviceSpec or str, optional
        By default the one that follows from the task's target.
    top : int
        Plans of each task.

    Examples
    --------
    >>> from tvm.s_tir import meta_schedule as ms
    >>> ms.tune_tir(mod, target, "records", 40, space=RollerSpace(), strategy=RollerStrategy())
    """

    def __init__(self, device: DeviceSpec | str | None = None, top: int = TOP) -> None:
        super().__init__()
        self.sch_rules: list[Any] = []
        self.postprocs: list[Any] = []
        self.mutator_probs: dict[Any, float] = {}
        self.device, self.top, self.target = device, top, None

    def _initialize_with_tune_context(self, context: Any) -> None:
        self.target = context.target

    def generate_design_space(self, mod: Any) -> list[Any]:
        """Schedules of a task's module; none, with a warning, where it cannot be planned."""
        func = mod["main"]
        device = device_of(self.device, find_target(self.target)).built_by_tvm()  # MetaSchedule's builder is TVM's
        found = make_candidates(func, device, self.top, constant_parameters(func), "main")
        spaces = [schedule for _, schedule in found.applied()]
        if not spaces:
            warnings.warn(f"Roller has no plan, TVM's own schedule stays: {found.reason}", stacklevel=2)
        return spaces

    def clone(self) -> Any:
        """Another of the same kind, as each task has one."""
        return RollerSpace(self.device, self.top)


@derived_object
class RollerStrategy(PySearchStrategy):
    """Measures the design spaces as they come, best first, and nothing else.

    Parameters
    ----------
    check : bool
        Leave out, before they are measured, those that compute something else than the unscheduled function, where
        this machine can run them. Processes of our own do it: one that crashes or hangs takes nothing with it.
    """

    def __init__(self, check: bool = True) -> None:
        super().__init__()
        self.check = check
        self.context: Any = None
        self.left: list[Any] = []
        self.batch = 1

    def _initialize_with_tune_context(self, context: Any) -> None:
        self.context = context

    def pre_tuning(
        self, max_trials: int, num_trials_per_iter: int, design_spaces: Sequence[Any], database: Any = None,
        cost_model: Any = None,
    ) -> None:  # fmt: skip
        """Take the schedules to measure, those with right answers."""
        chosen = list(design_spaces)[: int(max_trials)]
        self.batch = max(1, int(num_trials_per_iter))
        self.left = right_ones(self.context, chosen) if self.check else chosen

    def post_tuning(self) -> None:
        """Forget them."""
        self.left = []

    def generate_measure_candidates(self) -> list[Any] | None:
        """The next ones, or None when there are no more."""
        some, self.left = self.left[: self.batch], self.left[self.batch :]
        if not some:
            return None
        # Each schedule packs constants as it likes, and a runner gets them packed.
        return [MeasureCandidate(s, ArgInfo.from_entry_func(s.mod, remove_preproc=True)) for s in some]

    def notify_runner_results(self, measure_candidates: Any, results: Any) -> None:
        """Results change nothing: the plans were chosen before."""

    def clone(self) -> Any:
        """Another of the same kind, as each task has one."""
        return RollerStrategy(self.check)


@lru_cache(maxsize=1)
def _checkers(threads: int) -> Workers:
    """Return worker processes that check answers, for all tasks, until this process ends."""
    return Workers("llvm", threads)


def right_ones(context: Any, schedules: Sequence[Any]) -> list[Any]:
    """Return the schedules with the results of the unscheduled function; all of them if none can run here."""
    target = context.target
    if target is None or target.kind.name != "llvm" or not same_machine(target) or not schedules:
        return list(schedules)
    device = device_of(None, target)
    threads = use_threads(otherwise=device.units)
    mod = normalized(context.mod)
    task = Task(0, str(context.task_name), 1, mod["main"], (mod,), key=hash_of(without_names(mod["main"])))
    try:
        lines = [LINE.record(task, schedule, target) for schedule in schedules]
        outcomes = _checkers(threads).outcomes(LINE.work(task, target), lines)
    except MeasureError as error:
        warnings.warn(f"answers of '{task.name}' are not checked: {error.what}", stacklevel=2)
        return list(schedules)
    for number, outcome in enumerate(outcomes):
        if not outcome.ok:
            warnings.warn(f"plan {number} of '{task.name}' is left out: {outcome}", stacklevel=2)
    return [s for s, outcome in zip(schedules, outcomes, strict=True) if outcome.ok]


def tune_with(
    mod: Any, params: Any, target: Any, work_dir: Any, total: int, per_task: int | None, op_names: Any, at_a_time: int,
    builder: Any, runner: Any, database: Any, callbacks: Any, module_equality: str, device: Any, cores: Any,
) -> Any:  # fmt: skip
    """``tune_tir`` and ``tune_relax`` with a builder, a runner or callbacks of the user's."""
    from tvm.s_tir.meta_schedule.logging import get_loggers_from_work_dir
    from tvm.s_tir.meta_schedule.tune import tune_tasks
    from tvm.s_tir.meta_schedule.tune_context import TuneContext

    if not total:
        raise BadInput("0 plans cannot be measured with a runner", remedy="leave builder and runner at 'local'")
    with Store(work_dir, find_target(target), database, module_equality) as store:
        made = store.target
        spec = device_of(device, made)
        if spec.kind == "cpu":
            use_threads(otherwise=spec.units)
        tasks = extract_tasks(mod, params, op_names)
        left = [task for task in tasks if not store.has_record(task)]
        counts = shares(left, total, TOP if per_task is None else int(per_task))
        loggers = get_loggers_from_work_dir(str(work_dir), [task.name for task in left])
        for task, trials, logger in zip(left, counts, loggers, strict=True):
            context = TuneContext(
                mod=task.workloads[0], target=made, space_generator=RollerSpace(spec, max(TOP, trials)),
                search_strategy=RollerStrategy(), task_name=task.name, logger=logger,
                num_threads="physical" if cores is None else cores,
            ).clone()  # fmt: skip
            tune_tasks(
                tasks=[context], task_weights=[1.0], work_dir=str(work_dir), max_trials_global=trials,
                max_trials_per_task=trials, num_trials_per_iter=max(1, min(at_a_time, trials)), builder=builder,
                runner=runner, database=store.database, cost_model="random", measure_callbacks=callbacks,
                task_scheduler="round-robin", module_equality=module_equality,
            )  # fmt: skip
            store.share(task)
        if tasks and not any(store.has_record(task) for task in tasks):
            raise NothingTuned(
                f"none of {len(tasks)} tasks got a record: see the logs in {work_dir}", str(made),
                "try the runner with MetaSchedule's own space first",
            )  # fmt: skip
        return store.database
