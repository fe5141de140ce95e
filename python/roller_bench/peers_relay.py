"""Peers of the Relay line: Ansor, AutoTVM, and TVM untuned.

Ansor and AutoTVM run with their defaults; an interrupted tuning resumes with its own records.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roller_bench.cases import Case
from roller_bench.files import CurveFile, build_seconds, mend_lines
from roller_bench.relay_operators import relay_function
from roller_bench.relay_task import Opened
from roller_bench.task import DEFAULT
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.relay.silence import silent_autotvm

#: Own number of measurements between two trainings, of Ansor and AutoTVM. With too few trials for that, each training
#: takes one of so many shares of them, or it would never learn.
ROUND, ANSOR_SHARES, AUTOTVM_SHARES = 64, 2, 4


# -- Ansor ------------------------------------------------------------------------------------------------------------


def ansor(opened: Opened, trials: int) -> dict[str, Any]:
    """Tune with `trials` trials, less those already in the log; return the fields of ``results.Tuned``."""
    from tvm import auto_scheduler

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
            num_measure_trials=left, num_measures_per_round=min(ROUND, max(1, trials // ANSOR_SHARES)), verbose=0,
            builder=auto_scheduler.LocalBuilder(), runner=auto_scheduler.LocalRunner(repeat=2, min_repeat_ms=100),
            measure_callbacks=[auto_scheduler.RecordToFile(str(log)), watch(curve)],
        )  # fmt: skip
        task.tune(options, policy)
    line, claimed, tried = best_record(log, opened.key)
    found = {"seconds": curve.noted, "trials": tried}
    if not line:
        return {**found, "status": "failed", "reason": curve.none_worked()}
    return opened.found(opened.build(line), found["seconds"], tried, claimed, curve.points, line)


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


# -- AutoTVM ----------------------------------------------------------------------------------------------------------

#: Measuring as in TVM's tutorial for x86: runs, repeats, and least milliseconds of a repeat.
NUMBER, REPEAT, LEAST_MS = 10, 1, 50


def autotvm(opened: Opened, trials: int) -> dict[str, Any]:
    """Tune every template that fits by XGBTuner, sharing the trials; return ``results.Tuned``'s fields of the best."""
    if not opened.case.operator:
        raise UnsupportedOperator("AutoTVM's tasks are single operators: compare it on a suite", opened.case.id)
    case, templates = _case_and_templates(opened)
    remarks = [] if case is opened.case else ["as NCHW, the layout of its templates"]
    if not templates:
        raise UnsupportedOperator("AutoTVM has no template for it", opened.case.id)
    work = opened.work("autotvm")
    curve = CurveFile(work / f"curve.{trials}.jsonl")
    best: tuple[float, Any, Any] = (math.inf, None, None)
    for number, task in enumerate(templates):
        share = max(1, trials // len(templates))
        seconds, config = _tune_one(task, share, work / f"{task.name}.{number}.{trials}.json", curve)
        if seconds < best[0]:
            best = seconds, task, config
    claimed, task, config = best
    found: dict[str, Any] = {"seconds": curve.noted, "trials": curve.trials}
    if config is None:
        return {**found, "status": "failed", "reason": curve.none_worked()}
    told = f"{task.name} {config.to_json_dict()['entity']}"
    path = _build(opened, task, config, told)
    if {"bias=1", "relu=1"} & set(case.params.split()):
        remarks.append("without bias and ReLU, which its templates have not")
    if "NCHWc" in task.name:
        remarks.append("data in blocks of channels, as its template wants it")
    return opened.found(path, found["seconds"], curve.trials, claimed, curve.points, told,
                        remark="; ".join(remarks))  # fmt: skip


def built(opened: Opened, schedule: str) -> Path:
    """Build the kernel of a template's name and its choices, as ``autotvm`` reports them; return its path."""
    from tvm.autotvm.task.space import ConfigEntity

    name, _, entity = schedule.partition(" ")
    task = next(t for t in _case_and_templates(opened)[1] if t.name == name)
    config = ConfigEntity.from_json_dict({"index": 0, "code_hash": None, "entity": ast.literal_eval(entity)})
    return _build(opened, task, config, schedule)


def _build(opened: Opened, task: Any, config: Any, told: str) -> Path:
    with opened.target, _as_measured():
        schedule, args = task.instantiate(config)
    key = f"autotvm {opened.key} {task.name} {[tuple(map(int, a.shape)) for a in args]}"
    return opened.build_schedule(key, schedule, args, f"{key} {told}")


@contextlib.contextmanager
def _as_measured() -> Iterator[None]:
    """Pass weights packed, as in tuning and in ``relay.build``; else the kernel would pack them."""
    from tvm.autotvm import GLOBAL_SCOPE

    before, GLOBAL_SCOPE.in_tuning = GLOBAL_SCOPE.in_tuning, True
    try:
        yield
    finally:
        GLOBAL_SCOPE.in_tuning = before


def _case_and_templates(opened: Opened) -> tuple[Case, list[Any]]:
    """Return the case and its templates, or those of the same case in NCHW if there are none: x86 has no others."""
    case, templates = opened.case, _templates(opened.case, opened.target)
    if not templates and case.operator.endswith("_nhwc"):
        case = replace(case, operator=case.operator.removesuffix("nhwc") + "nchw", title="")
        templates = _templates(case, opened.target)
    return case, templates


def _templates(case: Case, target: Any) -> list[Any]:
    from tvm import autotvm

    mod, params = relay_function(case)
    return list(autotvm.task.extract_from_program(mod["main"], target=target, params=params))


def _tune_one(task: Any, trials: int, log: Any, curve: CurveFile) -> tuple[float, Any]:
    """Return the seconds and the configuration of one template's best."""
    from tvm import autotvm

    trials = min(trials, len(task.config_space))
    mend_lines(log)
    done = sum(1 for _ in autotvm.record.load_from_file(str(log))) if log.exists() else 0
    if done < trials:
        # 'rank' is not known to xgboost 2 and later; its successor for pairs is.
        plan = ROUND if trials > ROUND else max(1, trials // AUTOTVM_SHARES)
        tuner = autotvm.tuner.XGBTuner(task, plan_size=plan, loss_type="rank-binary")
        if done:
            tuner.load_history(autotvm.record.load_from_file(str(log)))
        options = autotvm.measure_option(
            builder=autotvm.LocalBuilder(),
            runner=autotvm.LocalRunner(number=NUMBER, repeat=REPEAT, min_repeat_ms=LEAST_MS),
        )  # fmt: skip

        def watch(_tuner: Any, _inputs: Any, results: Any) -> None:
            wrong = next((str(next(iter(r.costs), "")) for r in results if r.error_no != 0), "")
            curve.note([_seconds(r) for r in results], wrong)

        tuner.tune(trials - done, measure_option=options,
                   callbacks=[autotvm.callback.log_to_file(str(log)), watch])  # fmt: skip
    best: tuple[float, Any] = (math.inf, None)
    for given, result in autotvm.record.load_from_file(str(log)) if log.exists() else ():
        if _seconds(result) < best[0]:
            best = _seconds(result), given.config
    return best


def _seconds(result: Any) -> float:
    return math.inf if result.error_no != 0 else float(sum(result.costs) / len(result.costs))


# -- untuned ----------------------------------------------------------------------------------------------------------

#: Operators that compute nothing; ``relay.build`` puts them around a kernel if it changes the layout of its operands.
MOVES = frozenset({"layout_transform", "reshape", "transpose"})
BESIDE = "without the kernels that lay data out for it and back"
#: With ``auto_scheduler``, TVM computes dense layers and products in a form to be scheduled; its own schedules of that
#: form are plain loops, and nobody runs them without tuning.
OF_SEARCH = "as TVM builds it where auto_scheduler found nothing, not as relay.build does"


def untuned(opened: Opened, trials: int) -> dict[str, Any]:
    """Build the kernel of a plain ``relay.build``; return the fields of ``results.Tuned``. The check is not counted."""
    if not opened.default:
        raise UnsupportedOperator("TVM has no single kernel for this operator", opened.case.id)
    if not opened.case.operator:  # a model's task, of which there is only what auto_scheduler was shown
        path, remark = opened.default_kernel(), OF_SEARCH
    else:
        path, remark = _built(opened)
    return opened.found(path, build_seconds(path), schedule=DEFAULT, remark=remark)


def _built(opened: Opened) -> tuple[Path, str]:
    kernels = relay_kernels(*relay_function(opened.case), opened.target)
    computing = [k for k in kernels if not k.moves] or kernels
    if len(computing) != 1:
        raise UnsupportedOperator(f"relay.build makes {len(computing)} kernels of it", opened.case.id)
    (kernel,) = computing
    key = f"untuned {opened.key} {kernel.name}"
    path = opened.build_schedule(key, kernel.schedule, kernel.args, key)
    return path, BESIDE if len(kernels) > 1 else ""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel of a ``relay.build``, before it is lowered.

    Parameters
    ----------
    name : str
    schedule : te.Schedule
    args : list of te.Tensor
    moves : bool
        True if the kernel computes nothing.
    """

    name: str
    schedule: Any
    args: list[Any]
    moves: bool


def relay_kernels(mod: Any, params: dict[str, Any], target: Any) -> list[Kernel]:
    """Return the kernels that ``relay.build`` makes of a module without any record; they take weights in its layouts.

    Examples
    --------
    >>> case = Case("D", "dense", "m=4 n=32 k=16 bias=1")
    >>> [k.name for k in relay_kernels(*relay_function(case), tvm.target.Target("llvm"))]
    ['fused_nn_contrib_dense_pack_add']
    """
    import tvm
    from tvm import autotvm, relay
    from tvm.relay.backend import te_compiler

    compiler = te_compiler.get()
    compiler.clear()  # what was lowered for auto_scheduler is another thing of the same name
    with target, silent_autotvm(), autotvm.FallbackContext(), tvm.transform.PassContext(opt_level=3):
        optimized, _ = relay.optimize(mod, target, params=params)
        found: list[Kernel] = []

        def visit(node: Any) -> None:
            if isinstance(node, relay.Call) and isinstance(node.op, relay.Function):
                lowered = compiler.lower(node.op, target)
                names = _operators(node.op)
                found.append(Kernel("_".join(["fused", *(n.replace(".", "_") for n in names)]), lowered.schedule,
                                    [*lowered.inputs, *lowered.outputs], set(names) <= MOVES))  # fmt: skip

        relay.analysis.post_order_visit(optimized["main"].body, visit)
    return found


def _operators(function: Any) -> list[str]:
    from tvm import relay
    from tvm.ir import Op

    names: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, relay.Call) and isinstance(node.op, Op):
            names.append(str(node.op.name))

    relay.analysis.post_order_visit(function.body, visit)
    return names
