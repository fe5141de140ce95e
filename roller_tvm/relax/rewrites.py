"""Passes that have kernels for LLVM built with Roller's rewrites of CPU code.

Results stay the same. The passes mark PrimFuncs. A ``tvm.compile`` in a process with this module rewrites the marked
functions (``codegen.rewrites``) once TVM has flattened them, right before it decides what is on the stack. No pass of a
user is there. Put these last of the passes on PrimFuncs; ``build`` and the pipeline "roller" have them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm

from ..codegen.dialect import dialect_here
from ..codegen.mended_cuda import extend_pipeline, mend_cuda
from ..codegen.rewrites import rewritten
from ..codegen.rewrites.vector_math import by_element
from .modules import each_prim_func
from .own_memory import OWN_MEMORY, without_checks

#: Rewrite -> attribute of a PrimFunc that is to be built with it.
MARKS = {
    "fast_math": "roller_tvm.fast_math",
    "edge_vectors": "roller_tvm.edge_vectors",
    "prefetch": "roller_tvm.prefetch_panels",
    "stack_tiles": "roller_tvm.stack_tiles",
    "vector_math": "roller_tvm.vector_math",
}
#: Functions that TVM has as one operation on a vector, and for LLVM no code for: an element at a time.
_BY_ELEMENT = ("erf", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "atan2", "hypot", "copysign",
               "nextafter", "ldexp")  # fmt: skip
#: Priority of our rules, above TVM's own.
_LEVEL = 99
#: Attribute of a kernel that is compiled alone: TVM takes a module's only function for its entry, "main".
PART = "roller_tvm.part"
_ENTRY = "tirx.is_entry_func"


class _Marks:
    name: str

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its PrimFuncs marked."""
        return each_prim_func(mod, lambda func: func.with_attr(MARKS[self.name], True))


@tvm.transform.module_pass(opt_level=0, name="EdgeVectors")
class EdgeVectors(_Marks):
    """Have kernels compute whole vectors in every tile that does not cross an edge (``rewrites.whole_vectors``).

    Some of Roller's plans rely on this: built without it, they are slow.
    """

    name = "edge_vectors"


@tvm.transform.module_pass(opt_level=0, name="PrefetchPanels")
class PrefetchPanels(_Marks):
    """Have kernels prefetch the tensors they only read (``codegen.rewrites.prefetch_panels``)."""

    name = "prefetch"


@tvm.transform.module_pass(opt_level=0, name="StackTiles")
class StackTiles(_Marks):
    """Have kernels keep buffers that fit into the registers on the stack (``codegen.rewrites.stack_tiles``)."""

    name = "stack_tiles"


@tvm.transform.module_pass(opt_level=0, name="VectorMath")
class VectorMath(_Marks):
    """Have kernels compute exp, erf, tanh and sigmoid of float32 as arithmetic (``codegen.rewrites.vector_math``)."""

    name = "vector_math"


@tvm.transform.module_pass(opt_level=0, name="FastMath")
class FastMath(_Marks):
    """Have kernels compute erf and tanh of float32 within 8 units in the last place, not 2, in less time."""

    name = "fast_math"


def cpu_code(fast_math: bool = False) -> Any:
    """Return the passes that have scheduled kernels built for LLVM as ``build`` does."""
    passes = [VectorMath(), EdgeVectors(), StackTiles(), PrefetchPanels(), *([FastMath()] if fast_math else [])]
    return tvm.transform.Sequential(passes, name="RollerCpuCode")


@tvm.transform.module_pass(opt_level=0, name="RollerBeforeLlvm")
class _Rewrite:
    def transform_module(self, mod: Any, _context: Any) -> Any:
        return each_prim_func(mod, _as_marked)


def _as_marked(func: Any) -> Any:
    if func.attrs and PART in func.attrs and _ENTRY in func.attrs:
        func = func.without_attr(_ENTRY)
    if func.attrs and OWN_MEMORY in func.attrs:
        func = without_checks(func)
    names = {name for name, mark in MARKS.items() if func.attrs and mark in func.attrs}
    return rewritten(func, names | ({"neighbouring_lanes"} if names else set()))


def _extend() -> None:
    """Add the rewrites to the passes that TVM makes once a function is flattened."""
    extend_pipeline(before_host=_Rewrite())
    # TVM takes vectors apart for erf, and then has no vector to compute.
    tvm.ir.Op.get("tirx.erf").set_attr("TVectorizable", True, _LEVEL)
    for name in _BY_ELEMENT:
        if tvm.ir.Op.get(f"tirx.{name}").get_attr("llvm.FLowerIntrinsic") is None:
            rule = partial(by_element, dialect=dialect_here())
            tvm.tirx.register_intrin_lowering(f"tirx.{name}", "llvm", f=rule, level=_LEVEL)


_extend()
mend_cuda()
