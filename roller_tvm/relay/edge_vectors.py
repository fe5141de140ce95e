"""EdgeVectors: kernels for CPUs check once a tile, not lane by lane, whether a vector stands over an edge.

TVM computes a vector that may stand over the edge of an axis one element at a time, 521 columns in vectors of 16 for
instance: that takes twenty times as long as whole vectors. The same goes for vectors that reach into padding, and for
those of every second element.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from ..lower.dialect import Dialect
from ..lower.whole_vectors import REWRITINGS
from .before_llvm import BeforeLlvm, with_calls, with_loads, with_loops


class EdgeVectors(BeforeLlvm):
    """Kernels that are built for LLVM in this context compute whole vectors up to the tile that stands over an edge.

    What they compute is the same. Schedules and records know nothing of it, but some of Roller's plans count on it:
    built without, they are slow.

    Parameters
    ----------
    on : bool
        False: as TVM does it, inside of a context that does otherwise.

    Examples
    --------
    >>> with EdgeVectors():  # doctest: +SKIP
    ...     module = tvm.build(schedule, args, "llvm")
    """

    state = ContextVar("roller_edge_vectors", default=False)

    @staticmethod
    def rewritten(func: Any) -> Any:
        """The lowered function in this way."""
        return with_edge_vectors(func)


def with_edge_vectors(func: Any) -> Any:
    """A lowered PrimFunc that checks tiles instead of lanes.

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
