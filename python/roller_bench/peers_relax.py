"""Peers of the Relax line: MetaSchedule, and TVM untuned, with scheduled functions read back as tiles.

MetaSchedule runs with its defaults; an interrupted tuning resumes with its own database and cost model.
"""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.files import CurveFile, build_seconds, mend_lines
from roller_bench.relax_task import Opened
from roller_bench.replay.state import Loop, LoopStage, Part
from roller_bench.task import DEFAULT
from roller_bench.tiles import Thought, nest_tiles, thought_of, tiles_of
from roller_tvm.codegen.tensorir_packing import constant_parameters
from roller_tvm.roller.features import Features
from roller_tvm.tir.nodes import REDUCTION
from roller_tvm.tir.placed import PlacedBlock, PlacedLoop, placed_blocks

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
    tiles, thought = record_tiles(opened.mod, line, opened.device)
    claimed = [float(s) for s in best.run_secs]
    return opened.found(opened.build(line), seconds, curve.trials, sum(claimed) / len(claimed), curve.points, line,
                        tiles, thought=thought)  # fmt: skip


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


#: Kinds of loops by Ansor's names, which `nest_tiles` knows.
_KINDS = {"serial": "", "vectorized": "vectorize", "unrolled": "unroll"}
#: Suffixes of a decomposed reduction's two blocks: the initial value, and the update.
_INIT, _UPDATE = "_init", "_update"
_UNROLL = "pragma_auto_unroll_max_step"


def record_tiles(mod: Any, line: str, device: Any = None) -> tuple[str, Thought | None]:
    """Return a module's record as tiles, and Roller's model on them; ('', None) if it cannot be followed.

    Parameters
    ----------
    mod : IRModule
    line : str
        Record as in a database's file.
    device : DeviceSpec, optional
    """
    from roller_tvm.relax.record_lines import replay
    from roller_tvm.tir.read import read_prim_func

    told, thought = "", None
    with contextlib.suppress(Exception):  # an explanation is not worth a comparison
        nests = function_nests(replay(mod, line).mod["main"])
        told = "; ".join(text for text in (nest_tiles(stage, names) for stage, names in nests) if text)
        if device is not None:
            # MetaSchedule lays out what it may, as Roller does.
            expression = read_prim_func(mod["main"], constants=constant_parameters(mod["main"])).expression
            # A block's axes have names of their own, in the order of the expression's.
            known = {s.name: [a.name for a in s.axes] for s in expression.stages}
            axes = {s.name: known[s.name] for s, names in nests if len(known.get(s.name, ())) == len(names)}
            if (theirs := tiles_of([stage for stage, _ in nests], axes)) is not None:
                thought = thought_of(expression, device, theirs, Features.of_tensor_ir(device))
    return told, thought


def function_tiles(func: Any) -> str:
    """Return the blocks of a scheduled function as tiles, one nest after the other."""
    return "; ".join(text for text in (nest_tiles(stage, names) for stage, names in function_nests(func)) if text)


def function_nests(func: Any) -> list[tuple[LoopStage, list[str]]]:
    """Return the blocks as stages with the names of their axes: those that reduce, or all if none does."""
    blocks = [b for b in placed_blocks(func.body) if b.loops and not b.name.endswith(_INIT)]
    return [_block(b) for b in [b for b in blocks if b.reduces] or blocks]


def _block(block: PlacedBlock) -> tuple[LoopStage, list[str]]:
    names = [str(v.var.name) for v in block.block.iter_vars]
    outputs = sum(int(v.iter_type) != REDUCTION for v in block.block.iter_vars)
    loops = [_loop(block, loop) for loop in block.loops]
    stage = LoopStage(block.name.removesuffix(_UPDATE), "compute", loops, spatial=outputs)
    limits = [int(loop.annotations[_UNROLL]) for loop in block.loops if _UNROLL in loop.annotations]
    if limits:
        stage.pragma["auto_unroll_max_step"] = max(limits)
    return stage, names


def _loop(block: PlacedBlock, loop: PlacedLoop) -> Loop:
    """Return a loop by the parts of the block's axes that it walks."""
    parts = []
    for axis, places in enumerate(block.moves([loop])):
        seen = np.unique(places)
        if len(seen) > 1:
            parts.append(Part(axis, len(seen), int(np.diff(seen).min())))
    return Loop(loop.extent, tuple(parts), _KINDS.get(loop.kind, loop.kind))
