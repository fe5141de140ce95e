"""Whole models on the Relax line: tuned by Roller or MetaSchedule, built as users build them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from roller_bench.files import CurveFile, mend_lines
from roller_bench.peers_relax import FILES, ROUND, SEED, resumed
from roller_bench.running import by_roller, read_inputs
from roller_bench.running import open_built as open_model
from roller_bench.task import made
from roller_tvm.errors import MeasureError, UnsupportedOperator
from roller_tvm.tvm_env import import_relax_tvm

__all__ = ["build", "open_model", "untuned_build"]


def build(
    model: dict[str, Any], output: Path, tuner: str, trials: int, target: str, work: Path, search: bool = True
) -> dict[str, Any]:
    """Tune and build a model; return the seconds of both with the other fields of a result."""
    import_relax_tvm("comparing")
    from roller_tvm.relax import load_model
    from roller_tvm.relax.targets import make_target

    if not model["onnx"]:
        raise UnsupportedOperator("relay.testing exists on TVM's Relay line only", model["title"])
    shapes = {name: array.shape for name, array in read_inputs(Path(model["inputs"])).items()}
    imported, full = load_model(model["onnx"], shapes, model["layout"]), make_target(target)
    if tuner == "roller":
        return by_roller(model["title"], imported, output, trials, target, work)
    if tuner == "metaschedule":
        found = _metaschedule(imported, full, made(work / str(trials)), trials, output, search)
    else:
        start = time.perf_counter()
        untuned_build(imported, full, output)
        found = {"seconds": 0.0, "build_s": time.perf_counter() - start, "schedule": "TVM's default"}
    return {**found, "file": str(output)}


def untuned_build(imported: Any, target: Any, path: Path) -> Path:
    """Build as a user of TVM alone does, with the default pipeline and no schedules; return `path`."""
    import tvm

    from roller_tvm.relax.package import save_model, with_signature

    return save_model(tvm.compile(with_signature(imported.mod, imported.inputs), tvm.target.Target(target)), path)


def _metaschedule(
    imported: Any, target: Any, work: Path, trials: int, output: Path, search: bool
) -> dict[str, Any]:
    """Tune as TVM's pipeline "static_shape_tuning" does, weights packed at build time; all tasks share the trials."""
    import tvm
    from tvm import relax
    from tvm.s_tir import meta_schedule as ms

    from roller_tvm.relax.package import save_model, with_signature

    curve = CurveFile(work / "curve.jsonl")
    passes = relax.transform
    first = [passes.DecomposeOpsForInference(), passes.CanonicalizeBindings(), relax.get_pipeline("zero"),
             passes.AttachAttrLayoutFreeBuffers()]  # fmt: skip
    given = tvm.target.Target(target)
    with given:
        mod = tvm.transform.Sequential(first)(with_signature(imported.mod, imported.inputs))
    tasks = ms.relax_integration.extract_tasks(mod, given)
    if trials < len(tasks):
        told = f"{trials} trials are fewer than the model's {len(tasks)} tasks"
        raise MeasureError(told, "metaschedule", f"give metaschedule:{len(tasks)} or more", "trials")
    if search and curve.trials < trials:
        threads = int(given.attrs["num-cores"]) if "num-cores" in given.attrs else 1
        ms.relax_integration.tune_relax(
            mod, {}, given, str(work), trials - curve.trials,
            # As Ansor's scheduler shrinks its rounds: what no round is left for would run as one thread's plain loops.
            num_trials_per_iter=min(ROUND, trials // len(tasks)), seed=SEED, **resumed(work, threads, curve),
        )  # fmt: skip
    mend_lines(*(work / name for name in FILES))
    database = ms.database.JSONDatabase(work_dir=str(work))
    without = sum(database.query_tuning_record(t.dispatched[0], given, t.task_name) is None for t in tasks)
    start = time.perf_counter()
    with given, tvm.transform.PassContext(opt_level=3):
        last = [passes.MetaScheduleApplyDatabase(str(work)), passes.SplitLayoutRewritePreproc(), passes.FoldConstant(),
                passes.DeadCodeElimination()]  # fmt: skip
        mod = tvm.transform.Sequential(last)(mod)
    save_model(tvm.compile(mod, given), output)
    return {"seconds": curve.noted, "trials": curve.trials, "build_s": time.perf_counter() - start,
            "schedule": f"{len(tasks)} operators",
            "reason": f"no record of {without} of {len(tasks)} operators" if without else ""}  # fmt: skip
