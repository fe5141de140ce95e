"""What plans keep alive: within the rule, whatever the graph and the policy."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roller_tvm.device import load_device
from roller_tvm.rammer import DataFlowGraph, Dependences, FusionPlan, Phase, RKernel, ROperator, plan_graph
from roller_tvm.rammer.memory import Live, MemoryRule, in_order, peak_bytes
from tests.rammer.checked import check_program
from tests.rammer.graphs import graphs

from ..sampling import examples

V100 = load_device("v100")


def with_l2(capacity: int, memory: int = 16 << 30):
    levels = [replace(lv, capacity_bytes={"l2": capacity, "dram": memory}.get(lv.name, lv.capacity_bytes))
              for lv in V100.levels]
    return replace(V100, name="small", units=8, levels=tuple(levels))


@st.composite
def sized(draw: st.DrawFn) -> DataFlowGraph:
    graph = draw(graphs())
    return DataFlowGraph(tuple(replace(o, buffer_bytes=draw(st.integers(1, 1000))) for o in graph.operators))


def alive(graph: DataFlowGraph, groups: list[list[str]], kept: set[str]) -> int:
    """By looking at every moment: what has been written and is still to be read."""
    worst = 0
    for number, group in enumerate(groups):
        done = {n for g in groups[: number + 1] for n in g}
        later = {e.producer for g in groups[number:] for n in g for e in graph.by_name[n].inputs}
        held = {n for n in done if n in later | kept | set(group) or not graph.consumers[n]}
        worst = max(worst, sum(graph.by_name[n].buffer_bytes for n in held))
    return worst


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(sized(), st.integers(1, 3000), st.sampled_from(["best", "wavefront", "list", "horizontal"]), st.data())
def test_plans_stay_within_the_rule(graph: DataFlowGraph, cache: int, policy: str, data: st.DataObject) -> None:
    kept = data.draw(st.sets(st.sampled_from([o.name for o in graph.operators])))
    device = with_l2(cache)
    plan = plan_graph(graph, device, policy, kept=kept)
    one_by_one = alive(graph, [[n] for n in in_order(graph)], kept)
    assert plan.sequential_peak_bytes == one_by_one and plan.limit_bytes == one_by_one + cache
    groups = [g for p in plan.parts for g in ([[o for o, _ in p.kernels]] if p.program else
                                              [[o] for o, _ in p.kernels])]
    assert plan.peak_bytes == alive(graph, groups, kept) == peak_bytes(graph, groups, kept) <= plan.limit_bytes
    for part in plan.parts:
        if part.program:
            check_program(part.program, Dependences(graph))
    assert FusionPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def chain(length: int, size: int) -> DataFlowGraph:
    one = (RKernel("k", (Phase(4, 1e-6, 1e-6, 256, 32),), 1e-6),)
    return DataFlowGraph(tuple(ROperator(f"op{n}", one, (f"op{n - 1}",) if n else (), size) for n in range(length)))


@pytest.mark.parametrize("policy", ["wavefront", "front", "list"])
def test_a_chain_is_cut_where_the_cache_is_full(policy: str) -> None:
    graph = chain(12, 1000)  # one by one two buffers are alive
    (whole,) = plan_graph(graph, with_l2(10_000), policy).parts
    assert len(whole.kernels) == 12
    cut = plan_graph(graph, with_l2(9_999), policy)
    assert [len(p.kernels) for p in cut.parts] == [11, 1]
    assert "ends before op11: 11.7 KiB would be alive, 11.7 KiB at most" in cut.parts[0].reasons[-1]


def test_never_more_than_the_device_has_unless_one_by_one_needs_it() -> None:
    graph = chain(12, 1000)
    rule = MemoryRule.of(graph, with_l2(10_000, 8_000), resident_bytes=3_000)
    assert (rule.peak_bytes, rule.limit_bytes) == (2_000, 5_000)
    assert MemoryRule.of(graph, with_l2(10_000, 1_000)).limit_bytes == 2_000
    plan = plan_graph(graph, with_l2(10_000, 8_000), resident_bytes=3_000)
    assert plan.peak_bytes <= 5_000 and len(plan.parts) > 1


def test_what_starting_anew_would_keep() -> None:
    graph = chain(3, 10)
    live = Live(graph)
    live.add(["op0"])
    assert live.with_(["op1"]) == live.alone(["op1"]) == 20
    live.add(["op1"])
    assert (live.with_(["op2"]), live.alone(["op2"])) == (30, 20)


def test_the_limit_is_one_by_one_and_a_cache_more_but_no_more_than_the_device() -> None:
    assert MemoryRule(100, "l2", 30, 1000).limit_bytes == 130
    assert MemoryRule(100, "l2", 30, 120).limit_bytes == 120
    assert MemoryRule(100, "l2", 30, 90).limit_bytes == 100  # one by one needs it anyway
