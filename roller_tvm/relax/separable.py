"""SeparableSums: the pass that has each kernel take unrolled sums that separate an axis at a time."""

from __future__ import annotations

from typing import Any

import tvm

from ..codegen.tensorir_separable import with_separated_sums
from .modules import each_prim_func


@tvm.transform.module_pass(opt_level=0, name="SeparableSums")
class SeparableSums:
    """Make Winograd's transforms two short sums instead of a long one, in every scheduled PrimFunc.

    Put it behind the schedules; ``build`` and the pipeline "roller" have it.

    Examples
    --------
    >>> mod = SeparableSums()(mod)
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its PrimFuncs rewritten."""
        return each_prim_func(mod, with_separated_sums)
