"""EdgeVectors: CPU kernels check once per tile, not per lane, whether a vector crosses an edge.

TVM computes a vector that may cross the edge of an axis one element at a time (521 columns in vectors of 16, for
instance): 20 times slower than whole vectors. The same goes for vectors that reach into padding, and for vectors of
stride 2.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from ..lower.dialect import Dialect
from ..lower.whole_vectors import REWRITINGS
from .before_llvm import BeforeLlvm, with_calls, with_loads, with_loops


class EdgeVectors(BeforeLlvm):
    """A context in which kernels for LLVM compute whole vectors in every tile that does not cross an edge.

    Results stay the same. Schedules and records do not change, but some of Roller's plans rely on this: built without
    it, they are slow.

    Parameters
    ----------
    on : bool
        False restores TVM's own code inside of another such context.

    Examples
    --------
    >>> with EdgeVectors():  # doctest: +SKIP
    ...     module = tvm.build(schedule, args, "llvm")
    """

    state = ContextVar("roller_edge_vectors", default=False)

    @staticmethod
    def rewritten(func: Any) -> Any:
        """Return the lowered function with tiles checked instead of lanes."""
        return with_edge_vectors(func)


def with_edge_vectors(func: Any) -> Any:
    """Return a lowered PrimFunc that checks tiles instead of lanes.

    Examples
    --------
    >>> func = with_edge_vectors(func)  # doctest: +SKIP
    """
    import tvm

    dialect = _dialect()
    for rewritten in REWRITINGS:
        body = rewritten(func.body, dialect)
        if body is not None:  # names stand there twice
            func = tvm.tir.transform.ConvertSSA()(tvm.IRModule({"main": func.with_body(body)}))["main"]
    return func


def _dialect() -> Dialect:
    from tvm import arith, tir

    def substituted(node: Any, var: Any, value: Any) -> Any:
        return tir.stmt_functor.substitute(node, {var: value})

    return Dialect(tir, arith.Analyzer, "uint1", tir.Call, substituted, with_loops, with_loads, with_calls)
