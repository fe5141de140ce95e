"""How Roller has TVM generate code for CPUs: EdgeVectors, StackTiles and PrefetchPanels."""

from __future__ import annotations

from typing import Any

import tvm

from .edge_vectors import EdgeVectors
from .prefetch import PrefetchPanels
from .stack_tiles import StackTiles


def cpu_code() -> Any:
    """The passes that have scheduled kernels built for LLVM as ``build`` does.

    Examples
    --------
    >>> tvm.compile(cpu_code()(schedule.mod), target)  # doctest: +SKIP
    """
    return tvm.transform.Sequential([EdgeVectors(), StackTiles(), PrefetchPanels()], name="RollerCpuCode")
