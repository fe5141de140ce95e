"""PrefetchPanels: kernels for CPUs ask for the next panel of their weights while they compute with this one.

A network's weights are in no cache when their kernel begins, and memory is idle while it computes: in ResNet-50 a
convolution of 9 MB of weights takes half as long again as where they are in the cache.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ..lower.panels import asked_ahead, asking
from .before_llvm import before_llvm, marked, with_loops

#: Of a PrimFunc: it is to be built so.
MARK = "roller_tvm.prefetch_panels"


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
    asked = asked_ahead(func, written, tirx, _prefetch)
    return with_loops(func, lambda loop: asking(loop, asked, tirx)) if asked else func


def _prefetch(*arguments: Any) -> Any:
    return tirx.call_llvm_intrin("void", "llvm.prefetch", *arguments)


before_llvm(MARK, with_prefetch)
