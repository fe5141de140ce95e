"""``TaskScheduler``: TVM's strategies and callbacks, with Roller's policies and round sizes."""

# ruff: noqa: F403
from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tvm.auto_scheduler import task_scheduler as _ansor
from tvm.auto_scheduler.task_scheduler import *

from roller_tvm.auto_scheduler.history import is_measured
from roller_tvm.auto_scheduler.measuring import Means, cost_of
from roller_tvm.auto_scheduler.search_policy import (
    Params,
    PreloadMeasuredStates,
    RollerPolicy,
    planned_only,
)
from roller_tvm.auto_scheduler.search_task import TuningOptions
from roller_tvm.relay.records import read_records

#: Names of search policies that are Roller's.
ROLLER = ("default", "roller")


class TaskScheduler(_ansor.TaskScheduler):  # type: ignore[misc]
    """Tune the tasks of a model together; parameters and callbacks as TVM's.

    ``num_measure_trials`` counts for all tasks together. A task's first round is its ten best plans. A task is finished
    once a whole later round brought no gain, so a script that asks for 20000 trials ends much earlier. With 0 trials
    every task is planned and none is measured; with fewer trials than tasks, the costliest tasks are measured.

    Examples
    --------
    >>> tuner = TaskScheduler(tasks, weights)
    >>> tuner.tune(TuningOptions(200, measure_callbacks=[RecordToFile("records.json")]))
    """

    def tune(
        self,
        tune_option: Any,
        search_policy: str | Sequence[Any] = "default",
        search_policy_params: Mapping[str, Any] | None = None,
        adaptive_training: bool = False,
        per_task_early_stopping: int | None = None,
    ) -> None:
        """Tune all tasks.

        Parameters
        ----------
        tune_option : TuningOptions
        search_policy : 'default' or 'roller', an Ansor policy's name ('sketch.xgb'), or a policy for each task
        search_policy_params : dict, optional
            Parameters of ``RollerPolicy``: see ``search_policy.Params``.
        adaptive_training, per_task_early_stopping
            As in TVM.
        """
        if search_policy in ROLLER:
            search_policy = self._policies(tune_option, search_policy_params)
        ours = [p for p in search_policy if isinstance(p, RollerPolicy)] if not isinstance(search_policy, str) else []
        if len(ours) < len(self.tasks):
            super().tune(tune_option, search_policy, search_policy_params, adaptive_training, per_task_early_stopping)
            return
        try:
            if int(tune_option.num_measure_trials) < len(self.tasks):
                self._tune_few(tune_option, ours)
            else:
                options = _in_rounds(tune_option, max(p.params.round for p in ours))
                super().tune(options, ours, None, adaptive_training, per_task_early_stopping)
        finally:
            for policy in ours:
                policy.close()

    def _policies(self, options: Any, params: Mapping[str, Any] | None) -> list[RollerPolicy]:
        callbacks = [PreloadMeasuredStates(self.load_log_file)] if self.load_log_file else None
        chosen = Params.of(params)
        return [RollerPolicy(task, chosen, int(options.verbose), callbacks) for task in self.tasks]

    def _tune_few(self, options: Any, policies: list[RollerPolicy]) -> None:
        """Plan every task; spend the trials on the tasks that are costliest by prediction."""
        self.tune_option, self.search_policies, self.num_measures_per_round = options, policies, 1
        self.ct = self.best_ct = 0
        self.tic = time.time()
        if self.load_log_file:
            self._restore_status(self.load_log_file, 1)
        means = Means.of_options(options)
        trials = int(options.num_measure_trials)
        for number, policy in enumerate(policies):
            self._called("pre_tune", number)
            if self.best_costs[number] >= 1e9:  # nothing known of it
                planned_only([policy], means)
                self._take(number, policy.best_s)
            self._called("post_tune", number)
        for number in self._costliest()[:trials]:
            self._called("pre_tune", number)
            _, results = policies[number].measure_round(1, means)
            self.ct += len(results)
            self.task_cts[number] += len(results)
            if results:
                self._take(number, min(map(cost_of, results)))
            self._called("post_tune", number)
        self.best_ct, self.best_score = self.ct, self.cur_score

    def _called(self, name: str, number: int) -> None:
        for callback in self.callbacks:
            getattr(callback, name)(self, number)

    def _take(self, number: int, seconds: float) -> None:
        if seconds < 1e9:
            self.best_costs[number] = seconds
        self.task_costs_history[number].append(self.best_costs[number])
        self.cur_score = self._compute_score(self.best_costs)

    def _costliest(self) -> list[int]:
        """Return the numbers of the tasks with a known cost, the one with the largest share of the objective first."""

        def share(number: int) -> float:
            costs = list(self.best_costs)
            costs[number] = 0.0
            return float(self._compute_score(list(self.best_costs)) - self._compute_score(costs))

        return sorted((n for n, cost in enumerate(self.best_costs) if cost < 1e9), key=share, reverse=True)

    def _restore_status(self, log_file: str, num_measures_per_round: int) -> None:
        """Restore best costs and rounds of an earlier run; half lines and predicted times are not counted."""
        number_of = {(str(t.workload_key), str(t.target)): n for n, t in enumerate(self.tasks)}
        costs: list[list[float]] = [[] for _ in self.tasks]
        for record in read_records(log_file, strict=False):
            number = number_of.get((record.workload_key, record.target))
            if number is not None and is_measured(record):
                costs[number].append(record.cost if record.error_no == 0 else float("inf"))
        for number, seen in enumerate(costs):
            if not seen:
                continue
            best = min(seen)
            self.task_cts[number] = max(1, round(len(seen) / num_measures_per_round))
            if best < float("inf"):
                self.best_costs[number] = best
                self.task_best_cts[number] = round((seen.index(best) + 1) / num_measures_per_round)
            self.task_costs_history[number] = [self.best_costs[number]] * self.task_cts[number]
        self.cur_score = self._compute_score(self.best_costs)


def _in_rounds(options: Any, size: int) -> Any:
    """Return a copy of the options with rounds of at most `size`."""
    return TuningOptions(
        options.num_measure_trials, options.early_stopping, min(int(options.num_measures_per_round), size),
        options.verbose, options.builder, options.runner, options.measure_callbacks)  # fmt: skip


def __getattr__(name: str) -> Any:
    return getattr(_ansor, name)
