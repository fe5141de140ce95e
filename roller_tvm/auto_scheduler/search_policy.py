"""TVM's search policies, and ``RollerPolicy``, which plans instead of searching."""

# ruff: noqa: F403
from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import compress
from typing import Any

from tvm.auto_scheduler import search_policy as _ansor
from tvm.auto_scheduler.search_policy import *

from roller_tvm.auto_scheduler.history import History
from roller_tvm.auto_scheduler.hooks import made_with
from roller_tvm.auto_scheduler.measuring import Means, cost_of, failure, planned_result
from roller_tvm.auto_scheduler.plans import Candidate, Queue, name_of
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import MeasureError, UsageError, must_be
from roller_tvm.relay.worker_side import work_of
from roller_tvm.tuning.checking import Workers
from roller_tvm.tuning.interrupt import deferred_interrupt, interrupted
from roller_tvm.tuning.results import counts, duration
from roller_tvm.tuning.session import Outcome

FALLBACKS = ("default", "ansor")
UNMEASURED = "plans are chosen by prediction and built, not measured"


class RollerWarning(UserWarning):
    """Warning that a task could not be planned or measured as asked; the message says what was done instead."""


@dataclass(frozen=True)
class Params:
    """Limits and choices of a ``RollerPolicy``.

    Parameters
    ----------
    plans : int
        Most plans constructed and most trials made for a task, even if the tuning options ask for more trials.
    round : int
        Most States handed to the builder at a time. A task's first round is its best plans by prediction.
    gain : float
        Fraction by which a later round must improve a task, or ``TaskScheduler`` gives it no further round.
    fallback : {'default', 'ansor'}
        Treatment of a task that Roller cannot plan: 'default' keeps TVM's own schedule, 'ansor' runs Ansor's search.
    device : DeviceSpec or str, optional
        Device, its name, or the path of its spec file. Default: the device that the task's target names.

    Examples
    --------
    >>> Params(plans=16, fallback="ansor").round
    10
    """

    plans: int = 64
    round: int = 10
    gain: float = 0.01
    fallback: str = "default"
    device: DeviceSpec | str | None = None

    def __post_init__(self) -> None:
        for name in ("plans", "round"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(must_be(name, "an int >= 1", value), "RollerPolicy", "leave it out for the default")
        if not 0 <= self.gain < 1:
            raise UsageError(must_be("gain", "a share from 0 to 1", self.gain), "RollerPolicy", "0.01 is one percent")
        if self.fallback not in FALLBACKS:
            raise UsageError(must_be("fallback", f"one of {', '.join(FALLBACKS)}", self.fallback), "RollerPolicy",
                             "'ansor' searches, 'default' leaves the task to TVM's own schedule")  # fmt: skip

    @classmethod
    def of(cls, params: Mapping[str, Any] | Params | None) -> Params:
        """Return Params made from a dictionary; ``SketchPolicy``'s parameters are ignored, unknown ones refused."""
        if isinstance(params, Params):
            return params
        known = {f.name for f in fields(cls)}
        given = {k: v for k, v in (params or {}).items() if k not in _ansor.SketchPolicy.DEFAULT_PARAMS}
        unknown = sorted(set(given) - known)
        if unknown:
            raise UsageError(f"no parameter '{unknown[0]}'", "RollerPolicy", f"choose from {', '.join(sorted(known))}")
        return cls(**given)


class PreloadMeasuredStates(_ansor.PreloadMeasuredStates):  # type: ignore[misc]
    """Count the States of a record file as measured. An absent file has none."""


class RollerPolicy(_ansor.EmptyPolicy):  # type: ignore[misc]
    """Roller as a search policy, for the tasks and the scheduler of this package and for TVM's own.

    Parameters
    ----------
    task : SearchTask
    params : dict or Params, optional
    verbose : int
        0 prints warnings only.
    init_search_callbacks : list of PreloadMeasuredStates, optional
        Record files to resume from.

    Examples
    --------
    >>> from tvm import auto_scheduler as ansor
    >>> task = ansor.SearchTask(func=matmul, args=(512, 512, 512), target="llvm")
    >>> task.tune(options, search_policy=RollerPolicy(task))
    >>> tuner = ansor.TaskScheduler(tasks, weights)
    >>> tuner.tune(options, search_policy=[RollerPolicy(t) for t in tasks])
    """

    def __init__(
        self,
        task: Any,
        params: Mapping[str, Any] | Params | None = None,
        verbose: int = 1,
        init_search_callbacks: Sequence[Any] | None = None,
    ) -> None:
        super().__init__(task)
        self.set_verbose(int(verbose))
        self.task = task
        self.params = Params.of(params)
        self.history = History()
        for callback in init_search_callbacks or ():
            self._preload(callback)
        self.best_s, self.best = self.history.best_s, None
        self.trials = len(self.history.costs)
        #: Trials of this task since its last gain, failures included.
        self.since_gain = 0
        self.rejected: list[str] = []
        self._why = ""
        self._queue: Queue | None = None
        self._workers: Workers | None = None
        self._instead: Any = None
        self._finished = False
        self._replay_history()

    def _preload(self, callback: Any) -> None:
        arguments = made_with(callback) if isinstance(callback, _ansor.PreloadMeasuredStates) else None
        if not arguments:
            raise UsageError(
                f"no {type(callback).__name__} can be given to Roller",
                "RollerPolicy(init_search_callbacks=...)",
                "give it to auto_scheduler.SketchPolicy, and that policy to tune",
            )
        read = History.read(arguments[0], self.task)
        self.history.costs.update(read.costs)
        self.history.planned |= read.planned
        if read.best_s < self.history.best_s:
            self.history.best_s, self.history.best_line = read.best_s, read.best_line

    def _replay_history(self) -> None:
        """Restore the early-stop state from the history: a task that an earlier run finished is not tried again."""
        best = math.inf
        for seconds in self.history.costs.values():
            best = self._weigh(seconds, best)
        self._judge_round()

    def _weigh(self, seconds: float, best: float) -> float:
        gained = seconds < best * (1 - self.params.gain)
        self.since_gain = 0 if gained else self.since_gain + 1
        return min(seconds, best)

    def _judge_round(self) -> None:
        """Mark the task as finished if a round after the first brought no gain."""
        self._finished = self.trials >= 2 * self.params.round and self.since_gain >= self.params.round

    @property
    def queue(self) -> Queue:
        """The task's candidates, planned on first use."""
        if self._queue is None:
            sizes = (self.params.round, self.params.plans)
            self._queue = Queue.of_task(self.task, self.params.device, *sizes, self.history)
        return self._queue

    @property
    def workers(self) -> Workers:
        if self._workers is None:
            assert self.queue.device is not None
            self._workers = Workers.shared(self.task.target, self.queue.device)
        return self._workers

    def close(self) -> None:
        """Drop the reference to the worker processes; they end with the last policy that uses them."""
        self._workers = None

    # Called by TVM's SearchTask.tune (see hooks.py) and TaskScheduler.

    def search(self, tuning_options: Any) -> Any:
        """Tune the task; return the best State, or None if no State works or Roller cannot plan the task."""
        if self._gives_up():
            return self._ansors_search(tuning_options)
        means = Means.of_options(tuning_options)
        wanted, patience = int(tuning_options.num_measure_trials), int(tuning_options.early_stopping)
        done = 0
        try:
            if wanted <= 0:
                return self.plan_only(means)
            while done < wanted:
                size = min(int(tuning_options.num_measures_per_round), self.params.round, wanted - done)
                inputs, _ = self.measure_round(size, means)
                done += len(inputs)
                if not inputs:
                    break
                if 0 < patience <= self.since_gain:
                    means.say(f"Stop early since no performance improvement in the last {patience} measurement trials.")
                    break
            if math.isinf(self.best_s):
                return self.plan_only(means)
            means.say(f"{name_of(self.task)}: {duration(self.best_s)} after {done} trials")
        finally:
            self.close()
        return self.best or self.history.state(self.task)

    def continue_search_one_round(self, num_measure: int, measurer: Any) -> tuple[list[Any], list[Any]]:
        """Measure the next plans; return nothing once a whole round brought no gain.

        Returns
        -------
        inputs, results : list of MeasureInput, list of MeasureResult
        """
        if self._gives_up():
            if self._instead is not None:
                return self._instead.continue_search_one_round(num_measure, measurer)
            return [], []
        means = Means.of_measurer(measurer)
        if self._finished:
            self.close()
            return [], []
        inputs, results = self.measure_round(min(int(num_measure), self.params.round), means)
        self._judge_round()
        if not inputs:
            self._finished = True
            if math.isinf(self.best_s):
                return self._planned(means)
        return inputs, results

    def measure_round(self, count: int, means: Means) -> tuple[list[Any], list[Any]]:
        """Measure up to `count` more plans with right answers and call the callbacks; return the inputs and results."""
        if not means.broken and means.local and not self.workers.runs_here(self.task.target):
            means.broken = f"no device here runs code for '{self.task.target}', and the runner is a LocalRunner"
            self._warn(f"{means.broken}: {UNMEASURED}; an RPCRunner would measure them")
        if means.broken:
            return [], []
        if not self.workers.runs_here(self.task.target):
            means.say_once(f"Nothing here runs code for '{self.task.target}': answers are not compared, as in Ansor.")
            if not means.proven:
                count = 1  # if the device far away is not there either, one trial tells
        chosen = self._right_ones(min(count, self.params.plans - self.trials), means)
        if not chosen:
            return [], []
        states = [c.state for c in chosen]
        with deferred_interrupt():  # what was measured before Ctrl-C is not lost
            with self.workers.pool.alone(None):
                inputs, results = means.measure(self.task, states)
            if not means.broken:
                whole = [not interrupted() or not failure(r) for r in results]  # Ctrl-C ends the runner's processes too
                means.deliver(self.task, list(compress(states, whole)), list(compress(results, whole)))
        if means.broken:
            self._warn(f"all {len(results)} trials failed ({means.broken}): {UNMEASURED}")
            return [], []
        for candidate, result in zip(chosen, results, strict=True):
            seconds = cost_of(result)
            if seconds < self.best_s:
                self.best = candidate.state
            self.best_s = self._weigh(seconds, self.best_s)
            self.trials += 1
        failures = [failure(r) for r in results]
        if all(failures):  # of this task only
            self._warn(f"all {len(failures)} trials failed, e.g. {failures[0]}")
        return inputs, results

    def _right_ones(self, count: int, means: Means) -> list[Candidate]:
        """Return up to `count` next candidates whose answers are right."""
        chosen: list[Candidate] = []
        while len(chosen) < count:
            tried = self.queue.take(count - len(chosen))
            if not tried:
                break
            try:
                lines = [c.line for c in tried]
                outcomes = self.workers.checked(work_of(self.task), lines, self.task.target, means.local)
            except MeasureError as error:
                self._warn(f"{error.kind}: {error.what}")
                if means.local:
                    break
                means.say_once("Answers are not compared, as in Ansor.")
                outcomes = [Outcome("ok") for _ in tried]
            for candidate, outcome in zip(tried, outcomes, strict=True):
                if outcome.ok:
                    chosen.append(candidate)
                else:
                    self.rejected.append(outcome.kind)
                    self._why = self._why or outcome.text
                    self.queue.failed(candidate)
        if self.rejected and not chosen and math.isinf(self.best_s):
            example = f", e.g. {self._why}" if self._why else ""
            self._warn(f"no plan works: {counts({k: self.rejected.count(k) for k in self.rejected})}{example}")
        return chosen

    # Without measuring.

    def plan_only(self, means: Means) -> Any:
        """Give the callbacks the best plan that works, with its predicted time; return its State, or None."""
        if self.history.best_line:
            return self.history.state(self.task)
        planned_only([self], means)
        return self.best

    def _planned(self, means: Means) -> tuple[list[Any], list[Any]]:
        """Return the best plan as a MeasureInput and a MeasureResult with its predicted time, for a scheduler."""
        from tvm.auto_scheduler.measure import MeasureInput, MeasureResult

        if self.plan_only(means) is None:
            return [], []
        return [MeasureInput(self.task, self.best)], [MeasureResult([self.best_s], 0, "", 0.0, 0.0)]

    def take_plan(self, found: Candidate | None, failures: Mapping[str, int], means: Means) -> None:
        """Take the result of ``planned_only``: the working candidate, or None and the failures of each kind."""
        if found is None:
            self._warn(f"no plan works: {counts(dict(failures)) or 'none was made'}")
            return
        self.best, self.best_s = found.state, found.seconds
        if found.steps not in self.history.planned:
            means.deliver(self.task, [found.state], [planned_result(found.seconds)])
        means.say(f"{name_of(self.task)}: ~{duration(found.seconds)} as predicted, not measured")

    # Tasks that Roller cannot plan.

    def _gives_up(self) -> bool:
        """Return True if the task has no plan; the first time, warn and set up the fallback."""
        if not self.queue.reason:
            return False
        if self.params.fallback == "ansor" and self._instead is None:
            self._instead = ansors_policy(self.task, int(self.verbose))
            self._warn(f"{self.queue.reason}; Ansor's search instead")
        elif self.params.fallback == "default" and not self._finished:
            self._finished = True
            self._warn(f"{self.queue.reason}; it keeps TVM's own schedule (fallback='ansor' would search for one)")
        return True

    def _ansors_search(self, tuning_options: Any) -> Any:
        from tvm.auto_scheduler import _ffi_api

        if self._instead is not None:
            _ffi_api.AutoSchedule(self._instead, tuning_options)
        return None

    def _warn(self, text: str) -> None:
        warnings.warn(f"{name_of(self.task)}: {text}", RollerWarning, stacklevel=2)


def planned_only(policies: Sequence[RollerPolicy], means: Means) -> None:
    """Record the best working plan of every task with its predicted time.

    Tasks are built side by side if they cannot run here.
    """
    able = [p for p in policies if not p._gives_up()]
    by_target: dict[tuple[int, str], list[RollerPolicy]] = {}
    for policy in able:
        by_target.setdefault((id(policy.workers), str(policy.task.target)), []).append(policy)
    for group in by_target.values():
        todo = [(p, p.queue.planned) for p in group]
        while todo:
            jobs = [(work_of(p.task), [c.line for c in candidates]) for p, candidates in todo]
            found = group[0].workers.first_working(jobs, group[0].task.target)
            again = []
            for (policy, candidates), result in zip(todo, found, strict=True):
                tried = len(policy.queue.planned)
                if result.winner is None and policy.queue.extend():  # none of the first ones: the others
                    again.append((policy, policy.queue.planned[tried:]))
                else:
                    winner = None if result.winner is None else candidates[result.winner]
                    policy.take_plan(winner, result.failures(), means)
            todo = again


def ansors_policy(task: Any, verbose: int) -> Any:
    """Return Ansor's own search policy, with its learned cost model if xgboost is installed, else a random one."""
    from tvm.auto_scheduler import RandomModel, SketchPolicy, XGBModel

    try:
        import xgboost  # noqa: F401

        model = XGBModel()
    except ImportError:
        model = RandomModel()
    return SketchPolicy(task, model, verbose=verbose)


def __getattr__(name: str) -> Any:
    return getattr(_ansor, name)
