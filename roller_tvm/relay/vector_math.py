"""TVM's rules for exp, erf, tanh and sigmoid in kernels for LLVM, replaced by calls of ours where VectorMath is on.

TVM's own rule calls a function per element, which splits vectors.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from ..codegen.dialect import dialect_here
from ..codegen.rewrites.vector_math import by_element, kept_for_later
from ..codegen.vector_functions import FUNCTIONS

#: Priority of our rules, above TVM's own.
_LEVEL = 99
_LOCK, _contexts = threading.Lock(), 0


def erf_of_vectors(more: int) -> None:
    """Make TVM keep vectors whole for erf while any context is on; otherwise it splits them before it applies a rule.

    Parameters
    ----------
    more : int
        1 at the beginning of a context, -1 at its end.
    """
    import tvm

    global _contexts
    erf = tvm.ir.Op.get("tir.erf")
    with _LOCK:
        before, _contexts = _contexts, _contexts + more
        if not before:
            erf.set_attr("TVectorizable", True, _LEVEL)
        elif not _contexts:
            erf.reset_attr("TVectorizable")


@cache
def replace_rules(active: Callable[[], bool]) -> None:
    """Replace TVM's rules, once per process; where it is not active, ours call the replaced ones."""
    import tvm

    for name in FUNCTIONS:
        own = tvm.ir.Op.get(f"tir.{name}").get_attr("llvm.FLowerIntrinsic")
        tvm.ir.register_intrin_lowering(f"tir.{name}", "llvm", f=_rule(name, own, active), level=_LEVEL)


def _rule(name: str, own: Callable[[Any], Any] | None, active: Callable[[], bool]) -> Callable[[Any], Any]:
    def lower(call: Any) -> Any:
        if active() and re.fullmatch(r"float32(x\d+)?", str(call.dtype)):
            return kept_for_later(name, call, dialect_here())
        if own is not None:
            return own(call)
        # of a number, and sigmoid: TVM goes on to its rule for every target
        return by_element(call, dialect_here()) if name == "erf" else call

    return lower
