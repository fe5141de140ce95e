"""Whether code for a target can run on this machine, as far as the target says."""

from __future__ import annotations

import platform
from typing import Any

#: Names that one architecture goes by.
ALIASES = {"amd64": "x86_64", "arm64": "aarch64"}


def same_machine(target: Any) -> bool:
    """Whether a target for CPUs is for one like this; of other kinds of target nothing is told.

    Examples
    --------
    >>> same_machine(tvm.target.Target("llvm -mtriple=riscv64-linux-gnu"))  # doctest: +SKIP
    False
    """
    triple = str(target.attrs.get("mtriple", "")) if target.kind.name in ("llvm", "c") else ""
    if not triple:
        return True
    theirs, ours = triple.split("-")[0].lower(), platform.machine().lower()
    return ALIASES.get(theirs, theirs) == ALIASES.get(ours, ours)
