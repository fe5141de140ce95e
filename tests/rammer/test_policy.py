"""Invariants of every plan, on random graphs: nothing lost, nothing too early, no deadlock, never slower."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roller_tvm.device import load_device
from roller_tvm.errors import BadInput
from roller_tvm.micro_perf.occupancy import occupancy
from roller_tvm.rammer import (
    DataFlowGraph,
    Dependences,
    Edge,
    FusionPlan,
    Phase,
    RKernel,
    ROperator,
    draw,
    explain_fusion,
    plan_graph,
    simulate,
)
from tests.rammer.checked import check_program
from tests.rammer.graphs import graphs, kernels

from ..sampling import examples

V100 = load_device("v100")
SMALL = replace(V100, name="small", units=8)
QUICK = settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))


def kernel(tasks: int, us: float, name: str = "k", registers: int = 32, threads: int = 256, share: float = 1.0,
           seconds: float = 0.0) -> RKernel:
    phase = Phase(tasks, us * 1e-6, us * share * 1e-6, threads, registers)
    return RKernel(name, (phase,), seconds or -(-tasks // V100.units) * us * 1e-6)


@QUICK
@given(st.data(), st.sampled_from(["wavefront", "front", "list", "horizontal"]))
def test_equal_parts_that_are_made_once_are_those_made_each_by_itself(data: st.DataObject, policy: str) -> None:
    """A network's layers: three operators of the same rKernels again and again."""
    given = [tuple(data.draw(kernels(f"k{i}")) for i in range(2)) for _ in range(3)]
    graph = DataFlowGraph(tuple(
        ROperator(f"op{3 * layer + n}", given[n], (Edge("in", f"op{3 * layer + n - 1}"),) if layer + n else ())
        for layer in range(5) for n in range(3)
    ))  # fmt: skip
    plan = plan_graph(graph, SMALL, policy)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("roller_tvm.rammer.placement.Placement.pattern", lambda self: id(self))
        assert plan_graph(graph, SMALL, policy) == plan
    for part in plan.parts:
        if part.program:
            assert {o for o, _ in part.kernels} == {task.operator for task in part.program.places}


@QUICK
@given(graphs(), st.sampled_from(["wavefront", "front", "list", "horizontal"]), st.sampled_from(["stream", "graph"]))
def test_every_plan(graph: DataFlowGraph, policy: str, launch: str) -> None:
    plan = plan_graph(graph, SMALL, policy, launch)
    done: set[str] = set()
    for part in plan.parts:
        names = [name for name, _ in part.kernels]
        for name in names:  # parts run in order, operators of a part in theirs
            assert {e.producer for e in graph.by_name[name].inputs} <= done | set(names[: names.index(name)])
        assert not done & set(names)
        done |= set(names)
        assert part.seconds <= part.sequential_seconds
        if part.program:
            check_program(part.program, Dependences(graph))
            assert simulate(part.program).makespan == part.seconds
            assert policy != "horizontal" or part.horizontal
            device = part.program.device
            resident, _ = occupancy(V100, device.threads, device.registers, device.shared_bytes)
            assert device.per_unit == resident >= 1
            assert device.threads <= 1024 and device.shared_bytes <= V100.limits.shared_per_block_optin_bytes
    assert done == set(graph.by_name)
    least = sum(min(k.seconds + len(k.phases) * 2.6e-6 for k in o.kernels) for o in graph.operators)
    if launch == "stream":
        assert plan.sequential_seconds == pytest.approx(least)
    assert plan.seconds <= plan.sequential_seconds
    if plan.seconds == plan.sequential_seconds:
        assert plan.launches <= plan.sequential_launches
    assert FusionPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    head, *told = str(plan).split("\n")
    assert f"{plan.launches} kernels instead of {plan.sequential_launches}" in head and plan.policy in head
    assert [line.strip().partition(":")[0] for line in told] == [", ".join(n for n, _ in p.kernels) for p in plan.parts]


def test_independent_operators_share_the_device() -> None:
    graph = DataFlowGraph(tuple(ROperator(f"op{n}", (kernel(10, 5.0),)) for n in range(8)))
    plan = plan_graph(graph, V100, "wavefront")
    (part,) = plan.parts
    assert part.horizontal and part.program is not None
    assert part.seconds == pytest.approx(7.6e-6)  # 80 rTasks on 80 units, one launch
    assert plan.sequential_seconds == pytest.approx(8 * 7.6e-6)
    assert {len(entries) for entries in part.program.prog[:80]} == {1}
    assert "leave" in part.reasons[0]


def test_a_chain_waits_without_launches() -> None:
    one = kernel(4, 1.0)
    graph = DataFlowGraph(tuple(ROperator(f"op{n}", (one,), (f"op{n - 1}",) if n else ()) for n in range(5)))
    (part,) = plan_graph(graph, V100, "wavefront").parts
    costs = part.program.device.costs
    assert part.program.barriers == 16
    waits = 4 * (costs.signal_seconds + costs.poll_seconds)
    assert part.seconds == pytest.approx(2.6e-6 + 5e-6 + waits)


def test_efficient_kernels_where_the_fastest_fill_the_device() -> None:
    """Eight operators of 320 short rTasks against eight of 40 longer ones that take half the device's time."""
    fast, efficient = kernel(320, 4.0, "fast", 64), kernel(40, 16.0, "efficient", 64)
    few = DataFlowGraph((ROperator("alone", (kernel(40, 4.0, "fast"), efficient)),))
    many = DataFlowGraph(tuple(ROperator(f"op{n}", (fast, efficient)) for n in range(8)))
    assert few.by_name["alone"].efficient.name == "fast"
    assert many.by_name["op0"].fastest.name == "fast"
    (part,) = plan_graph(many, V100, "wavefront").parts
    assert {k.name for _, k in part.kernels} == {"efficient"}
    assert "most efficient" in part.reasons[0]


def test_a_kernel_of_many_registers_does_not_take_the_others_vEUs() -> None:
    """The wave is better by itself: appended, it would leave one vEU on a unit to what came before."""
    wide = tuple(ROperator(f"wide{n}", (kernel(640, 20.0, share=0.1, seconds=25e-6),)) for n in range(4))
    greedy = ROperator("greedy", (kernel(80, 50.0, registers=255),), ("wide0",))
    plan = plan_graph(DataFlowGraph((*wide, greedy)), V100, "wavefront")
    assert [len(p.kernels) for p in plan.parts] == [4, 1]
    assert plan.parts[-1].program is None  # and the last plan is not lost


def test_an_operator_that_is_slow_in_a_plan_does_not_take_the_waves_beside_it_along() -> None:
    """By itself it is a fast kernel of its own: the waves before and after it stay fused."""
    wide = tuple(ROperator(f"wide{n}", (kernel(10, 10.0),)) for n in range(8))
    slow = ROperator("slow", (kernel(80, 50.0, seconds=10e-6),), ("wide0", "wide7"))
    after = tuple(ROperator(f"after{n}", (kernel(10, 10.0),), ("slow",)) for n in range(8))
    plan = plan_graph(DataFlowGraph((*wide, slow, *after)), V100, "front")
    assert [(len(p.kernels), p.program is not None) for p in plan.parts] == [(8, True), (1, False), (8, True)]
    assert plan.speedup > 3


def test_what_does_not_fit_stays_unfused() -> None:
    big = RKernel("big", (Phase(4, 1e-6, 1e-6, threads=256, shared_bytes=200 << 10),), 1e-6)
    graph = DataFlowGraph((ROperator("a", (kernel(4, 1.0),)), ROperator("b", (big,), ("a",)),
                           ROperator("c", (kernel(4, 1.0),), ("b",)), ROperator("d", (kernel(4, 1.0),), ("c",))))
    for policy in ("wavefront", "list"):
        plan = plan_graph(graph, V100, policy)
        assert [[o for o, _ in p.kernels] for p in plan.parts] == [["a"], ["b"], ["c", "d"]]
        assert plan.parts[1].program is None and plan.parts[2].program is not None
        # By its name, with the limit; and there is a picture of it all the same.
        told = "operator 'b' stays by itself: an rTask needs 204800 bytes of shared memory, a block of v100 has 98304"
        assert plan.parts[1].reasons[0].startswith(told) and told in explain_fusion(plan)
        assert "b, 4 rTasks" in draw(plan, V100)
        assert FusionPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_refused_graphs() -> None:
    one = kernel(4, 1.0)
    with pytest.raises(BadInput, match="a -> c -> b -> a"):
        DataFlowGraph((ROperator("a", (one,), ("b",)), ROperator("b", (one,), ("c",)), ROperator("c", (one,), ("a",))))
    with pytest.raises(BadInput, match="operator 'lonely'.*no kernel"):
        ROperator("lonely", ())
    with pytest.raises(BadInput, match="'b': it reads from 'x'"):
        DataFlowGraph((ROperator("b", (one,), ("x",)),))


@pytest.mark.parametrize("policy", ["wavefront", "front"])
def test_of_plans_that_take_as_long_the_fastest_kernels_are_taken(policy: str) -> None:
    """Two rounds of 320 rTasks of 4 us and a launch, whichever; the efficient ones would leave room for more."""
    fast = RKernel("fast", (Phase(80, 4e-6, 4e-7, 256, 64, resident=1),), 4e-6)
    efficient = RKernel("efficient", (Phase(80, 4e-6, 4e-7, 256, 64, resident=2),), 5e-6)
    graph = DataFlowGraph(tuple(ROperator(f"op{n}", (fast, efficient)) for n in range(8)))
    assert graph.by_name["op0"].fastest is fast and graph.by_name["op0"].efficient is efficient
    (part,) = plan_graph(graph, V100, policy).parts
    assert part.seconds == pytest.approx(8e-6 + 2.6e-6) and {k.name for _, k in part.kernels} == {"fast"}
