"""Tell whether code for a target can run on this machine, as far as the target says."""

from __future__ import annotations

import platform
from functools import lru_cache
from typing import Any

from ..device.cpu_data import simd_of_mcpu
from ..device.cpu_detect import CpuFacts, detect_cpu

#: Alias -> usual name of an architecture.
ALIASES = {"amd64": "x86_64", "arm64": "aarch64"}


def same_machine(target: Any) -> bool:
    """Return False if a CPU target is for another architecture or wider vectors; other kinds of target give True.

    Examples
    --------
    >>> same_machine(tvm.target.Target("llvm -mtriple=riscv64-linux-gnu"))  # doctest: +SKIP
    False
    """
    if target.kind.name not in ("llvm", "c"):
        return True
    triple = str(target.attrs.get("mtriple", ""))
    theirs, ours = triple.split("-")[0].lower(), platform.machine().lower()
    if triple and ALIASES.get(theirs, theirs) != ALIASES.get(ours, ours):
        return False
    simd = simd_of_mcpu(str(target.attrs.get("mcpu", "")))
    return simd is None or (simd.machine == _facts().machine and simd.flags <= _facts().flags)


def not_here(target: Any) -> str:
    """Return the note for a target whose plans are neither measured nor checked."""
    kind = target.kind.name
    lacking = f"no {kind} device here" if same_machine(target) else f"this CPU cannot run code for {target}"
    return f"{lacking}: plans are chosen by prediction and built, neither measured nor checked"


@lru_cache(maxsize=1)
def _facts() -> CpuFacts:
    return detect_cpu()
