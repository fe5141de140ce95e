"""Constant folding that compiles each small kernel once.

Optimising a Relay module evaluates every constant subexpression (batch-norm parameters, weight layouts), each
with a module compiled for it: 796 of them for ResNet-50, of which 107 differ. Sharing the equal ones takes
task extraction from 39 to 12 seconds of CPU time there; what is computed does not change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from typing import Any

from roller_tvm.tuning.interrupt import deferred_interrupt, stop_if_interrupted

BUILD = "relay.backend.build"
_FOLDS: ContextVar[bool] = ContextVar("roller_folds_constants", default=False)


def folds_constants() -> bool:
    """Return whether what is compiled here and now computes a constant."""
    return _FOLDS.get()


@contextlib.contextmanager
def shared_constant_kernels() -> Iterator[dict[str, int]]:
    """Compile equal kernels of constant folding once while this is open; yields the numbers asked for and compiled.

    Examples
    --------
    >>> with shared_constant_kernels():
    ...     lib = relay.build(mod, target, params=params)
    """
    import tvm
    from tvm.relay.backend import te_compiler

    compile_module = tvm.get_global_func(BUILD, allow_missing=True)
    if compile_module is None:  # a TVM that does it otherwise
        yield {}
        return
    counts = {"asked": 0, "compiled": 0}
    made: dict[tuple[int, str], list[tuple[Any, Any]]] = {}

    def build(mod: Any, target: Any, target_host: Any = None) -> Any:
        stop_if_interrupted()
        counts["asked"] += 1
        # Modules of equal hash are compared, so that a collision costs nothing but time.
        known = made.setdefault((tvm.ir.structural_hash(mod, True), str(target)), [])
        for other, library in known:
            if tvm.ir.structural_equal(other, mod, True):
                return library
        counts["compiled"] += 1
        folding = _FOLDS.set(True)
        try:
            library = compile_module(mod, target, target_host)
        finally:
            _FOLDS.reset(folding)
        known.append((mod, library))
        return library

    # The lowering of each operator asks for TVM's build flags, hundreds of them, once a dimension.
    flags = getattr(te_compiler, "libinfo", None)
    tvm.register_func(BUILD, build, override=True)
    if flags is not None:
        te_compiler.libinfo = _flags
    try:
        with deferred_interrupt():
            yield counts
    finally:
        tvm.register_func(BUILD, compile_module, override=True)
        if flags is not None:
            te_compiler.libinfo = flags


@cache
def _flags() -> dict[str, Any]:
    """Return TVM's build flags."""
    import tvm

    return dict(tvm.support.libinfo())
