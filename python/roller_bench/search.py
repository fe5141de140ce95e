"""The XGBoost baseline: a search over all of Roller's plans by a learned cost model in place of the analytic one.

As a tuner of a comparison it runs on either line; its measurements are kept for later training.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from roller_bench.files import CurveFile
from roller_bench.learned import NAMES, machine_of, plan_features, train
from roller_bench.task import OpenedTask, Searched, first_right
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import MeasureError, RollerError, UnsupportedOperator
from roller_tvm.folders import work_folder
from roller_tvm.ir import TensorExpression
from roller_tvm.planner import construct
from roller_tvm.planner.construction import RankedPlan
from roller_tvm.roller.features import NO_FEATURES, Features
from roller_tvm.tuning.session import Limits, Session
from roller_tvm.tuning.supervise import Failed, Pool

#: More plans than any operator has.
EVERY = 10_000
#: Share of a batch that is drawn at random, as in AutoTVM's tuner.
RANDOM = 0.05
#: Most plans measured between two trainings, and least number of batches.
BATCH, BATCHES = 64, 4
#: Number of fastest plans whose answers are checked until one is right.
CHECKED = 8
#: Function that returns the time of each plan in seconds, infinity if the plan does not work.
Measure = Callable[[Sequence[RankedPlan]], Sequence[float]]


def every_plan(
    expression: TensorExpression, device: DeviceSpec, features: Features = NO_FEATURES
) -> tuple[RankedPlan, ...]:
    """Return all plans of an operator on a CPU, which the analytic model ranks and a search draws from.

    Raises
    ------
    UnsupportedOperator
        The device is no CPU, or the operator has no plan.

    Examples
    --------
    >>> from roller_tvm.ir.operators import matmul
    >>> from roller_tvm.device import device_for_target
    >>> len(every_plan(matmul(m=64, n=64, k=64), device_for_target("llvm -mcpu=skylake-avx512 -num-cores=2"))) > 100
    True
    """
    if device.kind != "cpu":
        raise UnsupportedOperator("only the plans of CPUs can be searched", device.name, "give a CPU's target")
    return construct(expression, device, EVERY, features).plans


@dataclass(frozen=True)
class Tried:
    """A measured plan; `seconds` is infinite if it did not work."""

    plan: RankedPlan
    seconds: float


@dataclass
class Online:
    """A search over plans: a model that learns after each batch chooses the next one.

    Parameters
    ----------
    plans : sequence of RankedPlan
    device : DeviceSpec
    batch : int
        Number of plans measured between two trainings.
    seed : int

    Examples
    --------
    >>> from roller_tvm.device import device_for_target
    >>> from roller_tvm.ir.operators import matmul
    >>> device = device_for_target("llvm -mcpu=skylake-avx512 -num-cores=2")
    >>> search = Online(every_plan(matmul(m=32, n=32, k=32), device), device, batch=4)
    >>> len(list(search.run(8, lambda plans: [p.seconds for p in plans])))
    8
    """

    plans: Sequence[RankedPlan]
    device: DeviceSpec
    batch: int = 16
    seed: int = 0
    tried: list[Tried] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._left = self._random.sample(range(len(self.plans)), len(self.plans))
        self.rows = np.array([plan_features(plan, self.device) for plan in self.plans])
        self._measured: list[int] = []

    @property
    def best(self) -> Tried | None:
        """Fastest plan that worked, or None if none has."""
        worked = [t for t in self.tried if math.isfinite(t.seconds)]
        return min(worked, key=lambda t: t.seconds) if worked else None

    def run(self, trials: int, measure: Measure) -> Iterator[Tried]:
        """Measure up to `trials` plans; yield each once its batch is done."""
        while self._left and len(self.tried) < trials:
            chosen = self._propose(min(self.batch, trials - len(self.tried)))
            plans = [self.plans[n] for n in chosen]
            self._measured += chosen
            for plan, seconds in zip(plans, measure(plans), strict=True):
                self.tried.append(Tried(plan, float(seconds)))
                yield self.tried[-1]

    def _propose(self, count: int) -> list[int]:
        """Return the next plans by number: those that the model thinks fastest, once there is one, some at random."""
        model = train([t.seconds for t in self.tried], self.rows[self._measured]) if self.tried else None
        best: list[int] = []
        if model is not None:
            scores = model.scores(self.rows[self._left])
            ranked = [self._left[n] for n in np.argsort(-scores, kind="stable")]
            best = ranked[: count - min(count - 1, max(1, round(count * RANDOM)))]
        rest = [n for n in self._left if n not in best]
        chosen = [*best, *rest[: count - len(best)]]  # what is left is in random order
        self._left = [n for n in self._left if n not in chosen]
        return chosen

    def kept(self, title: str) -> dict[str, Any]:
        """Return the measurements as JSON values, for training without measuring (``learned.read_measured``)."""
        rows = [[t.seconds if math.isfinite(t.seconds) else None, *map(float, self.rows[n])]
                for n, t in zip(self._measured, self.tried, strict=False)]  # fmt: skip
        return {"operator": title, "device": self.device.name, "arch": self.device.arch,
                "machine": machine_of(self.device), "names": ["seconds", *NAMES], "rows": rows}  # fmt: skip


# -- as a tuner of a comparison ---------------------------------------------------------------------------------------


def search(opened: OpenedTask, trials: int) -> dict[str, Any]:
    """Search a task's plans; return the fields of ``results.Tuned`` for the fastest kernel with a right answer.

    Features and seconds of all measured plans go to ``measured.TRIALS.json`` in the task's work folder.
    """
    searched, work = opened.searched(), opened.work("xgboost")
    path = work / f"curve.{trials}.jsonl"
    path.unlink(missing_ok=True)  # a search that was interrupted begins anew: what it had learned is gone
    with PlanMeasuring(opened.pool(opened.device.units), Limits(), opened.key, searched) as measure:
        curve = CurveFile(path)
        curve.before = measure.spent
        plans = every_plan(searched.expression, opened.device, searched.features)
        online = Online(plans, opened.device, min(BATCH, max(1, trials // BATCHES)))

        def noted(chosen: Sequence[RankedPlan]) -> list[float]:
            seconds = measure(chosen)
            curve.note(seconds)
            return seconds

        tried = list(online.run(trials, noted))
        (work / f"measured.{trials}.json").write_text(json.dumps(online.kept(opened.case.title)))
        worked = finalists_again(tried, measure.limits.finalists, measure.in_turns)
        found: dict[str, Any] = {"seconds": curve.elapsed, "trials": len(tried), "curve": curve.points}
        best, kernel, reason = first_right(
            worked[:CHECKED], lambda t: opened.build(measure.line(t.plan)), (Failed, RollerError)
        )
        if kernel is None:
            return {**found, "status": "failed", "reason": reason or "no plan works"}
        return opened.found(kernel, found["seconds"], len(tried), best.seconds, curve.points, measure.line(best.plan),
                            best.plan.plan.words(whole=True), best.plan.seconds)  # fmt: skip


def finalists_again(tried: Sequence[Tried], count: int, in_turns: Measure) -> list[Tried]:
    """Return the plans that worked, fastest first; the best `count` again, so that noise does not choose."""
    worked = sorted((t for t in tried if math.isfinite(t.seconds)), key=lambda t: t.seconds)
    finalists, others = worked[:count], worked[count:]
    again = zip(finalists, in_turns([t.plan for t in finalists]) if finalists else (), strict=True)
    ranked = sorted((replace(t, seconds=s) for t, s in again if math.isfinite(s)), key=lambda t: t.seconds)
    return [*ranked, *others]


class PlanMeasuring:
    """Measures plans of one task in the worker processes of Roller's tuner; use it in a ``with`` statement.

    Attributes
    ----------
    spent : float
        Seconds of tuning before the first measurement, spent on the reference.
    """

    def __init__(self, pool: Pool, limits: Limits, key: str, searched: Searched) -> None:
        self.pool, self.limits, self.key, self.searched = pool, limits, key, searched
        self.opening = ("open_task", searched.opening, limits.reference_s)
        self.folder = work_folder()
        self.spent = 0.0
        self._lines: dict[Any, str] = {}

    def __enter__(self) -> PlanMeasuring:
        try:
            self.pool.start()
            for worker in self.pool.workers:  # imports are not tuning
                worker.call("hello", (), 120.0)
            start = time.perf_counter()
            limit = self.limits.reference_s
            first = self.pool.workers[0]
            first.prepare([self.opening])
            reply = first.call("make_reference", (self.key, self.folder.name), limit)
            if not reply.ok:
                raise MeasureError(f"no reference to check against: {reply.text}", self.key, kind="reference")
            for worker in self.pool.workers:
                worker.prepare([self.opening, ("load_reference", (self.key, self.folder.name), limit)])
            self.spent = time.perf_counter() - start
        except BaseException:  # also an interrupt: the workers and the folder go with it
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()
        self.folder.cleanup()

    def line(self, ranked: RankedPlan) -> str:
        """Return a plan's record."""
        key = tuple(ranked.plan.programs)
        if key not in self._lines:
            self._lines[key] = self.searched.record(ranked.plan)
        return self._lines[key]

    def __call__(self, plans: Sequence[RankedPlan]) -> list[float]:
        """Return the time of each plan in seconds, infinity if it does not work."""
        lines: dict[int, str] = {}
        for number, ranked in enumerate(plans):
            try:
                lines[number] = self.line(ranked)
            except Exception:  # steps that do not apply, of which TVM says so in errors of many kinds
                continue
        seconds = [math.inf] * len(plans)
        if lines:
            outcomes = self._session(list(lines.values())).each_timed()
            for number, outcome in zip(lines, outcomes, strict=True):
                seconds[number] = outcome.seconds if outcome.ok else math.inf
        return seconds

    def in_turns(self, plans: Sequence[RankedPlan]) -> list[float]:
        """Measure finalists again, in turns as Roller's are; return their times in seconds."""
        outcomes = self._session([self.line(ranked) for ranked in plans]).measured("").outcomes
        return [o.seconds if o.ok else math.inf for o in outcomes]

    def _session(self, lines: list[str]) -> Session:
        return Session(self.pool, self.limits, {}, self.key, self.searched.mode, lines, self.limits.options())
