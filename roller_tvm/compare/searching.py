"""The XGBoost baseline as a tuner of a comparison, on either line; its measurements are kept for later training."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from roller_tvm.baseline.online import Online, Tried, rank_plans
from roller_tvm.baseline.plan_features import NAMES
from roller_tvm.baseline.space import RTileSpace
from roller_tvm.baseline.trained import machine_of, read_measured, train_measured
from roller_tvm.compare.curve import CurveFile
from roller_tvm.compare.measuring import PlanMeasuring
from roller_tvm.compare.opened import OpenedTask, first_right
from roller_tvm.compare.tiles import plan_tiles
from roller_tvm.compare.tuner import OBJECTIVE
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import RollerError
from roller_tvm.planner.construction import RankedPlan
from roller_tvm.roller.rprogram import Plan
from roller_tvm.tuning.supervise import Failed

#: Most plans measured between two trainings, and least number of batches.
BATCH, BATCHES = 64, 4
#: Number of fastest plans whose answers are checked until one is right.
CHECKED = 8


def search(
    space: RTileSpace,
    trials: int,
    measure: PlanMeasuring,
    build: Callable[[Plan], tuple[Path, str]],
    opened: OpenedTask,
    tuner: str,
) -> dict[str, Any]:
    """Search a space; return the fields of ``results.Tuned`` for the fastest kernel with a right answer.

    Parameters
    ----------
    build : function of a plan
        Returns the file of the plan's kernel and the plan's record.
    opened : OpenedTask
        Task; features and seconds of all measured plans go to ``measured.TRIALS.json`` in its work folder.
    tuner : str
        Key of ``tuner.OBJECTIVE``, the objective of the cost model.
    """
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
    _keep(work / f"measured.{trials}.json", online, opened.case.title)
    worked = chosen(online.tried, measure)
    found: dict[str, Any] = {"seconds": curve.elapsed, "trials": len(online.tried), "curve": curve.points}
    records: dict[int, str] = {}

    def built(tried: Tried) -> Path:
        kernel, records[id(tried)] = build(tried.plan.plan)
        return kernel

    tried, kernel, reason = first_right(worked[:CHECKED], built, (Failed, RollerError))
    if kernel is None:
        return {**found, "status": "failed", "reason": reason or "no plan works"}
    return opened.found(kernel, found["seconds"], len(online.tried), tried.seconds, curve.points, records[id(tried)],
                        plan_tiles(tried.plan.plan), tried.plan.seconds)  # fmt: skip


def chosen(tried: Sequence[Tried], measure: PlanMeasuring) -> list[Tried]:
    """Return the plans that worked, fastest first; the finalists are measured again, so that noise does not choose."""
    worked = sorted((t for t in tried if math.isfinite(t.seconds)), key=lambda t: t.seconds)
    finalists, others = worked[: measure.limits.finalists], worked[measure.limits.finalists :]
    again = zip(finalists, measure.in_turns([t.plan for t in finalists]) if finalists else (), strict=True)
    ranked = sorted((replace(t, seconds=s) for t, s in again if math.isfinite(s)), key=lambda t: t.seconds)
    return [*ranked, *others]


def tune_by(edge: str, tuner: str, opened: OpenedTask, trials: int) -> dict[str, Any]:
    """Run one tuner on one task; return the fields of ``results.Tuned``.

    `edge` is a line's package, with a module for each kind of tuner.
    """
    if tuner == "ranked":
        return ranked(opened, importlib.import_module(f"{edge}.roller"))
    if tuner in OBJECTIVE:
        return dict(importlib.import_module(f"{edge}.xgboost").tune(opened, trials, tuner))
    return dict(importlib.import_module(f"{edge}.{'untuned' if tuner == 'dlight' else tuner}").tune(opened, trials))


def ranked(opened: OpenedTask, roller: Any) -> dict[str, Any]:
    """Build the plan ranked first by a model trained on other operators; return the fields of ``results.Tuned``.

    Parameters
    ----------
    roller : module
        Module of the line whose `tune` takes an order of plans. The time of training is not counted.
    """
    return dict(roller.tune(opened, 1, learned_order(opened.folder, opened.case.title, opened.device)))


def learned_order(folder: Path, title: str, device: DeviceSpec) -> Callable[[list[RankedPlan]], list[RankedPlan]]:
    """Return a function that ranks plans by a model trained on the comparison's measurements of other operators."""
    model = train_measured(read_measured([folder], device), leave_out=title)
    return lambda plans: rank_plans(plans, device, model)


def _keep(path: Path, online: Online, title: str) -> None:
    """Write the measurements to a file, for training without measuring."""
    rows = [
        [t.seconds if math.isfinite(t.seconds) else None, *map(float, online.row(t.point))]
        for t in online.tried
    ]
    device = online.space.device
    told = {"operator": title, "device": device.name, "arch": device.arch, "machine": machine_of(device),
            "names": ["seconds", *NAMES], "rows": rows}  # fmt: skip
    path.write_text(json.dumps(told))
