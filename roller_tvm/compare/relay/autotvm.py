"""AutoTVM with its defaults: XGBTuner on the templates that Relay's strategy selects for an operator."""

from __future__ import annotations

import ast
import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from roller_tvm.compare.curve import CurveFile
from roller_tvm.compare.keeping import mend_lines
from roller_tvm.compare.relay.functions import relay_function
from roller_tvm.compare.relay.kernels import build_schedule
from roller_tvm.compare.relay.tasks import Opened
from roller_tvm.compare.suite import Case
from roller_tvm.errors import UnsupportedOperator

#: Measurements of XGBTuner between two trainings; in a shorter tuning one SHARE-th of the trials, or it never learns.
PLAN, SHARE = 64, 4
#: Measuring as in TVM's tutorial for x86: runs, repeats, and least milliseconds of a repeat.
NUMBER, REPEAT, LEAST_MS = 10, 1, 50


def tune(opened: Opened, trials: int) -> dict[str, Any]:
    """Tune every template that fits, with an equal share of the trials; return ``results.Tuned``'s fields of the
    best.
    """
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
    return opened.found(path, found["seconds"], curve.trials, claimed, curve.points, told, _tiles(config),
                        remark="; ".join(remarks))  # fmt: skip


def build(opened: Opened, schedule: str) -> Path:
    """Build the kernel of a template's name and its choices, as ``tune`` reports them; return its path."""
    from tvm.autotvm.task.space import ConfigEntity

    name, _, entity = schedule.partition(" ")
    task = next(t for t in _case_and_templates(opened)[1] if t.name == name)
    config = ConfigEntity.from_json_dict({"index": 0, "code_hash": None, "entity": ast.literal_eval(entity)})
    return _build(opened, task, config, schedule)


def _build(opened: Opened, task: Any, config: Any, told: str) -> Path:
    with opened.target, _as_measured():
        schedule, args = task.instantiate(config)
    key = f"autotvm {opened.key} {task.name} {[tuple(map(int, a.shape)) for a in args]}"
    return build_schedule(key, schedule, args, opened.target, f"{key} {told}", opened.kernels)


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
        plan = PLAN if trials > PLAN else max(1, trials // SHARE)
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


def _tiles(config: Any) -> str:
    """Return the choices of a template: split lengths by the template's names."""
    return "; ".join(f"{name} {value}" for name, _, value in config.to_json_dict()["entity"])
