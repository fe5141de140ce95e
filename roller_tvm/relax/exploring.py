"""Explorations on the Relax line: the variants of a model built, checked, and the winners recorded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tvm import relax

from ..errors import MeasureError, ToolchainError
from ..explore.dispatch import Site
from ..explore.explorer import Explorer
from ..explore.running import PLAN
from ..models.package import REPORT
from ..tuning.linked import MODULE, LinkedKernel, LinkedTask, check_all
from ..tuning.model_report import ModelReport
from ..tuning.results import TunedTask
from ..tuning.session import Outcome
from ..tuning.supervise import Pool
from ..tvm_env.compiler import find_compiler, system_install
from .connected import ConnectTiles
from .constants import array_of
from .database import Store
from .line import LINE, RelaxRecords
from .modules import is_prim_func, with_functions
from .package import LoadedModel
from .record_files import opened
from .schedule import SCHEDULED, refused
from .tasks import Task, extract_tasks, hash_of, without_names
from .variants import Linked, Plans, with_variants

#: What a build adds to the names of functions.
_SUFFIX = re.compile(r"(_prepacked|_in_place)\d*$")
#: Label of a start that is not one of the candidates: a record's, or TVM's own schedule.
RECORD, TVM = "record", "tvm"


@dataclass
class Class:
    """An equivalence class: a task with the plans that may be tried.

    Parameters
    ----------
    plans : dict
        Label -> (candidate, schedule); None for the start by a record or by TVM.
    """

    task: Task
    found: Any
    plans: dict[str, tuple[Any, Any] | None] = field(default_factory=dict)


@dataclass
class Explorable:
    """A built model with variants; see ``models.line.ModelLine.explorable``."""

    loaded: Any
    sites: list[Site]
    classes: dict[str, str]
    names: dict[str, str]
    table: Any
    failed: dict[tuple[str, str], str]
    _known: dict[str, Class]
    _job: Any

    def call(self, *arguments: Any) -> Any:
        """Run the model."""
        made = self.loaded.machine["main"](*arguments)
        self.loaded.device.sync()
        return made

    def write(self, explorer: Explorer, place: Any, seconds: float) -> tuple[int, list[str]]:
        """Record the winners of epochs that are decided; return their number, and remarks.

        A record is chosen by its time. If the model started from a record that is beaten, the new one has the time of
        the old, as it was measured, times the ratio seen here.
        """
        notes: list[str] = []
        written = 0
        with Store(place, self._job.aim.target) as store:
            records = RelaxRecords(store, self._job.aim.target)
            for row in explorer.rows():
                known = self._known.get(row.name)
                if known is None or not row.done or row.options < 2:
                    continue
                label = dict(row.best)[PLAN]
                chosen = known.plans[label]
                if chosen is None:  # the record, or TVM's kernel, that it started with
                    continue
                candidate, schedule = chosen
                taken = explorer.index.typical(row.name, row.best)
                if np.isnan(taken):
                    continue
                if next(iter(known.plans)) == RECORD and row.start_s:
                    taken = min(taken, store.best_seconds(known.task) * row.best_s / row.start_s)
                tuned = TunedTask(
                    known.task, "measured", known.found, _outcomes(explorer, row.name, known), candidate.ranked, taken,
                    candidate.ranked.estimate.seconds, checked=True,
                )  # fmt: skip
                notes += [n for n in records.write(tuned, schedule, len(known.plans), seconds) if n not in notes]
                written += 1
        return written, notes


def _outcomes(explorer: Explorer, name: str, known: Class) -> list[Outcome]:
    found = []
    for label in known.plans:
        taken = explorer.index.typical(name, ((PLAN, label),))
        why = explorer.dropped.get((name, ((PLAN, label),)), "")
        if taken == taken:
            found.append(Outcome("ok", taken, (taken,), checked=True))
        elif why:
            found.append(Outcome("wrong answer", text=why))
    return found


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
        failed = {(keys[name], label): why for (name, label), why in linked.failed.items()}
        tell("check")
        failed.update(_checked(pool, mod, linked, known, keys, target, folder))
    setattr(linked.executable, REPORT, ModelReport(str(target)))
    loaded = LoadedModel.of_built(linked.executable)
    names = {key: one.task.name for key, one in known.items()}
    return Explorable(loaded, linked.sites, keys, names, linked.table, failed, known, job)


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
            label = candidate.ranked.plan.digest()[:12]
            while label in made.plans:
                label += "'"
            made.plans[label] = candidate, schedule
    if not made.plans:
        made.plans[TVM] = None
    return made


def _scheduled(known: Class) -> dict[str, Any]:
    return {label: None if one is None else one[1].mod["main"] for label, one in known.plans.items()}


def _checked(
    pool: Pool, mod: Any, linked: Linked, known: Mapping[str, Class], keys: Mapping[str, str], target: Any,
    folder: Path,
) -> dict[tuple[str, str], str]:  # fmt: skip
    """Return the options whose results are not right, of those that are to be explored."""
    weights = _weights(mod)
    first: dict[str, tuple[int, int]] = {}
    calls: Counter[str] = Counter()
    for at, site in enumerate(linked.sites):
        number = calls[site.operator]
        calls[site.operator] += 1
        if len(site.options) > 1:
            # Of those that work on parts of other tensors and those that do not, one each.
            placed = any(a.places for a in linked.arguments[at].values())
            first.setdefault(f"{site.operator} {placed}", (at, number))
    tasks, where = [], []
    for at, number in first.values():
        site = linked.sites[at]
        key = keys[site.operator]
        work = LINE.work(known[key].task, target)
        values = {n: _saved(folder, v, f"{at}_{n}") for n, v in weights[site.operator][number].items()}
        kernels = []
        for label, variant in zip(site.options, site.variants, strict=True):
            own = linked.arguments[at][label]
            constants = {n: _saved(folder, v, f"{at}_{variant.kernel}_{n}") for n, v in own.constants.items()}
            kernels.append(LinkedKernel(variant.kernel, constants, own.places))
        tasks.append(LinkedTask(work.text, str(target), work.weights, values, tuple(kernels)))
        where.append((key, site.options))
    failed = {}
    for (key, options), found in zip(where, check_all(pool, str(linked.library), tasks), strict=True):
        failed.update({(key, label): why for label, why in zip(options, found, strict=True) if why})
        if all(found):
            what = f"no plan computes what it should, the one in use neither: {found[0]}"
            raise MeasureError(what, known[key].task.name, "do not use the model; report it, please")
    return failed


def _saved(folder: Path, values: np.ndarray, name: str) -> str:
    path = folder / f"{name}.npy"
    np.save(path, values)
    return str(path)


def _weights(mod: Any) -> dict[str, list[dict[int, np.ndarray]]]:
    """Return the constants by position of each call of each function, in order."""
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
    return found



