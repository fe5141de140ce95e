"""Explorations on the Relax line: the variants of a model built, checked, and the winners recorded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tvm import relax

from ..errors import ToolchainError
from ..explore.dispatch import Site
from ..models.package import REPORT
from ..tuning.explorable import PROFILED_RUNS, RECORD, TVM, Class, Explorable, checked
from ..tuning.linked import MODULE
from ..tuning.model_report import ModelReport
from ..tuning.supervise import Pool
from ..tvm_env.compiler import find_compiler, system_install
from .connected import ConnectTiles
from .constants import array_of
from .line import LINE
from .modules import is_prim_func, with_functions
from .package import LoadedModel
from .record_files import opened
from .schedule import SCHEDULED, refused
from .tasks import Task, extract_tasks, hash_of, without_names
from .variants import Plans, with_variants

#: What a build adds to the names of functions.
_SUFFIX = re.compile(r"(_prepacked|_in_place)\d*$")


def explorable(
    job: Any, records: Any, top: int, share: Callable[[str], float], least: float, folder: Path, threads: int,
    memory_bytes: int, tell: Callable[[str], None],
) -> Explorable:  # fmt: skip
    """Build a model with the `top` best plans of each operator; see ``models.line.ModelLine.explorable``."""
    if find_compiler() is None:
        remedy = system_install("g++")
        raise ToolchainError("a library with variants cannot be linked: there is no C++ compiler", "explore", remedy)
    mod, target, device = job.model.mod, job.aim.target, job.aim.device
    with Pool(threads, threads, MODULE) as pool:
        pool.start()  # they import TVM meanwhile
        tell("plan")
        tasks = {task.key: task for task in extract_tasks(mod)}
        functions = {str(v.name_hint): f for v, f in mod.functions_items() if is_prim_func(f)}
        keys = {name: key for name, func in functions.items() if (key := hash_of(without_names(func))) in tasks}
        shares: dict[str, float] = {}
        for name, key in keys.items():
            shares[key] = shares.get(key, 0.0) + share(name)
        begun = _begun(mod, target, device, records)
        recorded = {name for name, func in begun.items() if name in keys and SCHEDULED in (func.attrs or {})}
        known = {
            key: _planned(tasks[key], device, target, top if shares[key] >= least else 1, recorded & own) for key in
            dict.fromkeys(keys.values()) if (own := {n for n, k in keys.items() if k == key})
        }  # fmt: skip
        plans = {name: Plans(_scheduled(known[key])) for name, key in keys.items() if name in begun}
        tell("compile")
        start = with_functions(begun.module, {})
        linked = with_variants(start, plans, target, device, folder, memory_bytes)
        tell("check")
        linked.weights = _weights(mod, linked.sites)
        failed = checked(pool, LINE, target, linked, keys, known)
    setattr(linked.model, REPORT, ModelReport(str(target)))
    return Explorable(LoadedModel.of_built(linked.model), linked, keys, known, failed, LINE, target)


def operator_seconds(loaded: Any, inputs: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds of each function of the prepared module; see ``models.line.ModelLine.operator_seconds``."""
    seconds: Counter[str] = Counter()
    for row in loaded.kernel_times(inputs, PROFILED_RUNS):
        seconds[operator_of(row.name)] += row.seconds
    return dict(seconds)


def operator_of(kernel: str) -> str:
    """Return the function of the prepared module that a kernel was made of.

    Examples
    --------
    >>> operator_of("fused_conv2d_relu_prepacked_in_place1")
    'fused_conv2d_relu'
    """
    while (shorter := _SUFFIX.sub("", kernel)) != kernel:
        kernel = shorter
    return kernel


class _Begun(dict[str, Any]):
    """The functions by name of a module that records and connected tiles have scheduled as far as they go."""

    module: Any


def _begun(mod: Any, target: Any, device: Any, records: Any) -> _Begun:
    if records is not None:
        with target, opened(Path(records)):
            mod = relax.transform.MetaScheduleApplyDatabase()(mod)
    with target:
        mod = ConnectTiles(target, device)(mod)
    begun = _Begun((str(v.name_hint), f) for v, f in mod.functions_items() if is_prim_func(f))
    begun.module = mod
    return begun


def _planned(task: Task, device: Any, target: Any, top: int, recorded: Any) -> Class:
    """Return a task's plans, the first being what a build without exploring takes."""
    found = LINE.candidates(task, device, max(top, 4))
    made = Class(task, found)
    if recorded:
        made.plans[RECORD] = None
    for candidate, schedule in found.schedules():
        if len(made.plans) >= max(1, top):
            break
        if not refused(schedule.mod["main"], target):
            made.add(candidate, schedule)
    if not made.plans:
        made.plans[TVM] = None
    return made


def _scheduled(known: Class) -> dict[str, Any]:
    return {label: None if one is None else one[1].mod["main"] for label, one in known.plans.items()}


def _weights(mod: Any, sites: Sequence[Site]) -> list[Mapping[int, np.ndarray]]:
    """Return the constants by position of the call that each site was made of."""
    found: dict[str, list[dict[int, np.ndarray]]] = {}
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = getattr(binding, "value", None)
            if not isinstance(call, relax.Call) or not str(getattr(call.op, "name", "")).startswith("relax.call_tir"):
                continue
            given = call.args[1]
            fields = given.fields if isinstance(given, relax.Tuple) else [given]
            values = {n: v for n, a in enumerate(fields) if (v := array_of(a)) is not None}
            found.setdefault(str(call.args[0].name_hint), []).append(values)
    calls = {name: iter(own) for name, own in found.items()}
    return [next(calls[site.operator], {}) if site.operator in calls else {} for site in sites]
