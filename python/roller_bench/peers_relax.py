"""Peers of the Relax line: MetaSchedule, and TVM untuned.

MetaSchedule runs with its defaults; an interrupted tuning resumes with its own database and cost model.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from roller_bench.files import CurveFile, build_seconds, mend_lines
from roller_bench.relax_task import Opened
from roller_bench.task import DEFAULT

#: Seconds after which MetaSchedule's builder gives up: its processes first import tensor intrinsics for half a minute.
BUILD_S = 120.0
#: Seconds that MetaSchedule records for a failed candidate.
FAILED_S = 1e8
SEED = 1
#: MetaSchedule's own number of measurements between two trainings. With too few trials for that, each training takes
#: one SHARE-th of them, or it would never learn.
ROUND, SHARE = 64, 2
#: Files of MetaSchedule's database.
FILES = ("database_workload.json", "database_tuning_record.json")


def metaschedule(opened: Opened, trials: int) -> dict[str, Any]:
    """Tune with `trials` trials, less those already in the database; return the fields of ``results.Tuned``."""
    from tvm.s_tir import meta_schedule as ms

    from roller_tvm.relax.record_lines import record_text

    work = opened.work("metaschedule") / str(trials)
    work.mkdir(exist_ok=True)
    curve = CurveFile(work / "curve.jsonl")
    options = resumed(work, opened.device.units, curve)
    database = options["database"]
    left = trials - curve.trials
    if left > 0:
        ms.tune_tir(
            opened.mod, opened.target, str(work), left, num_trials_per_iter=min(ROUND, max(1, trials // SHARE)),
            num_tuning_cores="logical", seed=SEED, **options,
        )  # fmt: skip
    best = database.query_tuning_record(opened.mod, opened.target, "main")
    seconds = curve.noted
    if best is None or float(best.run_secs[0]) >= FAILED_S:
        return {"status": "failed", "reason": curve.none_worked(), "seconds": seconds, "trials": curve.trials}
    line = record_text(best)
    claimed = [float(s) for s in best.run_secs]
    return opened.found(opened.build(line), seconds, curve.trials, sum(claimed) / len(claimed), curve.points, line)


def resumed(work: Path, threads: int, curve: CurveFile) -> dict[str, Any]:
    """Return builder, database, cost model and callbacks for MetaSchedule, restored from an earlier run's folder."""
    from tvm.s_tir import meta_schedule as ms

    mend_lines(*(work / name for name in FILES))
    model = ms.cost_model.CostModel.create("xgb", num_tuning_cores=threads, tree_method="auto")
    learned = work / "cost_model.tar"
    if curve.trials and learned.exists():
        model.load(str(learned))
    callbacks = [*ms.MeasureCallback.create("default"), _watch(curve, model, learned)]
    return {"database": ms.database.JSONDatabase(work_dir=str(work)), "cost_model": model,
            "builder": ms.builder.LocalBuilder(timeout_sec=BUILD_S), "measure_callbacks": callbacks}  # fmt: skip


def _watch(curve: CurveFile, model: Any, learned: Path) -> Any:
    """Return a measure callback, the last of a round, that notes progress and saves the cost model."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.measure_callback import PyMeasureCallback

    @derived_object
    class Watch(PyMeasureCallback):
        def apply(
            self, task_scheduler: Any, task_id: int, measure_candidates: Any, builder_results: Any, runner_results: Any
        ) -> None:
            told = [] if runner_results is None else runner_results
            costs = [[] if r.error_msg else [float(s) for s in r.run_secs] for r in told]
            wrong = next((str(r.error_msg) for r in (*(builder_results or ()), *told) if r.error_msg), "")
            curve.note([sum(c) / len(c) if c else math.inf for c in costs], wrong)
            start = time.perf_counter()
            if getattr(model, "booster", True) is not None:  # it cannot load what has learned nothing
                part = learned.with_name(f"part.{learned.name}")
                model.save(str(part))
                part.replace(learned)
            curve.leave_out(time.perf_counter() - start)

    return Watch()


def untuned(opened: Opened, trials: int) -> dict[str, Any]:
    """Build TVM's kernel of an untuned function: on a CPU its own loops, on a GPU dlight's schedules.

    Return the fields of ``results.Tuned``; the check is not counted.
    """
    import tvm

    from roller_tvm.relax.reference import default_module

    start = time.perf_counter()
    text = str(tvm.ir.save_json(default_module(opened.mod, opened.target)))
    scheduled = time.perf_counter() - start
    opened.open_reference()
    path = opened.build_plain(text, f"default {text}")
    return opened.found(path, scheduled + build_seconds(path), schedule=DEFAULT)
