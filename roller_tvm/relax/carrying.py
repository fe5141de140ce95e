"""The first half of an exploration on a GPU: planned, compiled and put in a folder, on a machine that needs no card."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import MeasureError, UsageError
from ..tuning.explorable import Check, Explorable, Linked, to_check
from ..tuning.linked import LIMIT_S, MODULE
from ..tuning.supervise import Pool
from .carried import LIBRARY, Carried, DeviceCheck, captured_run
from .explored_plans import Planned, plan, weights_of
from .line import LINE


def carry(
    job: Any, folder: Path, records: Any = None, top: int = 5, threads: int = 1,
    tell: Callable[[str], None] = lambda step: None, share: Callable[[str], float] = lambda name: 1.0,
    least: float = 0.0,
) -> tuple[Carried, Planned]:  # fmt: skip
    """Put a prepared job's exploration into a folder.

    Parameters
    ----------
    top : int
        Plans of each operator.
    share, least
        See ``models.line.ModelLine.explorable``.

    Raises
    ------
    UsageError
        The target is no NVIDIA GPU.
    """
    target = job.aim.target
    if target.kind.name != "cuda":
        raise UsageError(f"is for {target.kind.name}", "target", "give cuda with its architecture; else just explore")
    folder.mkdir(parents=True, exist_ok=True)
    with Pool(threads, 1, MODULE) as pool:
        pool.start()
        tell("plan")
        planned = plan(job, records, top, share, least)
        tell("compile")
        linked = planned.linked(folder, 0)
        linked.weights = weights_of(job.model.mod, linked.sites)
        tell("answers")
        checks = list(to_check(LINE, target, linked, planned.keys, planned.known))
        named = [_named(check, n) for n, check in enumerate(checks)]
        calls = [("make_answers", (check.task, str(folder / own.answers)), LIMIT_S)
                 for check, own in zip(checks, named, strict=True)]  # fmt: skip
        for check, (_, _, reply) in zip(checks, pool.map(calls), strict=True):
            if not reply.ok:
                raise MeasureError(f"there is no reference: {reply.text}", check.key, "leave the operator out")
    for file in folder.glob("*.npy"):  # weights, which are in the answers
        file.unlink()
    names = {key: one.task.name for key, one in planned.known.items()}
    failed = [(planned.keys[name], label, why) for (name, label), why in linked.failed.items()]
    made = Carried(str(target.attrs["arch"]), linked.sites, planned.keys, names, named, failed)
    made.save(folder)
    return made, planned


def explorable_here(
    job: Any, records: Any, top: int, share: Callable[[str], float], least: float, folder: Path, threads: int,
    tell: Callable[[str], None],
) -> Explorable:  # fmt: skip
    """Carry an exploration from this machine to itself; see ``models.line.ModelLine.explorable``."""
    made, planned = carry(job, folder, records, top, threads, tell, share, least)
    tell("check")
    failed = made.checked(folder)
    loaded = made.opened(folder)
    linked = Linked(loaded, folder / LIBRARY, list(made.sites), made.table(folder), {})
    return Explorable(loaded, linked, planned.keys, planned.known, failed, LINE, job.aim.target,
                      partial(captured_run, loaded, linked.table))  # fmt: skip


def _named(check: Check, number: int) -> DeviceCheck:
    kernels = tuple(kernel.name for kernel in check.task.kernels)
    return DeviceCheck(check.key, check.options, kernels, f"answers_{number}.npz")
