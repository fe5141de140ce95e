"""EdgeVectors: kernels for CPUs check once a tile, not lane by lane, whether a vector stands over an edge.

TVM computes a vector that may stand over the edge of an axis one element at a time, 521 columns in vectors of 16 for
instance: that takes twenty times as long as whole vectors. The same goes for vectors that reach into padding, and for
those of every second element.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ..lower.dialect import Dialect
from ..lower.initial_values import with_initial_values_first
from ..lower.whole_vectors import REWRITINGS
from ..tir.nodes import analyzer_of_tvm, key
from .before_llvm import before_llvm, marked, with_calls, with_loads, with_loops

#: Of a PrimFunc: it is to be built so.
MARK = "roller_tvm.edge_vectors"


@tvm.transform.module_pass(opt_level=0, name="EdgeVectors")
class EdgeVectors:
    """Have kernels for llvm compute whole vectors up to the tile that stands over an edge; the answers are the same.

    It marks PrimFuncs; ``tvm.compile`` does the rest where this module is imported. Put it last of the passes on
    PrimFuncs; ``build`` and the pipeline "roller" have it. Some of Roller's plans count on it: without, they are slow.

    Examples
    --------
    >>> mod = EdgeVectors()(ScheduleWithRoller(target)(mod))  # doctest: +SKIP
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its PrimFuncs marked."""
        return marked(mod, MARK)


def with_edge_vectors(func: Any) -> Any:
    """A flattened PrimFunc that checks tiles instead of lanes.

    Examples
    --------
    >>> func = with_edge_vectors(func)  # doctest: +SKIP
    """
    for rewritten in (with_initial_values_first, *REWRITINGS):
        body = rewritten(func.body, DIALECT)
        if body is not None:  # names stand there twice
            func = tirx.transform.ConvertSSA()(tvm.IRModule({"main": func.with_body(body)}))["main"]
    return func


def _call(dtype: str, op: Any, arguments: list[Any]) -> Any:
    return tvm.ir.Call(op, arguments, ret_ty=dtype)


def _substituted(node: Any, var: Any, value: Any) -> Any:
    import tvm_ffi

    return tvm_ffi.structural_map(node, (tirx.Var, lambda one: value if key(one) == key(var) else one), order="post")


DIALECT = Dialect(tirx, analyzer_of_tvm, "bool", _call, _substituted, with_loops, with_loads, with_calls)
before_llvm(MARK, with_edge_vectors)
