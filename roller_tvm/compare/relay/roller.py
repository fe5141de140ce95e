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
from roller_tvm.measure.serving import Failed

#: Function that returns plans in an order of its own instead of by predicted time.
Order = Callable[[list[Any]], list[Any]]


def tune(opened: Opened, trials: int, order: Order | None = None) -> dict[str, Any]:
    """Construct plans, measure them if `trials` > 1, and return the fields of ``results.Tuned``.

    `order` ranks the plans instead of the model.
    """
    from roller_tvm.relay.candidates import make_candidates
    from roller_tvm.relay.tasks import Task
    from roller_tvm.relay.worker import device_present

    start = time.perf_counter()
    task = Task(0, opened.case.id, 1, opened.search_task, opened.flops)
    candidates = make_candidates(task, opened.device, max(trials, 10))
    if candidates.reason:
        raise UnsupportedOperator(candidates.reason, opened.case.id)
    if order is not None:
        places = {id(plan): place for place, plan in enumerate(order(candidates.plans))}
        candidates.states.sort(key=lambda state: places[id(candidates.plans[state[1]])])
    if trials == 1 or not device_present(opened.target.kind.name):
        return _first(opened, candidates, start)
    return _measured(opened, candidates, trials, start)


def _first(opened: Opened, candidates: Any, start: float) -> dict[str, Any]:
    """Build the first plan that is right, as a build without records does; the check is not counted.

    If no device runs the kernels, the first plan that builds.
    """
    from roller_tvm.relay.measure import packs_weights, record_line

    task = opened.search_task
    planned = time.perf_counter() - start
    lines: dict[int, str] = {}

    def build(candidate: Any) -> Path:
        state, number = candidate
        line = lines[number] = record_line(task, state)
        return build_record(opened.key, opened.dag, opened.target, packs_weights(task), line, opened.kernels)

    found, path, reason = first_right(candidates.states, build, Failed)
    if path is None:
        return {"status": "failed", "reason": f"no plan works: {reason}"}
    plan, spent = candidates.plans[found[1]], planned + build_seconds(path)
    return _found(opened, path, lines[found[1]], plan, spent, 0, math.nan, [(spent, plan.seconds)])


def _measured(opened: Opened, candidates: Any, trials: int, start: float) -> dict[str, Any]:
    from roller_tvm.relay.measure import Limits, Measurer, packs_weights, record_line
    from roller_tvm.relay.pool import Pool

    task, spent = opened.search_task, time.perf_counter() - start
    best = list(dict.fromkeys(number for _, number in candidates.states))[:trials]
    states = [s for s in candidates.states if s[1] in best]
    with Pool(min(opened.device.units, trials), opened.device.units) as pool:
        pool.start()
        for worker in pool.workers:  # imports are not tuning
            worker.call("hello", (), 120.0)
        began = time.perf_counter()
        measured = Measurer(pool, Limits()).measure(task, [state for state, _ in states], default=opened.default)
        spent += time.perf_counter() - began
    tried = sum(bool(o.repeats) for o in measured.outcomes)
    if measured.winner is None and measured.default is not None and measured.default_wins:
        path = build_default(opened.key, opened.dag, opened.target, opened.default, opened.kernels)
        return opened.found_default(path, spent, tried, measured.default.seconds)
    if measured.winner is None:
        kinds = ", ".join(f"{n} {kind}" for kind, n in measured.failures().items())
        return {"status": "failed", "reason": f"no plan works ({kinds})", "seconds": spent}
    state, number = states[measured.winner]
    line, seconds = record_line(task, state), measured.outcomes[measured.winner].seconds
    path = build_record(opened.key, opened.dag, opened.target, packs_weights(task), line, opened.kernels)
    return _found(opened, path, line, candidates.plans[number], spent, tried, seconds, [(spent, seconds)])


def _found(
    opened: Opened, path: Any, line: str, plan: Any, spent: float, trials: int, claimed: float, curve: list[Any]
) -> dict[str, Any]:
    return opened.found(path, spent, trials, claimed, curve, line, plan_tiles(plan.plan), plan.seconds)
