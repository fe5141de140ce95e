"""The Relay line's edge of a comparison: the functions that jobs call, each in a process of its own."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from roller_tvm.compare.opened import DEFAULT, OURS, remarked
from roller_tvm.tvm_env import import_relay_tvm

BUILT = (
    "addresses in 64 bits, tiles on the stack, weights ahead of time, whole vectors at edges, "
    "exp and tanh as arithmetic: "
    "built as roller_tvm.relay.build does"
)


def facts(target: str) -> dict[str, Any]:
    """Return the versions of TVM and LLVM, after checking that TVM accepts the target."""
    tvm = import_relay_tvm("comparing")
    from roller_tvm.relay.tasks import make_target

    make_target(target)
    return {"tvm": tvm.__version__, "llvm": str(tvm.target.codegen.llvm_version_major())}


def prepare(cases: list[dict[str, Any]], target: str, folder: str) -> list[dict[str, Any]]:
    """Prepare each named operator as a task, in a file."""
    from roller_tvm.compare.relay.tasks import prepare as own

    import_relay_tvm("comparing")
    return own(cases, target, Path(folder))


def tasks(
    file: str, shapes: dict[str, list[int]] | None, layout: str | None, params: str | None, target: str, folder: str
) -> list[dict[str, Any]]:
    """Prepare the tasks of a model, each in a file."""
    from roller_tvm.compare.relay.tasks import of_model

    import_relay_tvm("comparing")
    return of_model(file, shapes, layout, params, target, Path(folder))


def tune(task: str, case: dict[str, Any], tuner: str, trials: int, target: str, folder: str) -> dict[str, Any]:
    """Run one tuner on one task; return the fields of ``results.Tuned``."""
    from roller_tvm.compare.relay.tasks import open_task
    from roller_tvm.compare.searching import tune_by
    from roller_tvm.relay.rewrites import as_tvm, cpu_code

    import_relay_tvm("comparing")
    opened = open_task(Path(task), case, target, Path(folder))
    with cpu_code() if tuner in OURS else as_tvm():
        found = tune_by(__name__, tuner, opened, trials)
    return remarked(found, BUILT) if tuner in OURS and opened.target.kind.name == "llvm" else found


def build_again(
    task: str, case: dict[str, Any], tuner: str, trials: int, schedule: str, target: str, folder: str
) -> str:
    """Build the kernel of a schedule from the results of ``tune``; return its file below the folder."""
    from roller_tvm.compare.relay.tasks import open_task
    from roller_tvm.relay.rewrites import as_tvm, cpu_code

    import_relay_tvm("comparing")
    opened = open_task(Path(task), case, target, Path(folder))
    if schedule == DEFAULT and tuner not in OURS:
        with as_tvm():
            return str(importlib.import_module(f"{__name__}.untuned").tune(opened, trials)["kernel"])
    if tuner == "autotvm":
        return opened.told(importlib.import_module(f"{__name__}.autotvm").build(opened, schedule))
    from roller_tvm.compare.relay.kernels import build_default, build_record
    from roller_tvm.relay.worker_side import packs_weights

    packs = packs_weights(opened.search_task)
    with cpu_code() if tuner in OURS else as_tvm():
        if schedule == DEFAULT:  # which Roller's plans did not beat
            return opened.told(build_default(opened.key, opened.dag, opened.target, opened.default, opened.kernels))
        return opened.told(build_record(opened.key, opened.dag, opened.target, packs, schedule, opened.kernels))


def time(kernels: list[str], target: str, rounds: int) -> list[list[float]]:
    """Return typical seconds of kernels that compute the same, round by round, timed in turns."""
    from statistics import median

    from roller_tvm.compare.relay.kernels import open_timers
    from roller_tvm.compare.turns import rounds_in_turns

    import_relay_tvm("comparing")
    kept = open_timers([Path(kernel) for kernel in kernels], target)
    return [[median(times) for times in taken] for taken in rounds_in_turns(kept, rounds)]
