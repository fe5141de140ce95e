"""Operators side by side on worker threads: where it pays, and left alone where it does not."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roller_tvm.errors import UnsupportedOperator
from roller_tvm.ir.operators import matmul
from roller_tvm.rammer import (
    DataFlowGraph,
    Dependences,
    FusionPlan,
    Phase,
    RKernel,
    ROperator,
    explain_fusion,
    plan_graph,
    roperator,
    simulate,
)
from roller_tvm.rammer.cpu_region import (
    Loops,
    by_thread,
    points,
    region_kernel,
    region_phases,
    region_program,
    region_seconds,
    shares,
)
from tests.plan.devices import device
from tests.rammer.checked import check_program

from ..sampling import examples

FOUR = replace(device("avx512"), name="four", units=4, launch_overhead_us=1.0)


def kernel(tasks: int, us: float, units: int = 4) -> RKernel:
    """`tasks` chunks of `us` each."""
    return RKernel("k", (Phase(tasks, us * 1e-6, us * 1e-6),), -(-tasks // units) * us * 1e-6)


def graph_of(*kernels: RKernel) -> DataFlowGraph:
    return DataFlowGraph(tuple(ROperator(f"op{n}", (k,)) for n, k in enumerate(kernels)))


def test_serial_operators_share_the_threads() -> None:
    plan = plan_graph(graph_of(*(kernel(1, 10.0) for _ in range(4))), FOUR)
    (part,) = plan.parts
    assert part.program is not None and part.horizontal
    assert part.seconds == pytest.approx(11e-6) and part.sequential_seconds == pytest.approx(40e-6)
    assert [len(p) for p in part.program.prog] == [1, 1, 1, 1]


def test_what_keeps_all_threads_busy_is_left_alone() -> None:
    plan = plan_graph(graph_of(kernel(8, 100.0), kernel(16, 100.0), kernel(4, 400.0)), FOUR)
    assert all(part.program is None for part in plan.parts) and len(plan.parts) == 3
    assert plan.seconds == plan.sequential_seconds


def test_chunks_without_number_are_not_shared_out_one_by_one() -> None:
    """Elementwise loops of an odd length: each element is an iteration of the parallel loop."""
    plan = plan_graph(graph_of(*(kernel(10_007, 1e-2) for _ in range(4)), kernel(1, 10.0), kernel(1, 10.0)), FOUR)
    together = [part for part in plan.parts if part.program is not None]
    assert len(plan.parts) == 5 and [[o for o, _ in part.kernels] for part in together] == [["op4", "op5"]]
    assert sum("10007 chunks leave no thread idle" in reason for p in plan.parts for reason in p.reasons) == 4


def test_an_operator_of_three_chunks_takes_a_fourth_along() -> None:
    """Full ones stay by themselves although the wave is the same."""
    plan = plan_graph(graph_of(kernel(3, 50.0), kernel(4, 50.0), kernel(1, 50.0), kernel(4, 50.0)), FOUR)
    fused = [part for part in plan.parts if part.program]
    assert [[o for o, _ in part.kernels] for part in fused] == [["op0", "op2"]]
    assert fused[0].seconds == pytest.approx(51e-6)


def test_readers_are_in_later_regions() -> None:
    one = (kernel(1, 10.0),)
    graph = DataFlowGraph((ROperator("a", one), ROperator("b", one), ROperator("c", one, ("a",)),
                           ROperator("d", one, ("a", "b"))))
    plan = plan_graph(graph, FOUR)
    assert [[o for o, _ in p.kernels] for p in plan.parts] == [["a", "b"], ["c", "d"]]
    assert plan.launches == 2 and "worker threads" in explain_fusion(plan)


def test_phases_are_regions_one_after_the_other() -> None:
    two = RKernel("k", (Phase(2, 5e-6, 5e-6), Phase(1, 3e-6, 3e-6)), 8e-6)
    plan = plan_graph(graph_of(two, two), FOUR)
    (part,) = plan.parts
    assert part.program is not None and part.launches == 2 and not part.horizontal
    assert part.seconds == pytest.approx((1 + 5 + 1 + 3) * 1e-6) == pytest.approx(region_seconds([two, two], FOUR))
    check_program(part.program, Dependences(graph_of(two, two)))


@st.composite
def cpu_graphs(draw: st.DrawFn) -> DataFlowGraph:
    operators = []
    for n in range(draw(st.integers(1, 8))):
        inputs = draw(st.lists(st.integers(0, n - 1), max_size=2, unique=True)) if n else []
        phases = tuple(Phase(draw(st.integers(1, 9)), us, us) for us in
                       draw(st.lists(st.floats(1e-7, 1e-4), min_size=1, max_size=2)))
        alone = sum(-(-p.tasks // FOUR.units) * p.alone_seconds for p in phases)
        operators.append(ROperator(f"op{n}", (RKernel("k", phases, alone),), tuple(f"op{i}" for i in inputs),
                                   draw(st.integers(1, 100))))
    return DataFlowGraph(tuple(operators))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(cpu_graphs())
def test_every_plan(graph: DataFlowGraph) -> None:
    plan = plan_graph(graph, FOUR)
    done: set[str] = set()
    for part in plan.parts:
        names = {o for o, _ in part.kernels}
        assert all({e.producer for e in graph.by_name[n].inputs} <= done for n in names)  # of one wave
        done |= names
        assert part.seconds <= part.sequential_seconds
        if part.program:
            check_program(part.program, Dependences(graph))
            assert simulate(part.program).makespan == part.seconds
    assert done == set(graph.by_name)
    assert plan.peak_bytes <= plan.limit_bytes
    assert FusionPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(1e-7, 1e-4)), min_size=1, max_size=4), st.integers(1, 5))
@settings(max_examples=examples(60), deadline=None)
def test_shares_lose_nothing(work: list[tuple[int, float]], threads: int) -> None:
    given_ = shares(work, threads)
    assert [sum(counts[n] for _, counts in given_) for n in range(len(work))] == [tasks for tasks, _ in work]
    for seconds, counts in given_:
        assert seconds == pytest.approx(sum(c * s for c, (_, s) in zip(counts, work, strict=True)))
    longest = max((s for t, s in work if t), default=0.0)
    assert max(s for s, _ in given_) <= sum(t * s for t, s in work) / threads + longest + 1e-12  # as list scheduling


def test_rKernels_of_the_planner() -> None:
    """A product of few rows leaves threads idle, one of many does not."""
    small, large = matmul(m=1, n=80, k=1024), matmul(m=512, n=512, k=512)
    for expression, gains in ((small, True), (large, False)):
        one = roperator("a", expression, FOUR, top=1)
        graph = DataFlowGraph((one, ROperator("b", one.kernels)))
        each = [-(-p.tasks // 4) * p.alone_seconds for p in one.fastest.phases]
        assert one.fastest.seconds == pytest.approx(sum(each))
        assert any(p.program for p in plan_graph(graph, FOUR).parts) == gains


# -- loops, in classes that are named as TIR's and hold what is read of them ------------------------


class Extent(int):
    value = property(int)


class Loop(SimpleNamespace):
    """A For loop over a body; `threads` shares it out."""

    def __init__(self, extent, body, threads: bool = False) -> None:
        extent = Extent(extent) if isinstance(extent, int) else extent
        super().__init__(extent=extent, body=body, kind=int(threads), loop_var=SimpleNamespace(dtype="int64"))


For = type("For", (Loop,), {})
STORE = type("BufferStore", (SimpleNamespace,), {})()
SeqStmt, IfThenElse = (type(name, (SimpleNamespace,), {}) for name in ("SeqStmt", "IfThenElse"))
Other = type("While", (SimpleNamespace,), {})


class Thread(int):
    """A thread's number, with which an expression is its value."""

    def astype(self, kind: str) -> int:
        return int(self)


def tir_of(thread: int) -> SimpleNamespace:
    """TIR as thread number `thread` executes it: a statement is the list of nests that it runs."""
    return SimpleNamespace(
        Var=lambda name, kind: Thread(thread), const=lambda value, kind: value,
        Select=lambda condition, yes, no: yes if condition else no, SeqStmt=lambda lists: sum(lists, []),
        IfThenElse=lambda condition, nest, other: [(nest, 0, 1)] if condition else [],
        For=lambda var, low, extent, kind, body: (extent, body), ForKind=SimpleNamespace(PARALLEL="parallel"),
    )  # fmt: skip


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6) | st.tuples(
    st.integers(0, 9), st.integers(-3, 3), st.integers(1, 6)).map(lambda t: [t[0] + n * t[1] for n in range(t[2])]))
def test_a_threads_value_is_its_own(values: list[int]) -> None:
    for kind in ("int32", "int64"):
        assert [by_thread(values, Thread(n), kind, tir_of(n)) for n in range(len(values))] == values


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 3))
@settings(max_examples=examples(40), deadline=None)
def test_regions_run_every_iteration_once(extents: list[int], phases: int) -> None:
    """An operator of one iteration is a serial nest: a thread has all of it."""
    nests = {f"op{n}": tuple(For(e, STORE, threads=e > 1) for _ in range(1 + n % phases))
             for n, e in enumerate(extents)}  # fmt: skip
    chosen = tuple((name, RKernel("k", tuple(Phase(loop.extent.value, 1e-6, 1e-6) for loop in own), 1e-6 * len(own)))
                   for name, own in nests.items())  # fmt: skip
    program = region_program(chosen, FOUR)

    def ranged(nest, start, extent):
        return [(nest, start, extent)]

    runs = [region_phases(nests, program, tir_of(thread), ranged) for thread in range(program.device.veus)]
    for phase in range(max(map(len, nests.values()))):
        assert {threads for run in runs for threads, _ in run[phase : phase + 1]} == {program.device.veus}
        for own in nests.values():
            ran = [n for run in runs for nest, start, extent in run[phase][1] for n in range(start, start + extent)
                   if phase < len(own) and nest is own[phase]]  # fmt: skip
            assert sorted(ran) == (list(range(own[phase].extent.value)) if phase < len(own) else [])


def test_a_nests_time_is_its_share_of_the_statements_on_its_busiest_thread() -> None:
    seconds = 51e-6
    # Six iterations of 10 statements on 4 threads: two rounds, 20 of them in a row; then 30 on one thread. Of 51 us
    # one is the launch of the loop that threads share; 50 us for 50 statements.
    branches = IfThenElse(then_case=For(30, STORE), else_case=For(20, STORE))
    kernel_ = region_kernel([For(6, For(10, STORE), threads=True), branches], seconds, FOUR)
    assert [(p.tasks, pytest.approx(p.alone_seconds)) for p in kernel_.phases] == [(6, 10e-6), (1, 30e-6)]
    assert kernel_.seconds == pytest.approx(50e-6)
    assert region_kernel([], seconds, FOUR).phases == (Phase(1, seconds, seconds),)
    assert points(SeqStmt(seq=[STORE, For(SimpleNamespace(), For(7, STORE)), For(1, STORE)])) == 1 + 7 + 1


@pytest.mark.parametrize(("statement", "told"), [
    (Other(), "expected a loop, found a While"),
    (For(2, For(3, STORE, threads=True)), "one of its parallel loops is not the outermost"),
    (For(2, For(3, STORE, threads=True), threads=True), "one of its parallel loops is not the outermost"),
    (IfThenElse(then_case=STORE, else_case=For(3, STORE, threads=True)), "parallel loops is not the outermost"),
    (For(SimpleNamespace(), STORE, threads=True), "the extent of its parallel loop is not a number"),
    (SeqStmt(seq=[]), "it computes nothing"),
])  # fmt: skip
def test_loops_that_cannot_be_shared_out(statement, told: str) -> None:
    with pytest.raises(UnsupportedOperator, match=told):
        Loops.of(statement, "op")
    shared = For(3, For(SimpleNamespace(), STORE), threads=True)
    assert Loops.of(SeqStmt(seq=[STORE, shared]), "op").nests == (STORE, shared)
