"""The fusion of a graph of calls, without TVM: sizes that nobody knows, rKernels and parts without code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roller_tvm.device import load_device
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.ir.operators import matmul
from roller_tvm.rammer import Phase, RKernel, plan_graph
from roller_tvm.rammer.cuda_functions import CannotFuse
from roller_tvm.rammer.functions import Call, Functions, Planned, call_graph
from roller_tvm.rammer.fuse import CallGraph, Fuser, Region
from roller_tvm.rammer.makers import Maker
from roller_tvm.rammer.memory import MemoryRule
from roller_tvm.rammer.rkernels import planned_rkernels

V100 = load_device("v100")
GIB, MIB = 1 << 30, 1 << 20


class Known(Functions):
    """Functions that are names; 'odd' cannot be planned."""

    def digest(self, func):
        return hash(func)

    def same(self, func, other):
        return func == other

    def read(self, func, name):
        if func == "odd":
            raise UnsupportedOperator("no such loops", name)
        kernels = tuple(RKernel(f"plan {n}", (Phase(40, 5e-6 + n * 1e-6, 5e-6),), 5e-6 + n * 1e-6) for n in range(2))
        return Planned(func, ("", ""), kernels)


class Names(Maker):
    """Makes the names of a part's operators; `without` have no code."""

    def __init__(self, without=(), most=9):
        super().__init__(Known(V100))
        self.without, self.most, self.residents = without, most, []

    def plan(self, graph, kept, resident, apart):
        self.residents.append(resident)
        return plan_graph(graph, self.device, "best", "stream", kept, resident)

    def check(self, call, kernel):
        if (call.func, kernel.name) in self.without:
            raise CannotFuse(f"{kernel.name} spills", call.name)

    def make(self, symbol, part, calls, kept):
        if len(calls) > self.most:
            raise CannotFuse(f"{len(calls)} operators", symbol)
        return [call.name for call in calls]


def graph(*calls, size=4, **others):
    sizes = {t: size for call in calls for t in call.tensors} | others
    read = {t for call in calls for t in call.reads}
    return CallGraph(calls, frozenset(t for c in calls for t in c.writes if t not in read), sizes)


def branches(count):
    return [Call(f"c{n}", f"f{n}", ("x", f"y{n}")) for n in range(count)]


def test_tensors_of_unknown_size_take_half_of_what_is_left():
    """They are no longer 0 bytes, which would let a plan fill a device that is full."""
    maker, calls = Names(), branches(2)
    capacity = V100.far.capacity_bytes
    Fuser(graph(*calls), maker).run()
    Fuser(graph(*calls, x=None), maker).run()
    Fuser(replace(graph(*calls, x=GIB), elsewhere=(None, GIB)), maker).run()
    assert maker.residents == [4, capacity // 2, 2 * GIB + (capacity - 2 * GIB) // 2]
    assert Region("r", (), frozenset(), (2 * capacity, None)).resident_bytes(capacity) == 2 * capacity


def test_less_memory_left_is_a_smaller_limit():
    """Two results of 1 GiB; the cache has 6 MiB."""
    made = call_graph(branches(2), Known(V100), {"y0": GIB, "y1": GIB})
    capacity = 3 * GIB + 4 * MIB
    small = replace(V100, levels=(replace(V100.far, capacity_bytes=capacity), *V100.levels[1:]))
    limits = [MemoryRule.of(made, small, (), Region("r", (), frozenset(), sizes).resident_bytes(capacity)).limit_bytes
              for sizes in ((), (GIB,), (None,), (GIB, None))]  # fmt: skip
    assert limits == [2 * GIB + 6 * MIB, 2 * GIB + 4 * MIB, 2 * GIB, 2 * GIB]


def test_results_of_unknown_size_are_refused_by_name():
    with pytest.raises(UnsupportedOperator, match="c0: the size of its results is known only at run time"):
        call_graph(branches(1), Known(V100), {"x": 4, "y0": None})
    fuser = Fuser(graph(*branches(1), y0=None), Names())
    assert fuser.run() == [] and "known only at run time" in dict(fuser.outside)[".0"]


def test_results_between_steps_are_alive():
    """c1 runs after 'odd', which stays outside; y0, which it reads then, is alive meanwhile, z from then on."""
    a, odd, b = Call("c0", "f0", ("x", "y0")), Call("o", "odd", ("y0", "z")), Call("c1", "f1", ("z", "y1"))
    c = Call("c2", "f2", ("y0", "y2"))
    fuser = Fuser(graph(a, odd, b, c, x=1, y0=10, z=100), Names())
    assert [[call.name for call in r.calls] for r in fuser.regions] == [["c0", "c2"], ["c1"]]
    assert [sum(r.resident) for r in fuser.regions] == [1, 1 + 100]
    assert fuser.outside == {"o": "no such loops"}


def test_rkernels_without_code_are_given_up_and_named():
    fuser = Fuser(graph(*branches(3)), Names({("f0", "plan 0")}))
    (region,) = fuser.run()
    assert region.refused == ("c0: plan 0 spills",) and not fuser.outside
    assert dict(region.plan.parts[0].kernels)["c0"].name == "plan 1"
    fuser = Fuser(graph(*branches(3)), Names({("f0", "plan 0"), ("f0", "plan 1")}))
    (region,) = fuser.run()
    assert fuser.outside == {"c0": "none of its plans has code: plan 1 spills"}
    assert [o for part in region.plan.parts for o, _ in part.kernels] == ["c1", "c2"]
    assert region.refused == ("c0: plan 0 spills", "c0: plan 1 spills")


@pytest.mark.parametrize("most, made", [(9, [["c0", "c1", "c2", "c3"]]), (2, [["c0", "c1"], ["c2", "c3"]]), (0, [])])
def test_a_part_without_code_is_halved_until_its_operators_stay(most, made):
    fuser = Fuser(graph(*branches(4)), Names(most=most), {"rtasks_0"})
    (region,) = fuser.run()
    assert [one.made for one in fuser.fused] == made
    assert [one.symbol for one in fuser.fused] == [f"rtasks_{n + 1}" for n in range(len(made))]
    assert sorted(o for part in region.plan.parts for o, _ in part.kernels) == ["c0", "c1", "c2", "c3"]
    assert len(region.functions) == len(region.plan.parts)
    assert bool(region.refused) == (most < 4)


def test_plans_say_how_many_bytes_their_calls_write() -> None:
    """64 x 48 results of four bytes, whatever the graph knows of sizes."""
    class OfPlans(Known):
        def read(self, func, name):
            return Planned(func, ("A", "matmul"), planned_rkernels(matmul(m=64, n=48, k=32), V100, 2))

    (made,) = call_graph(branches(1), OfPlans(V100), {"x": 4, "y0": None}).operators
    assert made.buffer_bytes == 64 * 48 * 4
