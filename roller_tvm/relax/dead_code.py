"""KeepPackedCalls: what nothing reads is taken away, but for calls of packed functions.

A call of a packed function may have an effect (a callback, a print), whatever it was declared to be. TVM's default
pipelines keep it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import relax

from .contexts import context_like

#: Calls that Relax takes to be without effect because their author says so.
PACKED_CALLS = ("call_pure_packed", "call_dps_packed", "call_inplace_packed", "invoke_pure_closure")
#: In the name of TVM's instrument that judges modules.
JUDGE = "WellFormed"
#: Priority of our answer, above TVM's own.
_LEVEL = 99
_LOCK = threading.RLock()


@tvm.transform.module_pass(opt_level=0, name="KeepPackedCalls")
class KeepPackedCalls:
    """Run a pass that takes away what nothing reads, but keep `PACKED_CALLS`.

    Parameters
    ----------
    inner : tvm.transform.Pass

    Examples
    --------
    >>> mod = KeepPackedCalls(relax.transform.FoldConstant())(mod)
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module as the pass leaves it."""
        return keeping_packed_calls(self.inner, mod)


def keeping_packed_calls(inner: Any, mod: Any) -> Any:
    """Return the module that a pass makes, with `PACKED_CALLS`."""
    with _without_judges(), _packed_calls_kept():
        return inner(mod)


def without_dead_code(mod: Any) -> Any:
    """The module without what nothing reads, but with `PACKED_CALLS`."""
    return keeping_packed_calls(relax.transform.DeadCodeElimination(), mod)


@contextmanager
def _without_judges() -> Iterator[None]:
    """Have no instrument that judges modules look at them while packed calls count as impure: it would find faults.

    A context is entered with all its instruments or none. Where none of them judges, all go on seeing the passes.
    """
    context = tvm.transform.PassContext.current()
    if not any(JUDGE in str(one.name) for one in context.instruments or ()):
        yield
        return
    with context_like(context):
        yield


@contextmanager
def _packed_calls_kept() -> Iterator[None]:
    """Make TVM take `PACKED_CALLS` for impure."""
    with _LOCK:
        ops = [tvm.ir.Op.get(f"relax.{name}") for name in PACKED_CALLS]
        before = [op.get_attr("FPurity") for op in ops]
        for op in ops:
            op.set_attr("FPurity", False, _LEVEL)
        try:
            yield
        finally:
            for op, pure in zip(ops, before, strict=True):
                op.reset_attr("FPurity")
                op.set_attr("FPurity", pure, 10)  # TVM's own level
