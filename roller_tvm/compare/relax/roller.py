"""Roller as a tuner of a comparison: the best plan by prediction, or the best K measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roller_tvm.compare.keeping import build_seconds
from roller_tvm.compare.opened import first_right
from roller_tvm.compare.relax.kernels import build_record
from roller_tvm.compare.relax.tasks import Opened
from roller_tvm.compare.tiles import plan_tiles
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.tuning.supervise import Failed

#: Function that returns plans in an order of its own instead of by predicted time.
Order = Callable[[list[Any]], list[Any]]


def tune(opened: Opened, trials: int, order: Order | None = None) -> dict[str, Any]:
    """Construct plans, measure them if `trials` > 1, and return the fields of ``results.Tuned``.

    `order` ranks the plans instead of the model.
    """
    from roller_tvm.relax.candidates import make_candidates
    from roller_tvm.tuning.worker import device_present

    start = time.perf_counter()
    func = opened.mod["main"]
    found = make_candidates(func, opened.device, max(trials, 10), opened.constants, opened.case.id)
    if found.reason:
        raise UnsupportedOperator(found.reason, opened.case.id)
    if order is not None:
        places = {id(plan): place for place, plan in enumerate(order([p.ranked for p in found.plans]))}
        found.plans.sort(key=lambda plan: places[id(plan.ranked)])
    if trials == 1 or not device_present(opened.target.kind.name):
        return _first(opened, found, start)
    plans = list(found.schedules())[:trials]
    return _measured(opened, plans, time.perf_counter() - start)


def _first(opened: Opened, found: Any, start: float) -> dict[str, Any]:
    """Build the first plan that is right, as a build without records does; the check is not counted.

    If no device runs the kernels, the first plan that builds.
    """
    from roller_tvm.relax.database import record_line

    told: dict[int, tuple[str, float]] = {}

    def build(candidate: Any) -> Path:
        plan, schedule = candidate
        line = record_line(opened.mod, schedule, opened.target)
        told[id(plan)] = line, time.perf_counter() - start
        return build_record(opened.key, opened.text, opened.target, opened.constants, line, opened.kernels, opened.ours)

    chosen, path, reason = first_right(found.schedules(), build, Failed)
    if path is None:
        return {"status": "failed", "reason": f"no plan works: {reason or (found.failures or ['none made'])[0]}"}
    plan, (line, planned) = chosen[0], told[id(chosen[0])]
    spent = planned + build_seconds(path)
    return _found(opened, path, line, plan, spent, 0, math.nan, [(spent, plan.ranked.seconds)])


def _measured(opened: Opened, plans: list[Any], spent: float) -> dict[str, Any]:
    from roller_tvm.relax.line import LINE
    from roller_tvm.tuning.session import Measurer
    from roller_tvm.tuning.supervise import Pool

    units, task = opened.device.units, opened.task()
    lines = [LINE.record(task, schedule, opened.target) for _, schedule in plans]
    with Pool(units, units) as pool:
        pool.start()
        for worker in pool.workers:  # imports are not tuning
            worker.call("hello", (), 120.0)
        began = time.perf_counter()
        default = LINE.default(task, opened.target)
        measured = Measurer(pool).measure(LINE.work(task, opened.target), lines, default=default)
        spent += time.perf_counter() - began
    if measured.winner is None and not measured.default_wins:
        kinds = ", ".join(f"{n} {kind}" for kind, n in measured.failures().items())
        return {"status": "failed", "reason": f"no plan works ({kinds})", "seconds": spent}
    tried = sum(bool(o.repeats) for o in measured.outcomes)
    if measured.winner is None:  # TVM's own kernel is faster: what a database then says
        path = build_record(opened.key, opened.text, opened.target, opened.constants, "", opened.kernels, opened.ours)
        claimed = measured.default.seconds if measured.default is not None else math.nan
        return opened.found_default(path, spent, tried, claimed)
    plan, line = plans[measured.winner][0], lines[measured.winner]
    seconds = measured.outcomes[measured.winner].seconds
    path = build_record(opened.key, opened.text, opened.target, opened.constants, line, opened.kernels, opened.ours)
    return _found(opened, path, line, plan, spent, tried, seconds, [(spent, seconds)])


def _found(
    opened: Opened, path: Any, line: str, plan: Any, spent: float, trials: int, claimed: float, curve: list[Any]
) -> dict[str, Any]:
    return opened.found(path, spent, trials, claimed, curve, line, plan_tiles(plan.ranked.plan), plan.ranked.seconds)
