"""Roller as a tuner of a comparison: the best plan by prediction, or the best K measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roller_tvm.compare.keeping import build_seconds
from roller_tvm.compare.opened import first_right
from roller_tvm.compare.relay.kernels import build_default, build_record
from roller_tvm.compare.relay.tasks import Opened
from roller_tvm.compare.tiles import plan_tiles
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.tuning.supervise import Failed

#: Function that returns plans in an order of its own instead of by predicted time.
Order = Callable[[list[Any]], list[Any]]


def tune(opened: Opened, trials: int, order: Order | None = None) -> dict[str, Any]:
    """Construct plans, measure them if `trials` > 1, and return the fields of ``results.Tuned``.

    `order` ranks the plans instead of the model.
    """
    from roller_tvm.relay.candidates import make_candidates
    from roller_tvm.relay.tasks import Task
    from roller_tvm.tuning.worker import device_present

    start = time.perf_counter()
    task = Task(0, opened.case.id, 1, opened.search_task, opened.flops)
    candidates = make_candidates(task, opened.device, max(trials, 10))
    states = candidates.applied()
    if candidates.reason:
        raise UnsupportedOperator(candidates.reason, opened.case.id)
    if order is not None:
        ranked = list({id(plan.ranked): plan.ranked for plan in candidates.plans}.values())
        places = {id(plan): place for place, plan in enumerate(order(ranked))}
        candidates.plans.sort(key=lambda plan: places[id(plan.ranked)])
    if trials == 1 or not device_present(opened.target.kind.name):
        return _first(opened, states, start)
    return _measured(opened, states, trials, start)


def _first(opened: Opened, states: list[Any], start: float) -> dict[str, Any]:
    """Build the first plan that is right, as a build without records does; the check is not counted.

    If no device runs the kernels, the first plan that builds.
    """
    from roller_tvm.relay.worker_side import packs_weights, record_line

    task = opened.search_task
    planned = time.perf_counter() - start
    lines: dict[int, str] = {}

    def build(candidate: Any) -> Path:
        plan, state = candidate
        line = lines[id(plan)] = record_line(task, state)
        return build_record(opened.key, opened.dag, opened.target, packs_weights(task), line, opened.kernels)

    found, path, reason = first_right(states, build, Failed)
    if path is None:
        return {"status": "failed", "reason": f"no plan works: {reason}"}
    plan, spent = found[0].ranked, planned + build_seconds(path)
    return _found(opened, path, lines[id(found[0])], plan, spent, 0, math.nan, [(spent, plan.seconds)])


def _measured(opened: Opened, states: list[Any], trials: int, start: float) -> dict[str, Any]:
    from roller_tvm.relay.worker_side import packs_weights, record_line, work_of
    from roller_tvm.tuning.session import Measurer
    from roller_tvm.tuning.supervise import Pool

    task, spent = opened.search_task, time.perf_counter() - start
    best = list(dict.fromkeys(plan.number for plan, _ in states))[:trials]
    plans = [plan for plan, _ in states if plan.number in best]
    lines = [record_line(task, state) for plan, state in states if plan.number in best]
    with Pool(min(opened.device.units, trials), opened.device.units) as pool:
        pool.start()
        for worker in pool.workers:  # imports are not tuning
            worker.call("hello", (), 120.0)
        began = time.perf_counter()
        measured = Measurer(pool).measure(work_of(task), lines, default=opened.default)
        spent += time.perf_counter() - began
    tried = sum(bool(o.repeats) for o in measured.outcomes)
    if measured.winner is None and measured.default is not None and measured.default_wins:
        path = build_default(opened.key, opened.dag, opened.target, opened.default, opened.kernels)
        return opened.found_default(path, spent, tried, measured.default.seconds)
    if measured.winner is None:
        kinds = ", ".join(f"{n} {kind}" for kind, n in measured.failures().items())
        return {"status": "failed", "reason": f"no plan works ({kinds})", "seconds": spent}
    line, seconds = lines[measured.winner], measured.outcomes[measured.winner].seconds
    path = build_record(opened.key, opened.dag, opened.target, packs_weights(task), line, opened.kernels)
    return _found(opened, path, line, plans[measured.winner].ranked, spent, tried, seconds, [(spent, seconds)])


def _found(
    opened: Opened, path: Any, line: str, plan: Any, spent: float, trials: int, claimed: float, curve: list[Any]
) -> dict[str, Any]:
    return opened.found(path, spent, trials, claimed, curve, line, plan_tiles(plan.plan), plan.seconds)
