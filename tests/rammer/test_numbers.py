"""Golden numbers of rTask fusion: what a block with branches is planned to take, by each policy on each kind of device.

A constant, a comparison or a sign that changes in the cost of waits, waves, memory or side-by-side regions shows here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from roller_tvm.ir.operators import parse_operator
from roller_tvm.rammer import (
    DataFlowGraph,
    Edge,
    FusionPlan,
    Phase,
    RKernel,
    ROperator,
    draw,
    plan_graph,
    roperator,
    simulate,
)
from tests.plan.devices import device

# An Inception block, a sum that is split, and dense layers: operator, parameters, the operators whose results it reads.
BLOCK = """
stem     conv2d_nchw n=1 c=16 h=16 w=16 f=32 k=3 padding=1 relu=1
one      conv2d_nchw n=1 c=32 h=16 w=16 f=32 k=1                          < stem
three_a  conv2d_nchw n=1 c=32 h=16 w=16 f=16 k=1 bias=1                   < stem
three_b  conv2d_nchw n=1 c=16 h=16 w=16 f=32 k=3 padding=1 relu=1         < three_a
pool     max_pool2d_nchw n=1 c=32 h=16 w=16 k=3 stride=1 padding=1        < stem
pooled   conv2d_nchw n=1 c=32 h=16 w=16 f=16 k=1                          < pool
sum      reduce_sum shape=32x256 axis=1                                   < one
gate     dense m=1 n=64 k=2048
heads    batch_matmul b=4 m=32 n=32 k=64
mixed    softmax shape=128x32                                             < heads
added    add shape=1x64 other=1x64                                        < gate
""".strip()
ON = ("v100", "a100", "mi50", "avx512")


@cache
def block(on: str) -> DataFlowGraph:
    operators = []
    for number, line in enumerate(BLOCK.splitlines()):
        words, _, read = line.partition("<")
        name, *words = words.split()
        made = roperator(name, parse_operator(words), device(on), top=2)
        edges = tuple(Edge(made.kernels[0].plan.expression.inputs[0].name, producer) for producer in read.split())
        operators.append(ROperator(name, made.kernels, edges, buffer_bytes=(number % 4 + 1) << 14))
    return DataFlowGraph(tuple(operators))


def numbers(plan: FusionPlan) -> str:
    lines = [f"  {plan.launches} of {plan.sequential_launches} launches, {plan.seconds * 1e6:.6g} of "
             f"{plan.sequential_seconds * 1e6:.6g} us, {plan.peak_bytes} of {plan.limit_bytes} B"]  # fmt: skip
    for part in plan.parts:
        names = " ".join(f"{name}:{kernel.name.replace(' ', '_')}" for name, kernel in part.kernels)
        lines.append(f"    {names} {part.seconds * 1e6:.6g} of {part.sequential_seconds * 1e6:.6g} us")
        if part.program:
            p, busy = part.program, simulate(part.program).busy(part.program.device.veus)
            lines.append(
                f"      {p.tasks} rTasks, {p.barriers} barriers on {p.used} of {p.device.veus} vEUs ({busy:.4g})"
            )
    return "\n".join(lines)


@pytest.mark.parametrize("on", ON)
def test_numbers_of_a_block(golden, on: str) -> None:
    policies = ("best",) if on == "avx512" else ("wavefront", "front", "list", "horizontal", "best")
    told = [f"{policy}, {launch}\n{numbers(plan_graph(block(on), device(on), policy, launch, kept=('one',)))}"
            for policy in policies for launch in ("stream", "graph")]  # fmt: skip
    golden(f"block_{on}", "\n".join(told) + "\n")


@pytest.mark.parametrize("on", ["v100", "avx512"])
def test_numbers_of_rkernels(golden, on: str) -> None:
    """What an rTask of each plan takes, and which elements it writes."""
    lines = []
    for operator in block(on).operators:
        for kernel in operator.kernels:
            lines.append(f"{operator.name} {kernel.name}: {kernel.seconds * 1e6:.6g} us, work {kernel.work * 1e6:.6g}")
            lines += [f"  {p} share {p.unit_seconds * 1e6:.6g} us, {p.resident} resident, {p.tiling}"
                      for p in kernel.phases]  # fmt: skip
    golden(f"rkernels_{on}", "\n".join(lines) + "\n")


def test_numbers_of_a_drawing(golden) -> None:
    """Two operators whose rTasks fill the device once and a half, and one that waits for both."""
    kernels = [RKernel("k", (Phase(tasks, us * 1e-6, us * 2e-7, 256, 32),), us * 1e-6) for tasks, us in
               ((30, 5.0), (12, 9.0), (6, 3.0))]  # fmt: skip
    edges = ((), (), (Edge("x", "op0"), Edge("y", "op1")))
    graph = DataFlowGraph(tuple(ROperator(f"op{n}", (k,), edges[n]) for n, k in enumerate(kernels)))
    small = replace(device("v100"), name="small", units=4)
    plan = plan_graph(graph, small, "list")
    assert plan.launches == 1 and plan.parts[0].program
    golden("drawing", draw(plan, small))
