"""MetaSchedule with its defaults; an interrupted tuning goes on with its own database."""

from __future__ import annotations

import math
from typing import Any

from roller_tvm.compare.curve import CurveFile
from roller_tvm.compare.relax.kernels import build_record, why_wrong
from roller_tvm.compare.relax.tasks import Opened

#: Builds that MetaSchedule's builder gives up: its processes import half a minute of tensor intrinsics first.
BUILD_S = 120.0
#: MetaSchedule writes so many seconds where a candidate failed.
FAILED_S = 1e8
SEED = 1


def tune(opened: Opened, trials: int) -> dict[str, Any]:
    """Tune with as many trials, less those that its database has."""
    from tvm.s_tir import meta_schedule as ms

    from roller_tvm.relax.database import record_text

    work = opened.work("metaschedule") / str(trials)
    work.mkdir(exist_ok=True)
    curve = CurveFile(work / "curve.jsonl")
    database = ms.database.JSONDatabase(work_dir=str(work))
    left = trials - curve.trials
    if left > 0:
        callbacks = [*ms.MeasureCallback.create("default"), _watch(curve)]
        database = ms.tune_tir(
            opened.mod, opened.target, str(work), left, builder=ms.builder.LocalBuilder(timeout_sec=BUILD_S),
            database=database, measure_callbacks=callbacks, num_tuning_cores="logical", seed=SEED,
        )  # fmt: skip
    best = database.query_tuning_record(opened.mod, opened.target, "main")
    found: dict[str, Any] = {"seconds": curve.points[-1][0] if curve.points else curve.elapsed, "trials": curve.trials}
    if best is None or float(best.run_secs[0]) >= FAILED_S:
        return {**found, "status": "failed", "reason": f"none of {curve.trials} kernels worked"}
    line = record_text(best)
    path = build_record(opened.key, opened.text, opened.target, opened.constants, line, opened.kernels)
    wrong = why_wrong(path)
    claimed = [float(s) for s in best.run_secs]
    return {
        **found, "status": "wrong answer" if wrong else "ok", "reason": wrong, "curve": curve.points,
        "claimed_s": sum(claimed) / len(claimed), "kernel": opened.told(path), "schedule": line,
        "tiles": tiles_of(best.trace),
    }  # fmt: skip


def _watch(curve: CurveFile) -> Any:
    """A measure callback that notes what was reached when."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.measure_callback import PyMeasureCallback

    @derived_object
    class Watch(PyMeasureCallback):
        def apply(
            self, task_scheduler: Any, task_id: int, measure_candidates: Any, builder_results: Any, runner_results: Any
        ) -> None:
            told = [] if runner_results is None else runner_results
            costs = [[] if r.error_msg else [float(s) for s in r.run_secs] for r in told]
            curve.note([sum(c) / len(c) if c else math.inf for c in costs])

    return Watch()


def tiles_of(trace: Any) -> str:
    """The decisions of a trace: lengths of perfect tiles, in the order in which they were sampled."""
    told = []
    for instruction, decision in trace.decisions.items():
        if str(instruction.kind.name) == "SamplePerfectTile":
            told.append(" x ".join(str(int(n)) for n in decision))
    return "; ".join(f"tile {number}: {text}" for number, text in enumerate(told))
