"""PrefetchPanels: kernels for CPUs ask for the next panel of their weights while they compute with this one.

A network's weights are in no cache when their kernel begins, and memory is idle while it computes: in ResNet-50 a
convolution of 9 MB of weights takes half as long again as where they are in the cache.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ..device.cpu_data import estimate
from ..lower.flat_loops import asked_ahead, threads_of
from .before_llvm import before_llvm, marked

#: Of a PrimFunc: it is to be built so.
MARK = "roller_tvm.prefetch_panels"
_BITS_OF_A_BYTE = 8


@tvm.transform.module_pass(opt_level=0, name="PrefetchPanels")
class PrefetchPanels:
    """Have kernels for llvm ask ahead of time for what they will read; what they compute is the same.

    It marks PrimFuncs; ``tvm.compile`` does the rest where this module is imported. Put it last of the passes on
    PrimFuncs; ``build`` and the pipeline "roller" have it.

    Examples
    --------
    >>> mod = PrefetchPanels()(ScheduleWithRoller(target)(mod))  # doctest: +SKIP
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its PrimFuncs marked."""
        return marked(mod, MARK)


def with_prefetch(func: Any) -> Any:
    """A flattened PrimFunc that asks for the next panel of what it only reads.

    Examples
    --------
    >>> func = with_prefetch(func)  # doctest: +SKIP
    """
    import tvm_ffi

    written: set[int] = set()
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, lambda store: written.add(hash(store.buffer))))
    asked = asked_ahead(func.body, written, _bytes, int(estimate("line")), threads_of(func), tirx, _prefetch)
    if not asked:
        return func

    def with_asks(loop: Any) -> Any:
        asks = asked.get(hash(loop.loop_var))
        if asks is None:
            return loop
        body = tirx.SeqStmt([*asks, loop.body])
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)

    return tvm_ffi.structural_map(func, (tirx.For, with_asks), order="post")


def _bytes(buffer: Any) -> int:
    return max(1, tvm.DataType(str(buffer.dtype)).bits // _BITS_OF_A_BYTE)


def _prefetch(*arguments: Any) -> Any:
    return tirx.call_llvm_intrin("void", "llvm.prefetch", *arguments)


before_llvm(MARK, with_prefetch)
