"""Placing many rTasks at once is placing them one by one, to the last bit."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from roller_tvm.device import load_device
from roller_tvm.rammer import DataFlowGraph, Dependences, Phase, RKernel, ROperator
from roller_tvm.rammer.placement import Placement, _earliest
from tests.rammer.graphs import graphs

from ..sampling import examples

#: Few different times, so that vEUs are often free at the same one.
TIMES = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 0.5]), st.floats(0, 9))


@given(st.data())
@settings(max_examples=examples(200), deadline=None)
def test_against_one_rtask_at_a_time(data: st.DataObject) -> None:
    units, per_unit, tasks = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 50))
    free = data.draw(st.lists(TIMES, min_size=units * per_unit, max_size=units * per_unit))
    pipes = data.draw(st.lists(TIMES, min_size=units, max_size=units))
    ready = data.draw(st.lists(TIMES, min_size=tasks, max_size=tasks))
    phase, poll = Phase(tasks, data.draw(TIMES), data.draw(TIMES)), data.draw(TIMES)
    frees, served = np.array(free), np.array(pipes)
    veus, ends = _earliest(frees, served, phase, np.array(ready), poll)

    heap = [(f, pipes[v % units], v) for v, f in enumerate(free)]
    heapq.heapify(heap)
    for task in range(tasks):
        at, _, v = heap[0]
        start = max(at, ready[task]) + poll
        pipes[v % units] = max(pipes[v % units], start) + phase.unit_seconds
        free[v] = max(start + phase.alone_seconds, pipes[v % units])
        heapq.heapreplace(heap, (free[v], pipes[v % units], v))
        assert (v, free[v]) == (veus[task], ends[task])
    assert free == frees.tolist() and pipes == served.tolist()


@given(graphs())
@settings(max_examples=30, deadline=None)
def test_what_is_kept_of_narrower_placements(graph: DataFlowGraph) -> None:
    """Operators that were placed again for fewer vEUs on a unit stand where they would have stood from the start."""
    device = replace(load_device("v100"), units=4)
    small = RKernel("small", (Phase(3, 1e-6, 1e-6),), 1e-6)
    chosen = [(o.name, small) for o in graph.order]
    greedy = [(f"greedy{n}", RKernel("g", (Phase(1, 1e-6, 1e-6, 1024, 64),), 1e-6)) for n in range(len(chosen))]
    every = DataFlowGraph((*(ROperator(o.name, (small,), o.inputs) for o in graph.order),
                           *(ROperator(name, (k,)) for name, k in greedy)))
    dependences = Dependences(every)
    plan = Placement(device, dependences, "stream")
    for one, other in zip(chosen, greedy, strict=True):
        plan = plan.extended([one])
        tried = plan.extended([other])
        anew = Placement(device, dependences, "stream").extended([*plan.chosen, other])
        assert tried.device == anew.device and tried.device.per_unit < plan.device.per_unit
        assert tried.free.tolist() == anew.free.tolist() and tried.pipes.tolist() == anew.pipes.tolist()
        assert {n: v.tolist() for n, v in tried.veus.items()} == {n: v.tolist() for n, v in anew.veus.items()}
