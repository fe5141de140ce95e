"""Explorations on the Relax line: the variants of a model built, checked, and the winners recorded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import ToolchainError, UsageError
from ..models.package import REPORT
from ..tuning.explorable import PROFILED_RUNS, Explorable, checked
from ..tuning.linked import MODULE
from ..tuning.model_report import ModelReport
from ..tuning.remote_run import Server, no_server
from ..tuning.supervise import Pool
from ..tvm_env.compiler import find_compiler, system_install
from .choices import read_choices, write_choices
from .explored_plans import plan, weights_of
from .line import LINE
from .matrix_products import ON_UNIT
from .package import LoadedModel
from .remote_model import RemoteModel

#: What a build adds to the names of functions.
_SUFFIX = re.compile(rf"(_prepacked|_in_place|{ON_UNIT})\d*$")


def explorable(
    job: Any, records: Any, top: int, share: Callable[[str], float], least: float, folder: Path, threads: int,
    memory_bytes: int, tell: Callable[[str], None], server: Server | None = None,
) -> Explorable:  # fmt: skip
    """Build a model with the `top` best plans of each operator; see ``models.line.ModelLine.explorable``."""
    if find_compiler() is None:
        remedy = system_install("g++")
        raise ToolchainError("a library with variants cannot be linked: there is no C++ compiler", "explore", remedy)
    target = job.aim.target
    if server is not None and target.kind.name != "llvm":
        raise no_server(target.kind.name)
    if target.kind.name == "cuda":
        from .carrying import explorable_here

        return explorable_here(job, records, top, share, least, folder, threads, tell)
    if target.kind.name != "llvm":
        raise UsageError(f"is for {target.kind.name}", "explore", "tune, or take a CPU or an NVIDIA GPU as the target")
    with Pool(threads, threads, MODULE) if server is None else server.checkers(threads) as pool:
        if top > 1:  # else there is nothing to check
            pool.start()  # they import TVM meanwhile
        tell("plan")
        classes = plan(job, records, top, share, least)
        tell("compile")
        linked = classes.linked(folder, memory_bytes, server)
        tell("check")
        linked.weights = weights_of(classes.begun, linked.sites)
        failed = checked(pool, LINE, target, linked, classes.keys, classes.known)
    report = ModelReport(str(target))
    if server is not None:
        loaded: Any = RemoteModel(linked.model, job.model.inputs, report)
    else:
        setattr(linked.model, REPORT, report)
        loaded = LoadedModel.of_built(linked.model)
    return Explorable(loaded, linked, classes.keys, classes.known, failed, LINE, target,
                      choose=partial(_choose, target=target))  # fmt: skip


def _choose(place: Path, choices: Mapping[str, str], target: Any) -> None:
    """Keep how calls are connected, beside the records of a place."""
    known = read_choices(place, target)
    write_choices(replace(known, connected={**known.connected, **choices}), place, target)


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
    >>> operator_of("fused_conv2d_relu_prepacked_in_place1"), operator_of("fused_matmul_matrix")
    ('fused_conv2d_relu', 'fused_matmul')
    """
    while (shorter := _SUFFIX.sub("", kernel)) != kernel:
        kernel = shorter
    return kernel
