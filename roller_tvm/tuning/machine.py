"""This machine beside a target: whether its code runs here, and with how many threads."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from ..device import DeviceSpec
from ..device.cpu_detect import CpuFacts, detect_cpu
from ..device.known import simd_of_mcpu
from ..errors import TargetError
from ..tvm_env import use_threads
from ..tvm_env.compiler import is_foreign


def same_machine(target: Any) -> bool:
    """Return False if a CPU target is for another architecture or wider vectors; other kinds of target give True.

    Examples
    --------
    >>> same_machine(tvm.target.Target({"kind": "llvm", "mtriple": "riscv64-linux-gnu"}))
    False
    """
    if target.kind.name not in ("llvm", "c"):
        return True
    if is_foreign(str(target.attrs.get("mtriple", ""))):
        return False
    simd = simd_of_mcpu(str(target.attrs.get("mcpu", "")))
    return simd is None or (simd.machine == _facts().machine and simd.flags <= _facts().flags)


def not_here(target: Any) -> str:
    """Return the note for a target whose plans are neither measured nor checked."""
    kind = target.kind.name
    lacking = f"no {kind} device here" if same_machine(target) else f"this CPU cannot run code for {target}"
    return f"{lacking}: plans are chosen by prediction and built, neither measured nor checked"


def require_kind(device: DeviceSpec, kind: str, where: str) -> None:
    """Raise ``TargetError`` if code for a kind of target does not run on a device."""
    wanted = "cpu" if kind in ("llvm", "c") else "gpu"
    if device.kind != wanted:
        fits = "is for planning only" if device.kind == "ipu" else f"is a {device.kind} ({device.arch})"
        remedy = "leave the device out, or give the target of that device"
        raise TargetError(f"device '{device.name}' {fits}, the target's code is for a {wanted}", where, remedy)


def threads_for(device: DeviceSpec) -> int:
    """Return the threads to tune with: those that a CPU scales to, else one for each core."""
    return use_threads(otherwise=device.units) if device.kind == "cpu" else (os.cpu_count() or 1)


@lru_cache(maxsize=1)
def _facts() -> CpuFacts:
    return detect_cpu()
