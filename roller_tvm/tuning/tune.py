"""The tuner of either line: plans every task of a model, measures the best plans, records the winners."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.errors import MeasureError
from roller_tvm.tuning.claims import WAIT_S
from roller_tvm.tuning.line import Line, Model, Records
from roller_tvm.tuning.machine import not_here, same_machine, threads_for
from roller_tvm.tuning.measurer import Measurer
from roller_tvm.tuning.remote import MODULE, Tracker, remote_pool
from roller_tvm.tuning.results import TunedTask, TuneResult, busy, judge, nothing_tuned, summary
from roller_tvm.tuning.selection import ordered, select, shares, time_is_up
from roller_tvm.tuning.session import Limits, TaskResult, timed
from roller_tvm.tuning.supervise import WORKER, Pool
from roller_tvm.tuning.timing import cold_options

#: Plans of each task, constructed and measured, unless told otherwise: as many as the paper measures.
TOP = 10
#: Tasks a worker, at a time, where plans are only built: records come in steps of that many.
BATCH = 4
#: Seconds that a worker has to say whether there is a device.
DEVICE_S = 60.0

Progress = Callable[[TunedTask, int], None]


@dataclass(frozen=True)
class Options:
    """Options of a tuning, as of ``relay.tune`` and ``relax.tune``.

    Parameters
    ----------
    trials, total : int
        Plans to measure for each task, and for all tasks together.
    names : sequence of str, optional
        Tune only tasks with one of these in their names.
    workers : int, optional
        Processes that build; by default one for each thread of the device.
    worker : str
        Module that they run.
    tracker : Tracker, optional
        Whose servers measure.
    """

    trials: int = TOP
    total: int | None = None
    top: int = TOP
    tasks: str | Iterable[int] = "all"
    names: Sequence[str] | None = None
    workers: int | None = None
    limits: Limits = field(default_factory=Limits)
    worker: str = WORKER
    fuse: Any = False
    seconds: float | None = None
    progress: Progress | None = None
    tracker: Tracker | None = None


def tune(line: Line, model: Model, records: Records, device: DeviceSpec, options: Options) -> TuneResult:
    """Tune the tasks of a model; the public ``relay.tune`` and ``relax.tune`` say more.

    Raises
    ------
    NothingTuned
        Not one task got a working plan; failures by kind are in the message.
    """
    start = time.perf_counter()
    threads, target = threads_for(device), records.target
    result = TuneResult([], device, str(target), records.place, options.trials, threads, notes=list(records.notes))
    with _pool(options, threads) as (pool, limits):
        pool.start()  # they import TVM while the model is taken apart
        if options.fuse:
            model, fusion = line.without_fused(model, target, device, options.fuse)
            if fusion is not None:
                result.module, result.fusion = model.mod, fusion
                result.notes.append(str(fusion).splitlines()[0])
        found = line.tasks(model, target, device, options.names)
        if found.left:
            result.notes.append(f"TVM makes no task of {', '.join(found.left)}: TVM's own schedule")
        chosen = ordered([found[n] for n in select(options.tasks, len(found))], options.seconds)
        result.seconds["extract"] = time.perf_counter() - start
        measurer = Measurer(pool, limits, result.seconds, cold_options(found.weight_bytes, device))
        for tuned in Tuner(line, measurer, device, records, options, result).run(chosen):
            result.tasks.append(tuned)
            if options.progress is not None:
                options.progress(tuned, len(chosen))
            elapsed = time.perf_counter() - start
            if time_is_up(elapsed, options.seconds, len(result.tasks), len(chosen), result.notes):
                break
    result.seconds["total"] = time.perf_counter() - start
    if options.tracker is None and any(t.status == "measured" for t in result.tasks):
        result.notes += busy(threads)
    records.report(f"{summary(result)}\n")
    if chosen and all(t.status == "fallback" and not t.kept for t in result.tasks):
        raise nothing_tuned(result)
    return result


@contextlib.contextmanager
def _pool(options: Options, threads: int) -> Iterator[tuple[Pool, Limits]]:
    """Yield workers that measure here, or on a tracker's servers."""
    if options.tracker is None:
        with Pool(options.workers or threads, threads, options.worker) as pool:
            yield pool, options.limits
        return
    module = options.worker if options.worker != WORKER else MODULE
    with remote_pool(options.tracker, threads, options.limits, module=module) as found:
        yield found


@dataclass
class Tuner:
    """Tunes tasks one after the other, or without a device some at a time.

    Parameters
    ----------
    result : TuneResult
        Its `seconds` and `notes` are added to.
    """

    line: Line
    measurer: Measurer
    device: DeviceSpec
    records: Records
    options: Options
    result: TuneResult

    def run(self, tasks: Sequence[Any]) -> Iterator[TunedTask]:
        """Yield the tasks as they are done."""
        if self._present():
            yield from self._measured(tasks)
            return
        size = len(self.measurer.pool.workers) * BATCH
        for first in range(0, len(tasks), size):
            yield from self._built(tasks[first : first + size])

    def _present(self) -> bool:
        """Return whether kernels run here; if not, the result's notes say so."""
        target = self.records.target
        reply = self.measurer.pool.workers[0].call("device_present", (target.kind.name,), DEVICE_S)
        if reply.ok and reply.value and (self.options.tracker is not None or same_machine(target)):
            return True
        if self.options.tracker is not None:
            why = reply.text or f"it has no {target.kind.name} device"
            where, remedy = str(self.options.tracker), "look at the server"
            raise MeasureError(f"no server can measure: {why}", where, remedy, "server")
        why = "" if reply.ok else f"the {target.kind.name} device cannot be asked ({reply.text}); "
        self.result.notes.append(why + not_here(target) + self.records.untimed)
        return False

    def _measured(self, tasks: Sequence[Any]) -> Iterator[TunedTask]:
        """Yield one task after the other; tasks claimed by another process come last, to read its records."""
        trials = shares(tasks, self.options.total, self.options.trials)
        claims = self.records.claims()
        try:
            later: list[tuple[Any, int]] = []
            for wait_s, some in ((0.0, list(zip(tasks, trials, strict=True))), (WAIT_S, later)):
                for task, count in some:
                    name = f"{task.key} {self.records.target}"
                    if not claims.take(name, wait_s) and some is not later:
                        later.append((task, count))
                        continue
                    tuned = self.tune(task, count)
                    claims.release(name)
                    yield tuned
        finally:
            claims.close()

    def tune(self, task: Any, trials: int) -> TunedTask:
        """Return one task measured, or (without trials) with its first plan that computes what it should.

        Of what only TVM alone would build (a task of weight 0), the first plan that is right is taken.
        """
        trials = trials if task.weight else 0
        tuned, ready = self._prepared(task, trials)
        if tuned.status:
            return tuned
        if trials:  # so many plans; one may be there in two forms
            best = list(dict.fromkeys(candidate.number for candidate, _ in ready))[:trials]
            ready = [pair for pair in ready if pair[0].number in best]
        began, target = time.perf_counter(), self.records.target
        lines = [self.line.record(task, schedule, target) for _, schedule in ready]
        default = self.line.default(task, target) if trials else ""
        try:
            how = "time" if trials else "check"
            measured = self.measurer.measure(self.line.work(task, target), lines, how, default)
        except MeasureError as error:
            tuned.status, tuned.reason = "fallback", f"{error.kind}: {error.what}"
            return tuned
        return self._finish(tuned, measured, ready, trials, time.perf_counter() - began)

    def _built(self, tasks: Sequence[Any]) -> Iterator[TunedTask]:
        """Yield every task with its first plan that builds; needs no device."""
        target = self.records.target
        prepared = [self._prepared(task, 0) for task in tasks]
        jobs = [
            (self.line.work(tuned.task, target), [self.line.record(tuned.task, s, target) for _, s in ready])
            for tuned, ready in prepared
            if not tuned.status
        ]
        try:
            built = iter(self.measurer.first_built(jobs))
        except MeasureError as error:
            built = iter([TaskResult([]) for _ in jobs])
            self.result.notes.append(f"{error.kind}: {error.what}")
        for tuned, ready in prepared:
            if tuned.status:
                yield tuned
            else:
                outcome = next(built)
                yield self._finish(tuned, outcome, ready, 0, sum(o.build_s for o in outcome.outcomes))

    def _prepared(self, task: Any, trials: int) -> tuple[TunedTask, list[tuple[Any, Any]]]:
        """Return the task with its candidates and no status, or already done: resumed, or without a plan."""
        known = self.records.known(task, trials)
        if known is not None:
            return known, []
        with timed(self.result.seconds, "plan"):
            found = self.line.candidates(task, self.device, max(self.options.top, trials))
            ready = found.applied()
        status = "fallback" if found.reason else ""
        return TunedTask(task, status, found, reason=found.reason, kept=found.scheduled), ready

    def _finish(
        self, tuned: TunedTask, measured: TaskResult, ready: Sequence[tuple[Any, Any]], trials: int, seconds: float
    ) -> TunedTask:
        """Judge the outcomes and write what there is to write."""
        judge(tuned, measured, [candidate.ranked for candidate, _ in ready], trials > 0)
        if measured.winner is not None or measured.default_wins:
            schedule = None if measured.winner is None else ready[measured.winner][1]
            notes = self.records.write(tuned, schedule, trials, seconds)
            self.result.notes += [note for note in notes if note not in self.result.notes]
        return tuned
