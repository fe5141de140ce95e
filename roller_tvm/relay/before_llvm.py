"""Rewriting lowered functions right before TVM hands them to LLVM, where no pass of a user's context comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_BUILD = "target.build.llvm"


def before_llvm(active: Callable[[], bool], rewrite: Callable[[Any], Any]) -> None:
    """Have every PrimFunc rewritten that is built for LLVM while something is active; to be called once a process.

    Examples
    --------
    >>> before_llvm(WideIndices.active, with_wide_indices)  # doctest: +SKIP
    """
    import tvm

    generate = tvm.get_global_func(_BUILD)

    def build(mod: Any, target: Any) -> Any:
        if not active():
            return generate(mod, target)
        made = {var: rewrite(f) if isinstance(f, tvm.tir.PrimFunc) else f for var, f in mod.functions.items()}
        return generate(tvm.IRModule(made, attrs=mod.attrs), target)

    tvm.register_func(_BUILD, build, override=True)
