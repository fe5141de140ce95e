"""The operators of a model with the plans that an exploration may try."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from tvm import relax

from ..explore.dispatch import Site
from ..micro_perf.known_error import may_win
from ..tuning.explorable import MATRIX, RECORD, TVM, Class, Linked, for_fewer_cores, wanted_plans
from .choices import read_choices
from .connected import ConnectTiles
from .constants import array_of
from .line import LINE
from .matrix_products import MatrixProducts
from .merged import MergeAxes
from .modules import is_prim_func, with_functions
from .record_files import opened
from .schedule import SCHEDULED, refused
from .tasks import Task, extract_tasks, hash_of, without_names
from .variants import Plans, with_variants


@dataclass(frozen=True)
class Planned:
    """The operators of a prepared module with the plans that may be tried.

    Parameters
    ----------
    begun : IRModule
        The module that records and connected tiles have scheduled as far as they go.
    keys : dict
        Operator -> key of its equivalence class.
    known : dict
        Key -> class.
    """

    job: Any
    begun: Any
    keys: Mapping[str, str]
    known: Mapping[str, Class]

    def linked(self, folder: Path, memory_bytes: int, server: Any = None) -> Linked:
        """Return the library with all plans."""
        functions = {str(v.name_hint) for v, f in self.begun.functions_items() if is_prim_func(f)}
        plans = {name: Plans(_scheduled(self.known[key])) for name, key in self.keys.items() if name in functions}
        aim = self.job.aim
        return with_variants(self.begun, plans, aim.target, aim.device, folder, memory_bytes, server)


def plan(job: Any, records: Any, top: int, share: Callable[[str], float], least: float) -> Planned:
    """Return the plans of a prepared job's operators."""
    mod, target, device = job.model.mod, job.aim.target, job.aim.device
    tasks = {task.key: task for task in extract_tasks(mod)}
    functions = {str(v.name_hint): f for v, f in mod.functions_items() if is_prim_func(f)}
    keys = {name: key for name, func in functions.items() if (key := hash_of(without_names(func))) in tasks}
    begun, matrix, connect = _begun(mod, target, device, records, job.connected)
    merged = {str(v.name_hint): f for v, f in begun.functions_items() if is_prim_func(f)
              and str(v.name_hint) not in {*functions, *connect.chains}}  # fmt: skip
    tasks |= {task.key: task for task in extract_tasks(begun) if task.name in merged}
    keys |= {name: key for name, func in merged.items() if (key := hash_of(without_names(func))) in tasks}
    begun = _recorded(begun, target, records)
    recorded = {str(v.name_hint) for v, f in begun.functions_items()
                if is_prim_func(f) and str(v.name_hint) in keys and SCHEDULED in (f.attrs or {})}  # fmt: skip
    keys |= {name: chain.key for name, (chain, _) in connect.chains.items()}
    shares: dict[str, float] = {}
    for name, key in keys.items():
        shares[key] = shares.get(key, 0.0) + share(name)
    starts = {keys[n]: MATRIX for n in matrix if n in keys} | {keys[n]: RECORD for n in recorded}
    on_unit = {keys[n]: seconds for n, seconds in matrix.items() if n in keys}
    known = {
        key: _planned(tasks[key], device, target, wanted_plans(shares[key], top, least), starts.get(key, ""),
                      on_unit.get(key, math.inf))
        for key in dict.fromkeys(keys.values()) if key in tasks
    }  # fmt: skip
    for name, (chain, _) in connect.chains.items():
        known[chain.key] = _connected(connect, name, wanted_plans(shares[chain.key], top, least))
    return Planned(job, with_functions(begun, {}), keys, known)


def _begun(
    mod: Any, target: Any, device: Any, records: Any, connected: bool
) -> tuple[Any, dict[str, float], ConnectTiles]:
    """Return the module as far as records and connected tiles schedule it, as `pipeline.schedule` does.

    The products that the matrix unit is to compute are named beside, with its seconds; they are in it as they were.
    """
    connect = ConnectTiles(target, device, eager=connected)
    if records is not None:
        connect.chosen = read_choices(Path(records), target).connected
        with target:
            mod = connect.kept(mod)
    mod = _recorded(mod, target, records)
    with target:
        matrix = MatrixProducts(target, device).chosen(mod)
        connect.without |= set(matrix)
        return MergeAxes(target, device, set(matrix))(connect(mod)), matrix, connect


def _recorded(mod: Any, target: Any, records: Any) -> Any:
    """Return the module with the functions scheduled that have a record."""
    if records is None:
        return mod
    with target, opened(Path(records)):
        return relax.transform.MetaScheduleApplyDatabase()(mod)


def _planned(task: Task, device: Any, target: Any, top: int, start: str, on_unit: float) -> Class:
    """Return a task's plans, the first being what a build without exploring takes: `start`, if that is no plan.

    Parameters
    ----------
    on_unit : float
        Predicted seconds on the matrix unit.
    """
    found = LINE.candidates(task, device, max(top, 4))
    made, best = Class(task, found), min([on_unit, *(plan.ranked.seconds for plan in found.plans)])
    if start:
        made.plans[start] = None
    for candidate, schedule in found.schedules(lambda plan: not made.plans or may_win(plan.ranked.seconds, best)):
        if len(made.plans) >= max(1, top):
            break
        if not refused(schedule.mod["main"], target):
            made.add(candidate, schedule)
    if len(made.plans) > 1:
        fewer = for_fewer_cores(LINE, task, device, found.plans[0])
        made.add_fewer(one for one in fewer if not refused(one[1].mod["main"], target))
    if not made.plans:
        made.plans[TVM] = None
    return made


def _connected(connect: ConnectTiles, name: str, top: int) -> Class:
    """Return the ways to compute connected calls: first as they are, at last one by one."""
    chain, way = connect.chains[name]
    made = Class(chain.task(name), None)
    found = connect.options(name) if top > 1 else {way.label: None}
    made.plans |= {label: (None, SimpleNamespace(mod={"main": func})) if func is not None else None
                   for label, func in found.items()}  # fmt: skip
    return made


def _scheduled(known: Class) -> dict[str, Any]:
    return {label: None if one is None else one[1].mod["main"] for label, one in known.plans.items()}


def weights_of(mod: Any, sites: Sequence[Site]) -> list[Mapping[int, np.ndarray]]:
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
