"""Tuning a Relax module or PrimFuncs: tasks, plans, measuring, records in a MetaSchedule database."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..codegen.tensorir_packing import constant_parameters
from ..device import DeviceSpec
from ..errors import BadInput, MeasureError, RecordError, must_be
from ..measure.machine import not_here, same_machine
from ..measure.pool import Pool
from ..measure.results import TunedTask, TuneResult, busy, judge, nothing_tuned
from ..measure.selection import ordered, select, time_is_up
from ..measure.session import Limits, TaskResult, timed
from ..measure.table import summary
from ..tir.candidates import Candidates, make_candidates
from ..tvm_env import import_relax_tvm, use_threads
from .database import UNMEASURED, Note, Store, copies_ahead, intrinsics_of, record_line
from .devices import device_of
from .fuse_rtasks import FuseRTasks
from .measure import WORKER, Measurer, cold_weights
from .reference import default_schedule
from .tasks import Task, as_module, extract_tasks

#: Plans measured, each task, unless told otherwise: as many as the paper measures.
TOP = 10
#: Tasks a worker, at a time, where plans are only built: records come in steps of that many.
BATCH = 4
INTRINSICS = "records name tensor intrinsics: a plain TVM applies them after `import tvm.s_tir.tensor_intrin`"
AHEAD = "kernels copy ahead (cp.async) where they are built in a PassContext with tirx.use_async_copy"

Progress = Callable[[TunedTask, int], None]


def tune(
    mod: Any,
    params: Any = None,
    target: Any = None,
    work_dir: str | os.PathLike[str] | None = None,
    max_trials_global: int | None = None,
    *,
    max_trials_per_task: int | None = None,
    op_names: Sequence[str] | None = None,
    tasks: str | Sequence[int] = "all",
    database: Any = "json",
    module_equality: str = "structural",
    device: DeviceSpec | str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    limits: Limits | None = None,
    worker: str = WORKER,
    fuse_rtasks: Any = False,
    seconds: float | None = None,
) -> tuple[Any, TuneResult]:
    """Plan every PrimFunc of a module, measure the best plans, and record the winners in a MetaSchedule database.

    Parameters
    ----------
    mod : IRModule, PrimFunc or relax.Function
        Legalized and fused. Functions that are scheduled already are left alone.
    params : dict of str to tensor, optional
        Bound to the function 'main'.
    target : Target, dict or str
        By default the one in whose scope this is called.
    work_dir : path, optional
        Of the database's files; made if it is missing. Tasks that it has records of are not tuned again.
    max_trials_global : int, optional
        Plans measured in all, spread over the tasks; by default as many as each task may have. 0 plans without
        measuring: the best plan by prediction whose answer is right is recorded.
    max_trials_per_task : int, optional
        By default 10.
    op_names : sequence of str, optional
        Tune only functions in whose names one of these is.
    tasks : str or sequence of int
        Of these, tune "all", or "0,2,3-5".
    database : Database, 'json' or 'memory'
    device : DeviceSpec or str, optional
        By default the one that follows from the target.
    workers : int, optional
        Processes that build; by default one for each core.
    progress : function of (TunedTask, number of tasks), optional
        Called as each task is done.
    seconds : float, optional
        Start no further task after so many seconds; the tasks with the most work come first.
    fuse_rtasks : bool or FuseRTasks
        For models that are built so: what `FuseRTasks` makes one kernel of on a GPU is planned by it, and not tuned.
        On a CPU every function is tuned, and `build` decides by the records which run side by side.

    Returns
    -------
    (Database, TuneResult)

    Raises
    ------
    NothingTuned
        Not one task got a working plan; failures by kind are in the message.
    BadInput, TargetError, RecordError, DiskFull
        Bad arguments or files. Records written before are intact, also after Ctrl-C.

    Examples
    --------
    >>> database, result = tune(mod, target=target, work_dir="records")  # doctest: +SKIP
    >>> print(result)  # doctest: +SKIP
    """
    import_relax_tvm("tuning a Relax module")
    from .devices import find_target

    per_task = not_negative("max_trials_per_task", max_trials_per_task, TOP)
    total = not_negative("max_trials_global", max_trials_global, None)
    start = time.perf_counter()
    given = find_target(target)
    with Store(work_dir, given, database, module_equality) as store:
        made = store.target
        spec = device_of(device, made)
        threads = use_threads(otherwise=spec.units) if spec.kind == "cpu" else (os.cpu_count() or 1)
        place = str(store.folder) if store.folder is not None else None
        result = TuneResult([], spec, str(made), place, per_task, threads)
        if str(made) != str(given):
            result.notes.append(f"the database's target is taken, {made}: what was given says less of the same")
        with Pool(workers or threads, threads, worker) as pool:
            pool.start()  # they import TVM while the module is taken apart
            if fuse_rtasks:
                mod, told = left_to_tune(as_module(mod, params), made, spec, fuse_rtasks)
                params = None
                result.notes += told
            found = extract_tasks(mod, params, op_names)
            chosen = ordered([found[n] for n in select(tasks, len(found))], seconds)
            result.seconds["extract"] = time.perf_counter() - start
            cold = cold_weights(chosen, spec) if spec.kind == "cpu" else {}
            measurer = Measurer(pool, made, limits or Limits(), result.seconds, cold)
            tuner = _Tuner(measurer, spec, per_task, total, store, result)
            for tuned in tuner.run(chosen):
                result.tasks.append(tuned)
                if progress is not None:
                    progress(tuned, len(chosen))
                elapsed = time.perf_counter() - start
                if time_is_up(elapsed, seconds, len(result.tasks), len(chosen), result.notes):
                    break
        result.seconds["total"] = time.perf_counter() - start
        if any(t.status == "measured" for t in result.tasks):
            result.notes += busy(threads)
        store.report(f"{summary(result)}\n")
        if chosen and all(t.status == "fallback" and not t.kept for t in result.tasks):
            raise nothing_tuned(result)
        return store.database, result


def left_to_tune(mod: Any, target: Any, device: DeviceSpec, fuse_rtasks: Any = True) -> tuple[Any, list[str]]:
    """A module without the operators that `FuseRTasks` plans, and what it says of them.

    Parameters
    ----------
    mod : IRModule
        Legalized and fused.
    target : Target
    device : DeviceSpec
    fuse_rtasks : bool or FuseRTasks
        How, unless as the pass does by itself.
    """
    if target.kind.name == "llvm":
        return mod, []
    fuse: Any = FuseRTasks(target, device) if fuse_rtasks is True else fuse_rtasks
    left = fuse(mod)
    return left, [str(fuse.report).splitlines()[0]]


def not_negative(name: str, value: Any, default: Any, remedy: str = "0 plans without measuring") -> Any:
    """A number that a user gave, or the default; ``BadInput`` where it is none."""
    if value is None:
        return default
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if isinstance(value, bool) or number < 0:
        raise BadInput(must_be(name, "an int >= 0", value), remedy=remedy)
    return number


def shares(tasks: Sequence[Task], total: int | None, per_task: int) -> list[int]:
    """Trials of each task; where they do not suffice for all, more for those that are called more often.

    Examples
    --------
    >>> rare, often = Task(0, "a", 1, None, ()), Task(1, "b", 5, None, ())
    >>> shares([rare, often], 100, 10), shares([rare, often], 7, 10), shares([rare, often], 0, 10)
    ([10, 10], [3, 4], [0, 0])
    """
    if total is None or total >= per_task * len(tasks):
        return [per_task] * len(tasks)
    counts = [min(per_task, total // max(1, len(tasks)))] * len(tasks)
    left = total - sum(counts)
    for n in sorted(range(len(tasks)), key=lambda n: -tasks[n].weight):
        if left > 0 and counts[n] < per_task:
            counts[n], left = counts[n] + 1, left - 1
    return counts


@dataclass
class _Tuner:
    """One task after the other."""

    measurer: Measurer
    device: DeviceSpec
    per_task: int
    total: int | None
    store: Store
    result: TuneResult

    def run(self, tasks: Sequence[Task]) -> Iterator[TunedTask]:
        """The tasks as they are done."""
        present = self._present()
        counts = shares(tasks, self.total, self.per_task) if present else [0] * len(tasks)
        if present:
            for task, trials in zip(tasks, counts, strict=True):
                yield self.tune(task, trials)
            return
        size = len(self.measurer.pool.workers) * BATCH
        for first in range(0, len(tasks), size):
            yield from self._built(tasks[first : first + size])

    def _present(self) -> bool:
        kind = self.measurer.target.kind.name
        reply = self.measurer.pool.workers[0].call("device_present", (kind,), 60.0)
        if reply.ok and reply.value and same_machine(self.measurer.target):
            return True
        self.result.notes.append(
            f"{not_here(self.measurer.target)}; their records hold the predicted time, in nanoseconds where measured"
            " ones hold seconds"
        )
        return False

    def tune(self, task: Task, trials: int) -> TunedTask:
        """One task measured, or (without trials) its first plan that computes what it should."""
        tuned, plans = self._prepared(task, trials)
        if tuned.status:
            return tuned
        began = [schedule for _, schedule in plans[: trials or len(plans)]]
        ranked = [candidate.ranked for candidate, _ in plans]
        try:
            measured = self.measurer.measure(task, began, "time" if trials else "check")
        except MeasureError as error:
            tuned.status, tuned.reason = "fallback", f"{error.kind}: {error.what}"
            return tuned
        return self._finish(tuned, measured, ranked, plans, trials)

    def _built(self, tasks: Sequence[Task]) -> Iterator[TunedTask]:
        """Without a device: every task's first plan that builds, some tasks at a time."""
        ready = [self._prepared(task, 0) for task in tasks]
        jobs = [(t.task, [] if t.status else [s for _, s in plans]) for t, plans in ready]
        try:
            built = self.measurer.first_built(jobs)
        except MeasureError as error:
            built = [TaskResult([]) for _ in jobs]
            self.result.notes.append(f"{error.kind}: {error.what}")
        for (tuned, plans), outcome in zip(ready, built, strict=True):
            ranked = [candidate.ranked for candidate, _ in plans]
            yield tuned if tuned.status else self._finish(tuned, outcome, ranked, plans, 0)

    def _prepared(self, task: Task, trials: int) -> tuple[TunedTask, list[Any]]:
        """The task with its schedules and no status, or already done: resumed, or without a plan."""
        note = self.store.notes.get(task.key)
        enough = note is None or note.trials >= trials
        if note is not None and note.reason and enough:
            kept = Candidates(flops=note.flops)
            seconds = math.nan if note.default_s is None else note.default_s
            tuned = TunedTask(task, "fallback", kept, reason=note.reason, kept=True, seconds=seconds, default_s=seconds)
            return tuned, []
        if self.store.has_record(task) and enough:
            return self._resumed(task, note), []
        with timed(self.result.seconds, "plan"):
            found = make_candidates(task.func, self.device, max(TOP, trials), constant_parameters(task.func), task.name)
            plans = list(found.schedules())
        reason = found.reason
        if not plans and not reason:
            reason = f"no plan could be applied: {found.failures[0] if found.failures else 'none made'}"
        return TunedTask(task, "fallback" if reason else "", found, reason=reason, kept=found.scheduled), plans

    def _resumed(self, task: Task, note: Note | None) -> TunedTask:
        if note is None:  # MetaSchedule's own
            return TunedTask(task, "resumed", Candidates(), seconds=self.store.best_seconds(task))
        predicted = math.nan if note.predicted_s is None else note.predicted_s
        seconds = predicted if note.measured_s is None else note.measured_s
        default_s = math.nan if note.default_s is None else note.default_s
        return TunedTask(
            task, "resumed", Candidates(flops=note.flops), seconds=seconds, predicted_s=predicted, checked=note.checked,
            default_s=default_s,
        )  # fmt: skip

    def _finish(
        self, tuned: TunedTask, measured: TaskResult, ranked: list[Any], plans: list[Any], trials: int
    ) -> TunedTask:
        """Judge the outcomes and write what there is to write."""
        judge(tuned, measured, ranked, trials > 0)
        note = self._note(tuned, trials)
        if measured.winner is not None:
            repeats = [tuned.seconds] if trials else [tuned.predicted_s * UNMEASURED]
            line = record_line(tuned.task.workloads[0], plans[measured.winner][1], self.measurer.target)
            if intrinsics_of(line):
                self._say(INTRINSICS)
            if copies_ahead(line):
                self._say(AHEAD)
            try:
                self.store.commit(tuned.task, plans[measured.winner][1], repeats, note)
            except RecordError as error:  # its trace does not replay
                if error.where != tuned.task.name:
                    raise
                tuned.status, tuned.reason = "fallback", error.what
        elif measured.default_wins:
            self._keep(tuned, note)
        return tuned

    def _keep(self, tuned: TunedTask, note: Note) -> None:
        """Record TVM's own kernel, so that whoever applies the database leaves the function to it."""
        schedule = default_schedule(tuned.task.workloads[0], self.measurer.target)
        if schedule is not None:
            with contextlib.suppress(RecordError):  # its trace does not replay
                self.store.commit(tuned.task, schedule, [tuned.default_s], note)
                return
        self.store.note(note)

    def _say(self, note: str) -> None:
        if note not in self.result.notes:
            self.result.notes.append(note)

    def _note(self, tuned: TunedTask, trials: int) -> Note:
        def told(seconds: float) -> float | None:
            return None if math.isnan(seconds) else seconds

        timed_it = tuned.status == "measured"
        return Note(
            tuned.task.key, tuned.plan.plan.digest() if tuned.plan is not None else "", told(tuned.predicted_s),
            tuned.seconds if timed_it else None, told(tuned.default_s), trials, tuned.checked,
            tuned.candidates.flops, tuned.reason,
        )  # fmt: skip
