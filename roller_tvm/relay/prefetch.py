"""PrefetchPanels: kernels for CPUs ask for the next panel of their weights while they compute with this one.

A network's weights are in no cache when their kernel begins, and memory is idle while it computes: in ResNet-50 a
convolution of 9 MB of weights takes half as long again as where they are in the cache.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from ..lower.panels import asked_ahead, asking
from .before_llvm import BeforeLlvm, with_loops


class PrefetchPanels(BeforeLlvm):
    """Kernels that are built for LLVM in this context ask ahead of time for what they will read.

    What they compute is the same. Schedules and records know nothing of it, so that what TVM, Ansor and Roller schedule
    all gain.

    Parameters
    ----------
    on : bool
        False: as TVM does it, inside of a context that does otherwise.

    Examples
    --------
    >>> with PrefetchPanels():  # doctest: +SKIP
    ...     lib = relay.build(mod, "llvm -mcpu=skylake-avx512", params=params)
    """

    state = ContextVar("roller_prefetch_panels", default=False)

    @staticmethod
    def rewritten(func: Any) -> Any:
        """The lowered function in this way."""
        return with_prefetch(func)


def with_prefetch(func: Any) -> Any:
    """A lowered PrimFunc that asks for the next panel of what it only reads.

    Examples
    --------
    >>> func = with_prefetch(func)  # doctest: +SKIP
    """
    from tvm import tir

    written: set[Any] = set()
    read: set[Any] = set()

    def find(node: Any) -> None:
        if isinstance(node, (tir.BufferStore, tir.BufferLoad)):
            (written if isinstance(node, tir.BufferStore) else read).add(node.buffer)

    tir.stmt_functor.post_order_visit(func.body, find)
    own = {buffer.data for buffer in written}  # of one tensor there are several buffers
    left_out = {hash(buffer) for buffer in read if buffer.data in own}
    asked = asked_ahead(func, left_out, tir, _prefetch)
    if not asked:
        return func
    return func.with_body(with_loops(func.body, lambda loop: asking(loop, asked, tir)))


def _prefetch(address: Any, *flags: Any) -> Any:
    from tvm import tir

    given = (address, *flags)
    return tir.call_llvm_intrin("int32", "llvm.prefetch", tir.const(len(given), "uint32"), *given)
