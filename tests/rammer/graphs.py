"""Random graphs of rOperators."""

from __future__ import annotations

from hypothesis import strategies as st

from roller_tvm.rammer import DataFlowGraph, Edge, Phase, RKernel, ROperator


@st.composite
def phases(draw: st.DrawFn) -> Phase:
    unit = draw(st.floats(0, 2e-5))
    return Phase(
        draw(st.integers(1, 40)), unit * draw(st.floats(1, 4)), unit, draw(st.sampled_from([1, 32, 96, 256, 1024])),
        draw(st.integers(8, 64)), draw(st.sampled_from([0, 512, 16384, 49152])),
    )  # fmt: skip


@st.composite
def kernels(draw: st.DrawFn, name: str) -> RKernel:
    parts = tuple(draw(st.lists(phases(), min_size=1, max_size=3)))
    # By itself a kernel is no faster than its rTasks; the device runs many at a time.
    return RKernel(name, parts, sum(p.alone_seconds for p in parts) * draw(st.floats(1, 5)))


@st.composite
def graphs(draw: st.DrawFn, most: int = 9) -> DataFlowGraph:
    operators = []
    for n in range(draw(st.integers(1, most))):
        inputs = draw(st.lists(st.integers(0, n - 1), max_size=3, unique=True)) if n else []
        names = [f"k{i}" for i in range(draw(st.integers(1, 3)))]
        made = tuple(draw(kernels(name)) for name in names)
        operators.append(ROperator(f"op{n}", made, tuple(Edge(f"in{i}", f"op{i}") for i in inputs)))
    return DataFlowGraph(tuple(draw(st.permutations(operators))))
