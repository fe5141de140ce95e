"""Ansor with its defaults: SketchPolicy with XGBModel; an interrupted tuning resumes with its own records."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

from roller_tvm.compare.curve import CurveFile
from roller_tvm.compare.keeping import mend_lines
from roller_tvm.compare.relay.kernels import build_record
from roller_tvm.compare.relay.tasks import Opened
from roller_tvm.compare.theirs import Thought, thought_of, tiles_of
from roller_tvm.compare.tiles import record_nests, record_tiles
from roller_tvm.replay.state import StageInfo
from roller_tvm.roller.features import Features

#: Ansor's own number of measurements between two trainings. With too few trials for that, each training takes one
#: SHARE-th of them, or it would never learn.
ROUND, SHARE = 64, 2


def tune(opened: Opened, trials: int) -> dict[str, Any]:
    """Tune with `trials` trials, less those already in the log; return the fields of ``results.Tuned``."""
    from tvm import auto_scheduler

    from roller_tvm.relay.worker_side import packs_weights

    task = opened.search_task
    log = opened.work("ansor") / f"records.{trials}.json"
    reached = log.with_name(f"curve.{trials}.jsonl")
    if not log.exists():  # seconds alone cannot be gone on with
        reached.unlink(missing_ok=True)
    mend_lines(log)
    curve = CurveFile(reached)
    left = trials - curve.trials
    if left > 0:
        model = auto_scheduler.XGBModel()
        callbacks = []
        if curve.trials and log.exists():
            model.update_from_file(str(log))
            callbacks = [auto_scheduler.PreloadMeasuredStates(str(log))]
        policy = auto_scheduler.SketchPolicy(task, program_cost_model=model, init_search_callbacks=callbacks, verbose=0)
        options = auto_scheduler.TuningOptions(
            num_measure_trials=left, num_measures_per_round=min(ROUND, max(1, trials // SHARE)), verbose=0,
            builder=auto_scheduler.LocalBuilder(), runner=auto_scheduler.LocalRunner(repeat=2, min_repeat_ms=100),
            measure_callbacks=[auto_scheduler.RecordToFile(str(log)), watch(curve)],
        )  # fmt: skip
        task.tune(options, policy)
    line, claimed, tried = best_record(log, opened.key)
    found = {"seconds": curve.noted, "trials": tried}
    if not line:
        return {**found, "status": "failed", "reason": curve.none_worked()}
    path = build_record(opened.key, opened.dag, opened.target, packs_weights(task), line, opened.kernels)
    tiles, thought = read_back(line, opened.dag, opened.device, packs_weights(task))
    return opened.found(path, found["seconds"], tried, claimed, curve.points, line, tiles, thought=thought)


def watch(curve: CurveFile) -> Any:
    """Return a measure callback that notes progress in a curve."""
    from tvm import auto_scheduler

    class Watch(auto_scheduler.measure.PythonBasedMeasureCallback):
        def callback(self, policy: Any, inputs: Any, results: Any) -> None:
            costs = [[float(c.value) for c in r.costs] if int(r.error_no) == 0 else [] for r in results]
            wrong = next((str(r.error_msg) for r in results if int(r.error_no) != 0), "")
            curve.note([sum(c) / len(c) if c else math.inf for c in costs], wrong)

    return Watch()


def best_record(log: Path, key: str) -> tuple[str, float, int]:
    """Return a workload's fastest record, its mean seconds, and the number of records; ('', nan, n) if none worked."""
    line, seconds, tried = "", math.inf, 0
    for text in log.read_text().splitlines() if log.exists() else []:
        if text.startswith("{"):
            record = json.loads(text)
            if record["i"][0][0] != key:
                continue
            tried += 1
            costs, error = record["r"][:2]
            if error == 0 and sum(costs) / len(costs) < seconds:
                line, seconds = text, sum(costs) / len(costs)
    return line, (seconds if line else math.nan), tried


def read_back(line: str, dag: Any, device: Any = None, packs: bool = False) -> tuple[str, Thought | None]:
    """Return a record as tiles, and Roller's model on them; ('', None) if it cannot be followed.

    Parameters
    ----------
    packs : bool
        True if the record's layout applies to operands of free layout.
    """
    import tvm

    from roller_tvm.relay.candidates import packed_operands
    from roller_tvm.te.read import read_te

    stages, axes, simplify = [], {}, tvm.arith.Analyzer().simplify

    def extents(own: Any) -> tuple[int, ...]:
        return tuple(int(simplify(axis.dom.extent)) for axis in own)

    told, thought = "", None
    with contextlib.suppress(Exception):  # an explanation is not worth a comparison
        for op in dag.ops:
            name, spatial, reduce = str(op.name), getattr(op, "axis", ()), getattr(op, "reduce_axis", ())
            stages.append(StageInfo(name, extents(spatial), extents(reduce), not hasattr(op, "axis")))
            axes[name] = [str(a.var.name) for a in (*spatial, *reduce)]
        told = record_tiles(stages, axes, line)
        if device is not None and (theirs := tiles_of(record_nests(stages, line), axes)) is not None:
            reading = read_te(dag, constants=packed_operands(dag) if packs else ())
            thought = thought_of(reading.expression, device, theirs, Features.of_te(device))
    return told, thought
