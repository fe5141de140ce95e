"""Roller as a tuner of a comparison: the best plan by prediction, or the best K measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from roller_tvm.compare.relax.kernels import build_record, why_wrong
from roller_tvm.compare.relax.tasks import Opened
from roller_tvm.compare.tiles import plan_tiles
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.measure.serving import Failed

#: Plans in another order than that of their predicted times.
Order = Callable[[list[Any]], list[Any]]


def tune(opened: Opened, trials: int, order: Order | None = None) -> dict[str, Any]:
    """Construct, and with more than one trial measure; `order` ranks the plans instead of the model."""
    from roller_tvm.relax.database import record_line
    from roller_tvm.tir.candidates import make_candidates

    start = time.perf_counter()
    func = opened.mod["main"]
    found = make_candidates(func, opened.device, max(trials, 10), opened.constants, opened.case.id)
    if found.reason:
        raise UnsupportedOperator(found.reason, opened.case.id)
    if order is not None:
        places = {id(plan): place for place, plan in enumerate(order([p.ranked for p in found.plans]))}
        found.plans.sort(key=lambda plan: places[id(plan.ranked)])
    if trials == 1:
        reason = ""
        for plan, schedule in found.schedules():
            line = record_line(opened.mod, schedule, opened.target)
            planned = time.perf_counter() - start
            try:
                path = build_record(opened.key, opened.text, opened.target, opened.constants, line, opened.kernels)
            except Failed as error:
                reason = f"{error.kind}: {error}"
                continue
            if wrong := why_wrong(path):
                reason = f"wrong answer: {wrong}"
                continue
            spent = planned + _build_s(opened, line)
            return _found(opened, path, line, plan, spent, 0, math.nan, [(spent, plan.ranked.seconds)])
        return {"status": "failed", "reason": f"no plan works: {reason or (found.failures or ['none made'])[0]}"}
    plans = list(found.schedules())[:trials]
    return _measured(opened, plans, time.perf_counter() - start)


def _build_s(opened: Opened, line: str) -> float:
    """Seconds of building the kernel alone, without the reference, the check and the second form."""
    from roller_tvm.measure.session import PLAIN
    from roller_tvm.relax import worker

    if opened.key not in worker.TASKS:  # it was built by an earlier run
        worker.open_task(opened.key, opened.text, str(opened.target), opened.constants)
    return float(worker.build(opened.key, 2, line, PLAIN))


def _measured(opened: Opened, plans: list[Any], spent: float) -> dict[str, Any]:
    from roller_tvm.measure.pool import Pool
    from roller_tvm.relax.database import record_line
    from roller_tvm.relax.measure import WORKER, Limits, Measurer

    units = opened.device.units
    with Pool(units, units, WORKER) as pool:
        pool.start()
        for worker in pool.workers:  # imports are not tuning
            worker.call("hello", (), 120.0)
        began = time.perf_counter()
        measurer = Measurer(pool, opened.target, Limits())
        measured = measurer.measure(opened.task(), [schedule for _, schedule in plans])
        spent += time.perf_counter() - began
    if measured.winner is None and not measured.default_wins:
        kinds = ", ".join(f"{n} {kind}" for kind, n in measured.failures().items())
        return {"status": "failed", "reason": f"no plan works ({kinds})", "seconds": spent}
    tried = sum(bool(o.repeats) for o in measured.outcomes)
    if measured.winner is None:  # TVM's own kernel is faster: what a database then says
        path = build_record(opened.key, opened.text, opened.target, opened.constants, "", opened.kernels)
        claimed = measured.default.seconds if measured.default is not None else math.nan
        return {"status": "ok", "reason": "TVM's own kernel stays", "seconds": spent, "trials": tried,
                "claimed_s": claimed, "curve": [(spent, claimed)], "kernel": opened.told(path),
                "schedule": "TVM's default"}  # fmt: skip
    plan, schedule = plans[measured.winner]
    line, seconds = record_line(opened.mod, schedule, opened.target), measured.outcomes[measured.winner].seconds
    path = build_record(opened.key, opened.text, opened.target, opened.constants, line, opened.kernels)
    return _found(opened, path, line, plan, spent, tried, seconds, [(spent, seconds)])


def _found(
    opened: Opened, path: Any, line: str, plan: Any, spent: float, trials: int, claimed: float, curve: list[Any]
) -> dict[str, Any]:
    wrong = why_wrong(path)
    return {
        "status": "wrong answer" if wrong else "ok", "reason": wrong, "seconds": spent, "trials": trials,
        "claimed_s": claimed, "curve": curve, "kernel": opened.told(path), "schedule": line,
        "tiles": plan_tiles(plan.ranked.plan), "predicted_s": plan.ranked.seconds,
    }  # fmt: skip
