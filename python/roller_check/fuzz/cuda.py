"""A model's kernels for GPUs, without a GPU: the small ones executed, all of them compiled by NVRTC (Relax line)."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from roller_tvm.errors import RollerError, WrongAnswer
from roller_tvm.folders import work_folder
from roller_tvm.internal import InternalError

#: Architectures that the kernels are compiled for; those of the first are executed too.
ARCHS = ("sm_80", "sm_90")
#: Seconds of emulation a function: what would take longer is executed in part.
BUDGET_S = 0.5


def kernels(model: bytes) -> tuple[bool, str, float]:
    """Return whether a kernel is wrong, what was done or what is wrong, and the processor's seconds.

    Raises
    ------
    RollerError
        Neither NVRTC nor nvcc is here, or a compiler refuses a kernel.
    InternalError
        A plan failed by a bug.
    """
    from roller_check.relax_plans import check_module
    from roller_tvm.codegen.compile import compile_cuda
    from roller_tvm.codegen.host_code_tensorir import generated
    from roller_tvm.relax.importers import load_model
    from roller_tvm.relax.pipeline import prepare
    from roller_tvm.relax.schedule import ScheduleWithRoller
    from roller_tvm.relax.targets import make_target

    warnings.simplefilter("error", InternalError)
    start, faults, told = sum(os.times()[:4]), [], []
    with work_folder() as folder:
        (path := Path(folder, "model.onnx")).write_bytes(model)
        module = load_model(path).mod
    for arch in ARCHS:
        target = make_target({"kind": "cuda", "arch": arch})
        before = prepare(module, target)
        pass_: Any = ScheduleWithRoller(target)
        after = pass_(before)
        names = [note.name for note in pass_.report.scheduled]
        found = check_module(before, after, target, BUDGET_S, names) if names and arch == ARCHS[0] else {}
        faults += [f"{name}: {result}" for name, result in found.items() if isinstance(result, WrongAnswer)]
        errors = {n: r for n, r in found.items() if isinstance(r, RollerError)}
        refused = [f"{n}: {r}" for n, r in errors.items() if not isinstance(r, WrongAnswer)]
        for name in names:
            source, _ = generated(after, target, name)
            compile_cuda(source, arch, where=name)
        executed = len(found) - len(refused)
        told.append(f"{arch}: {len(names)} planned, {executed} executed, {len(pass_.report.left)} left")
        told += refused
    return bool(faults), "; ".join(faults or told), sum(os.times()[:4]) - start
