"""Graphs of calls that can all be planned, fused."""

from __future__ import annotations

from roller_tvm.errors import UnsupportedOperator
from roller_tvm.rammer.fuse import CallGraph, Fuser


def fuse_calls(calls, maker, kept=(), sizes=None):
    """Return the reports of the regions, and the functions made of them.

    What no call reads is kept, and `kept`; without sizes the graph's inputs are taken to have no bytes.
    """
    read = {t for call in calls for t in call.reads}
    results = {*kept, *(t for call in calls for t in call.writes if t not in read)}
    graph = CallGraph(tuple(calls), frozenset(results), sizes if sizes is not None else dict.fromkeys(read, 0))
    fuser = Fuser(graph, maker)
    if fuser.outside:
        raise UnsupportedOperator(str(fuser.outside))
    return fuser.run(), fuser.fused
