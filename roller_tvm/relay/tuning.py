"""Tunes a Relay model: extracts tasks, plans, measures, and writes records."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.errors import BadInput, MeasureError, must_be
from roller_tvm.measure.claims import WAIT_S, Claims
from roller_tvm.measure.machine import not_here, same_machine
from roller_tvm.measure.results import TunedTask, TuneResult, busy, judge, nothing_tuned
from roller_tvm.measure.selection import ordered, select, time_is_up
from roller_tvm.relay.candidates import Candidates, make_candidates
from roller_tvm.relay.cold import ColdWeights
from roller_tvm.relay.dense_weights import packable
from roller_tvm.relay.fuse_rtasks import FuseRTasks, fusion_of
from roller_tvm.relay.measure import Limits, Measurer, TaskResult, timed
from roller_tvm.relay.pool import WORKER, Pool
from roller_tvm.relay.records import (
    Note,
    RecordWriter,
    best_notes,
    kept_line,
    read_kept,
    read_records,
    record_text,
)
from roller_tvm.relay.tasks import Task, check_device, extract_tasks, find_device, make_target
from roller_tvm.tvm_env import import_relay_tvm, use_threads

#: Tasks a worker, at a time, where plans are only built: records come in steps of that many.
BATCH = 4


Progress = Callable[[TunedTask, int], None]


def tune(
    mod: Any,
    params: Any = None,
    target: Any = "llvm",
    log_file: str | os.PathLike[str] | None = None,
    trials: int = 10,
    device: DeviceSpec | str | None = None,
    tasks: str | Iterable[int] = "all",
    top: int = 10,
    progress: Progress | None = None,
    limits: Limits | None = None,
    worker: str = WORKER,
    fuse_rtasks: Any = False,
    seconds: float | None = None,
) -> TuneResult:
    """Plan every operator of a model, measure the best plans, and write records.

    Parameters
    ----------
    mod : tvm.IRModule
    params : dict of str to array, optional
        The same as for ``relay.build``.
    target : str or tvm.target.Target
    log_file : path, optional
        Records are appended; tasks that it has already are not tuned again.
    trials : int
        Number of best plans to measure per operator; 0 plans without measuring.
    device : DeviceSpec or str, optional
        A device, its name or its spec file; by default the one that the target names.
    tasks : 'all', '0,2,3-5' or numbers
    top : int
        Plans to construct, at least `trials`.
    progress : function of (TunedTask, number of tasks), optional
        Called as each task is done.
    seconds : float, optional
        Start no further task after so many seconds; the tasks with the most work come first.
    fuse_rtasks : bool or tvm.transform.Pass
        Run ``FuseRTasks`` (or the given pass) first, and tune the operators outside of its kernels. The result then has
        its `fusion`, and the `module` to build.

    Returns
    -------
    TuneResult

    Raises
    ------
    NothingTuned
        Not one task got a working plan; failures by kind are in the message.
    BadInput, TargetError, RecordError, DiskFull
        Bad arguments or files. Records written before are intact, also after Ctrl-C.

    Examples
    --------
    >>> result = tune(mod, params, "llvm -mcpu=skylake-avx512", log_file="records.json")  # doctest: +SKIP
    >>> print(result)  # doctest: +SKIP
    >>> lib = build(mod, params, result.target, "records.json")  # doctest: +SKIP
    """
    if isinstance(trials, bool) or not isinstance(trials, int) or trials < 0:
        raise BadInput(must_be("trials", "an int >= 0", trials), remedy="0 plans without measuring")
    tvm = import_relay_tvm("tuning a Relay model")
    if isinstance(mod, tvm.relay.Function):  # what TVM's extract_tasks takes too
        mod = tvm.IRModule.from_expr(mod)
    if not isinstance(mod, tvm.IRModule):
        raise BadInput(must_be("mod", "an IRModule", mod), remedy="import the model first: roller_tvm.relay.importers")
    start = time.perf_counter()
    made_target = make_target(target)
    spec = find_device(made_target if device is None else device, device is None)
    check_device(spec, made_target)
    threads = use_threads(otherwise=spec.units) if spec.kind == "cpu" else (os.cpu_count() or 1)
    # The file first: a bad one should not cost a minute of extraction.
    writer = RecordWriter(log_file) if log_file is not None else None
    known = best_notes(read_records(log_file)) if log_file is not None else {}
    kept = read_kept(log_file) if log_file is not None else {}
    if writer is not None:
        writer.mend()
    result = TuneResult([], spec, str(made_target), str(Path(log_file)) if log_file else None, trials, threads)
    # Each worker is a process with a TVM of its own: no more of them than there are candidates at a time.
    count = min(threads, max(1, trials)) if spec.kind == "cpu" else threads
    with Pool(count, threads, worker) as pool:
        pool.start()  # they import TVM while the model is taken apart
        if fuse_rtasks:
            mod, params = left_to_tune(mod, params, made_target, spec, fuse_rtasks), None
            result.module, result.fusion = mod, fusion_of(mod)
            result.notes.append(str(result.fusion).splitlines()[0])
        found = extract_tasks(mod, params, made_target, spec)
        if found.left:
            result.notes.append(f"TVM makes no task of {', '.join(found.left)}: TVM's own schedule")
        chosen = ordered([found[n] for n in select(tasks, len(found))], seconds)
        result.seconds["extract"] = time.perf_counter() - start
        how = _how(pool, made_target, trials, result)
        cold = ColdWeights.of_model(mod, params, spec) if spec.kind == "cpu" else None
        measurer = Measurer(pool, limits or Limits(), result.seconds, cold)
        tuner = _Tuner(measurer, spec, how, trials, max(top, trials), writer, known, kept, result)
        for tuned in tuner.build_all(chosen) if how == "build" else tuner.tune_all(chosen):
            result.tasks.append(tuned)
            if progress is not None:
                progress(tuned, len(chosen))
            elapsed = time.perf_counter() - start
            if time_is_up(elapsed, seconds, len(result.tasks), len(chosen), result.notes):
                break
    result.seconds["total"] = time.perf_counter() - start
    if any(t.status == "measured" for t in result.tasks):
        result.notes += busy(threads)
    if chosen and all(t.status == "fallback" and not t.kept for t in result.tasks):
        raise nothing_tuned(result)
    return result


def left_to_tune(mod: Any, params: Any, target: Any, device: DeviceSpec, fuse: Any = True) -> Any:
    """Return a module after ``FuseRTasks``, as a build with records would make it; the rest of it can be tuned."""
    tvm = import_relay_tvm("fusing rTasks of a Relay model")
    mod, axes = packable(mod, params, target)  # as build does: what is fused depends on it
    with axes, tvm.transform.PassContext(opt_level=3, config={"relay.backend.use_auto_scheduler": True}):
        return (FuseRTasks(target, device, params) if fuse is True else fuse)(mod)


def _how(pool: Pool, target: Any, trials: int, result: TuneResult) -> str:
    """Return how winners are chosen: 'time', 'check' (results only), or 'build' if there is no such device here."""
    reply = pool.workers[0].call("device_present", (target.kind.name,), 60.0)
    if reply.ok and reply.value and same_machine(target):
        return "time" if trials else "check"
    result.notes.append(not_here(target))
    return "build"


@dataclass
class _Tuner:
    """One task after the other."""

    measurer: Measurer
    device: DeviceSpec
    how: str
    trials: int
    top: int
    writer: RecordWriter | None
    known: dict[tuple[str, str], Note]
    kept: dict[tuple[str, str], tuple[str, int]]
    result: TuneResult

    def build_all(self, tasks: Sequence[Task]) -> Iterator[TunedTask]:
        """Yield every task with its first plan that builds, some tasks at a time; needs no device."""
        size = len(self.measurer.pool.workers) * BATCH
        for first in range(0, len(tasks), size):
            batch = tasks[first : first + size]
            ready = [self._prepared(task) for task in batch]
            jobs = [(t.task.search_task, [] if t.status else [s for s, _ in t.candidates.states]) for t in ready]
            try:
                built = self.measurer.first_built(jobs)
            except MeasureError as error:
                built = [TaskResult([]) for _ in jobs]
                self.result.notes.append(f"{error.kind}: {error.what}")
            for tuned, outcome in zip(ready, built, strict=True):
                yield tuned if tuned.status else self._finish(tuned, outcome, sum(o.build_s for o in outcome.outcomes))

    def tune_all(self, tasks: Sequence[Task]) -> Iterator[TunedTask]:
        """Tune one task after the other; tasks claimed by another process come last, to read its records."""
        claims = Claims(self.writer.path if self.writer is not None else None)
        try:
            later: list[Task] = []
            for wait_s, some in ((0.0, tasks), (WAIT_S, later)):
                for task in some:
                    name = f"{task.key} {task.target}"
                    if not claims.take(name, wait_s) and some is not later:
                        later.append(task)
                        continue
                    tuned = self.tune(task)
                    claims.release(name)
                    yield tuned
        finally:
            claims.close()

    def tune(self, task: Task) -> TunedTask:
        """One task measured, or (without trials) its first plan that computes what it should."""
        tuned = self._prepared(task)
        if tuned.status:
            return tuned
        candidates, how = tuned.candidates, self._way(task)
        if how == "time":  # N plans; one may be there in two forms
            best = list(dict.fromkeys(number for _, number in candidates.states))[: self.trials]
            candidates.states = [s for s in candidates.states if s[1] in best]
        began = time.perf_counter()
        try:
            states = [state for state, _ in candidates.states]
            measured = self.measurer.measure(task.search_task, states, how, task.default)
        except MeasureError as error:
            tuned.status, tuned.reason = "fallback", f"{error.kind}: {error.what}"
            return tuned
        return self._finish(tuned, measured, time.perf_counter() - began)

    def _way(self, task: Task) -> str:
        """How the winner is chosen: of what only TVM alone would build, the first plan that is right."""
        return self.how if task.weight else "check"

    def _prepared(self, task: Task) -> TunedTask:
        """The task with its candidates and no status, or already done: resumed, or without a plan."""
        if self.writer is not None and self.writer.grew():  # another tuner of this file
            self.known = {**self.known, **best_notes(read_records(self.writer.path))}
            self.kept = {**self.kept, **read_kept(self.writer.path)}
        note = self.known.get((task.key, task.target))
        untimed = self._way(task) != "time"
        if note is not None and (untimed or note.trials >= self.trials):
            predicted = math.nan if note.predicted_s is None else note.predicted_s
            seconds = predicted if note.measured_s is None else note.measured_s
            counted = Candidates(flops=note.flops or 0)
            return TunedTask(task, "resumed", counted, seconds=seconds, predicted_s=predicted, checked=note.checked)
        reason, trials = self.kept.get((task.key, task.target), ("", -1))
        if reason and (untimed or trials >= self.trials):
            return TunedTask(task, "fallback", Candidates(), reason=reason, kept=True)
        with timed(self.result.seconds, "plan"):
            candidates = make_candidates(task, self.device, self.top)
        return TunedTask(task, "fallback" if candidates.reason else "", candidates, reason=candidates.reason)

    def _finish(self, tuned: TunedTask, measured: TaskResult, spent: float) -> TunedTask:
        """Judge the outcomes and write what there is to write."""
        task = tuned.task
        plans = [tuned.candidates.plans[number] for _, number in tuned.candidates.states]
        judge(tuned, measured, plans, self._way(task) == "time")
        if self.writer is not None and measured.winner is not None:
            state, _ = tuned.candidates.states[measured.winner]
            self.writer.append(record_text(task.search_task, state, self._note(tuned), spent))
        elif self.writer is not None and measured.default_wins:
            self.writer.withdraw(task.key, task.target)  # what an earlier tuning took without it
            self.writer.append(kept_line(task.key, task.target, tuned.reason, self.trials))
        return tuned

    def _note(self, tuned: TunedTask) -> Note:
        timed_it = tuned.status == "measured"
        return Note(tuned.plan.plan.digest(), tuned.predicted_s, tuned.seconds if timed_it else None,
                    self.trials if timed_it else 0, tuned.checked, tuned.candidates.flops or None)  # fmt: skip
