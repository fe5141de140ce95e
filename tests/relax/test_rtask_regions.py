"""Scheduled CPU functions merged into one parallel region, against the functions one by one."""

from dataclasses import replace

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.relax

from tvm import te  # noqa: E402

from roller_tvm.rammer.functions import Call  # noqa: E402
from roller_tvm.relax.candidates import make_candidates  # noqa: E402
from roller_tvm.relax.rtask_regions import CpuRegions, ScheduledFunctions  # noqa: E402
from roller_tvm.te import te_operator  # noqa: E402
from roller_tvm.tir.nodes import parameters  # noqa: E402
from tests.plan.devices import device  # noqa: E402
from tests.rammer.calls import fuse_calls  # noqa: E402

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})
# Not the CPU that is here: what pays would follow from what was measured of it.
FOUR = replace(device("avx2"), name="four", units=4, launch_overhead_us=0.1)
SECONDS = {}  # predicted of each function


def call(name, operator, tensors, index="int32", **params):
    tensors_ = te_operator(operator, **params)
    func = te.create_prim_func(tensors_, index_dtype_override="int64") if index == "int64" else \
        te.create_prim_func(tensors_)
    candidate, schedule = next(make_candidates(func, FOUR, 3).schedules())
    SECONDS[name] = candidate.ranked.seconds
    return Call(name, schedule.mod["main"].with_attr("tirx.is_scheduled", True), tensors, function=name)


def merge(calls):
    """Return the report, and each part with what it became."""
    sizes = {t: 4 * int(np.prod(s)) for one in calls for t, s in shapes(one).items()}
    (region,), fused = fuse_calls(calls, CpuRegions(ScheduledFunctions(FOUR, SECONDS)), sizes=sizes)
    made = {one.symbol: one.made for one in fused}
    return region, [(part, made.get(name)) for part, name in zip(region.plan.parts, region.functions, strict=True)]


def shapes(one: Call):
    return {t: tuple(int(e) for e in p.shape) for t, p in zip(one.tensors, parameters(one.func), strict=True)}


def run(func, tensors, values):
    built = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), TARGET)
    arrays = {t: tvm.runtime.tensor(values[t]) for t in dict.fromkeys(tensors)}
    built(*(arrays[t] for t in tensors))
    for t in tensors:
        values[t] = arrays[t].numpy()


def check(calls, steps):
    rng = np.random.default_rng(0)
    known = {t: s for one in calls for t, s in shapes(one).items()}
    written = [t for one in calls for t in one.writes]
    values = {t: rng.standard_normal(s).astype("float32") for t, s in known.items()}
    for t in written:
        values[t][:] = np.nan
    expected = {t: v.copy() for t, v in values.items()}
    for one in calls:
        run(one.func, one.tensors, expected)
    by_name = {one.name: one for one in calls}
    for part, made in steps:
        if made is None:
            for name, _ in part.kernels:
                run(by_name[name].func, by_name[name].tensors, values)
        else:
            run(made.func, (*made.reads, *made.writes), values)
    for t in written:
        assert np.array_equal(values[t], expected[t]), t  # the same arithmetic in the same order


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_branches_of_unequal_loops(index):
    """A convolution of two nests, a product, a softmax that is serial, one function called twice."""
    calls = [
        call("conv", "conv2d_nchw", ("x", "w", "a"), index, n=1, c=8, h=9, w=9, f=8, kh=3, kw=3, padding=1),
        call("dense", "dense", ("y", "v", "b"), index, m=1, n=48, k=32),
        call("soft", "softmax", ("z", "c"), index, shape=(3, 40)),
        call("pool", "max_pool2d_nchw", ("x", "d"), index, n=1, c=8, h=9, w=9, kh=3, kw=3),
    ]
    calls.append(replace(calls[1], name="again", tensors=("y", "u", "e")))
    region, steps = merge(calls)
    assert not region.refused
    made = [m for _, m in steps if m is not None]
    assert made and sum(len(m.writes) for m in made) >= 3
    assert str(made[0].func).count("T.parallel(4)") == max(len(k.phases) for k in [
        k for p, m in steps if m is made[0] for _, k in p.kernels])
    check(calls, steps)


def test_a_reader_comes_later():
    calls = [call(n, "dense", ("x", f"w{n}", n), m=1, n=48, k=64) for n in ("q", "k", "v")]
    calls.append(call("sum", "add", ("q", "k", "s"), shape=(1, 48), other=(1, 48)))
    calls.append(call("twice", "add", ("v", "q", "t"), shape=(1, 48), other=(1, 48)))
    _, steps = merge(calls)
    order = [[o for o, _ in part.kernels] for part, _ in steps]
    assert sorted(order[0]) == ["k", "q", "v"] and steps[0][1] is not None
    check(calls, steps)


def test_full_ones_are_left_alone():
    large = call("a", "matmul", ("x", "w", "a"), m=512, n=512, k=256)
    _, steps = merge([large, replace(large, name="b", tensors=("x", "v", "b"))])
    assert [m for _, m in steps] == [None, None]


def test_a_loop_that_is_parallel_inside_is_refused_by_name():
    one = call("odd", "relu", ("x", "y"), shape=(8, 16))
    schedule = tvm.s_tir.Schedule(te.create_prim_func(te_operator("relu", shape=(8, 16))))
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    schedule.parallel(schedule.get_loops(block)[-1])
    odd = replace(one, func=schedule.mod["main"].with_attr("tirx.is_scheduled", True))
    region, steps = merge([odd, replace(odd, name="other", tensors=("x", "z"))])
    assert [m for _, m in steps] == [None, None]
    assert region.refused[0].startswith("odd: one of its parallel loops is not the outermost")
