"""The XGBoost baseline as a tuner of a comparison, on either line; its measurements are kept for later training."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from roller_bench.files import CurveFile
from roller_bench.learned import NAMES, machine_of, rank_plans, read_measured, train_measured
from roller_bench.search import Online, RTileSpace, Tried
from roller_bench.task import OpenedTask, Searched, first_right
from roller_bench.tiles import plan_tiles
from roller_bench.tuners import OBJECTIVE
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import MeasureError, RollerError
from roller_tvm.folders import work_folder
from roller_tvm.planner.construction import RankedPlan
from roller_tvm.tuning.session import Limits, Session
from roller_tvm.tuning.supervise import Failed, Pool

#: Most plans measured between two trainings, and least number of batches.
BATCH, BATCHES = 64, 4
#: Number of fastest plans whose answers are checked until one is right.
CHECKED = 8


def search(opened: OpenedTask, trials: int, tuner: str) -> dict[str, Any]:
    """Search a task's space; return the fields of ``results.Tuned`` for the fastest kernel with a right answer.

    Features and seconds of all measured plans go to ``measured.TRIALS.json`` in the task's work folder.

    Parameters
    ----------
    tuner : str
        Key of ``tuners.OBJECTIVE``, the objective of the cost model.
    """
    searched = opened.searched()
    with PlanMeasuring(opened.pool(opened.device.units), Limits(), opened.key, searched) as measure:
        space = RTileSpace(searched.expression, opened.device, searched.features)
        return _search(space, trials, measure, opened, tuner)


def _search(
    space: RTileSpace, trials: int, measure: PlanMeasuring, opened: OpenedTask, tuner: str
) -> dict[str, Any]:
    work = opened.work(tuner)
    path = work / f"curve.{trials}.jsonl"
    path.unlink(missing_ok=True)  # a search that was interrupted begins anew: what it had learned is gone
    curve = CurveFile(path)
    curve.before = measure.spent
    batch: list[float] = []
    online = Online(space, min(BATCH, max(1, trials // BATCHES)), OBJECTIVE[tuner])
    for tried in online.run(trials, measure):
        batch.append(tried.seconds)
        if len(batch) == online.batch:
            curve.note(batch)
            batch = []
    if batch:
        curve.note(batch)
    keep(work / f"measured.{trials}.json", online, opened.case.title)
    worked = chosen(online.tried, measure)
    found: dict[str, Any] = {"seconds": curve.elapsed, "trials": len(online.tried), "curve": curve.points}

    def built(tried: Tried) -> Path:
        return opened.build(measure.lines[tuple(tried.plan.plan.programs)])

    tried, kernel, reason = first_right(worked[:CHECKED], built, (Failed, RollerError))
    if kernel is None:
        return {**found, "status": "failed", "reason": reason or "no plan works"}
    record = measure.lines[tuple(tried.plan.plan.programs)]
    return opened.found(kernel, found["seconds"], len(online.tried), tried.seconds, curve.points, record,
                        plan_tiles(tried.plan.plan), tried.plan.seconds)  # fmt: skip


def chosen(tried: Sequence[Tried], measure: PlanMeasuring) -> list[Tried]:
    """Return the plans that worked, fastest first; the finalists are measured again, so that noise does not choose."""
    worked = sorted((t for t in tried if math.isfinite(t.seconds)), key=lambda t: t.seconds)
    finalists, others = worked[: measure.limits.finalists], worked[measure.limits.finalists :]
    again = zip(finalists, measure.in_turns([t.plan for t in finalists]) if finalists else (), strict=True)
    ranked = sorted((replace(t, seconds=s) for t, s in again if math.isfinite(s)), key=lambda t: t.seconds)
    return [*ranked, *others]


def learned_order(folder: Path, title: str, device: DeviceSpec) -> Callable[[list[RankedPlan]], list[RankedPlan]]:
    """Return a function that ranks plans by a model trained on the comparison's measurements of other operators."""
    model = train_measured(read_measured([folder], device), leave_out=title)
    return lambda plans: rank_plans(plans, device, model)


def keep(path: Path, online: Online, title: str) -> None:
    """Write the measurements to a file, for training without measuring."""
    rows = [
        [t.seconds if math.isfinite(t.seconds) else None, *map(float, online.row(t.point))]
        for t in online.tried
    ]
    device = online.space.device
    told = {"operator": title, "device": device.name, "arch": device.arch, "machine": machine_of(device),
            "names": ["seconds", *NAMES], "rows": rows}  # fmt: skip
    path.write_text(json.dumps(told))


class PlanMeasuring:
    """Measures plans of one task in the worker processes of Roller's tuner; use it in a ``with`` statement.

    Attributes
    ----------
    lines : dict
        Plan's rPrograms -> its record.
    spent : float
        Seconds of tuning before the first measurement, spent on the reference.
    """

    def __init__(self, pool: Pool, limits: Limits, key: str, searched: Searched) -> None:
        self.pool, self.limits, self.key, self.searched = pool, limits, key, searched
        self.opening = ("open_task", searched.opening, limits.reference_s)
        self.folder = work_folder()
        self.lines: dict[Any, str] = {}
        self.spent = 0.0

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

    def __call__(self, plans: Sequence[Any]) -> list[float]:
        """Return the time of each ranked plan in seconds, infinity if it does not work."""
        lines: dict[int, str] = {}
        for number, ranked in enumerate(plans):
            try:
                lines[number] = self.searched.record(ranked.plan)
            except Exception:  # steps that do not apply, of which TVM says so in errors of many kinds
                continue
            self.lines[tuple(ranked.plan.programs)] = lines[number]
        seconds = [math.inf] * len(plans)
        if lines:
            outcomes = self._session(list(lines.values())).each_timed()
            for number, outcome in zip(lines, outcomes, strict=True):
                seconds[number] = outcome.seconds if outcome.ok else math.inf
        return seconds

    def in_turns(self, plans: Sequence[Any]) -> list[float]:
        """Measure finalists again, in turns as Roller's are; return their times in seconds."""
        lines = [self.lines[tuple(ranked.plan.programs)] for ranked in plans]
        return [o.seconds if o.ok else math.inf for o in self._session(lines).measured("").outcomes]

    def _session(self, lines: list[str]) -> Session:
        return Session(self.pool, self.limits, {}, self.key, self.searched.mode, lines, self.limits.options())
