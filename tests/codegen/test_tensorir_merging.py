"""Reductions in lanes that do not divide them: every term is counted, none beyond the row, wherever it is computed."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import s_tir, te  # noqa: E402

from roller_tvm.codegen.apply_tensorir import apply_steps_tir  # noqa: E402
from roller_tvm.codegen.tensorir_merging import Merged, axes_of  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.relax.record_lines import check_replay  # noqa: E402
from roller_tvm.roller.features import Features  # noqa: E402
from roller_tvm.roller.steps import Fuse, Reorder, Split  # noqa: E402
from roller_tvm.tir.read import read_prim_func  # noqa: E402

from ..plan.devices import device  # noqa: E402
from ..tir.test_golden import elements  # noqa: E402

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "core-avx2", "num-cores": 2})


def rows(length=37):
    data = te.placeholder((6, 9, length), name="data")
    k = te.reduce_axis((0, length), name="k")
    return [data, te.compute((6, 9), lambda i, j: te.max(data[i, j, k], axis=k), name="top")]


def several(length=37):
    data = te.placeholder((5, 3, length), name="data")
    r, k = te.reduce_axis((0, 3), name="r"), te.reduce_axis((0, length), name="k")
    return [data, te.compute((5,), lambda i: te.sum(data[i, r, k], axis=[r, k]), name="total")]


def apart(length=37):
    """Terms along two axes with another between."""
    data = te.placeholder((5, 3, 4, length), name="data")
    r, k = te.reduce_axis((0, 3), name="r"), te.reduce_axis((0, length), name="k")
    return [data, te.compute((5, 4), lambda i, j: te.sum(data[i, r, j, k], axis=[r, k]), name="total")]


def shaped(length=37):
    """The result has an axis that the sum has not."""
    data, k = te.placeholder((6, 24, length), name="data"), te.reduce_axis((0, length), name="k")
    total = te.compute((6, 24), lambda i, j: te.sum(data[i, j, k], axis=k), name="total")
    return [data, te.compute((6, 1, 24), lambda i, o, j: total[i, j] + total[i, j], name="out")]


def softmax(length=37):
    data = te.placeholder((4, 9, length), name="data")
    k, r = te.reduce_axis((0, length), name="k"), te.reduce_axis((0, length), name="r")
    top = te.compute((4, 9), lambda i, j: te.max(data[i, j, k], axis=k), name="max")
    power = elements((4, 9, length), lambda *i: te.exp(data[i] - top[i[:2]]), "exp")
    total = te.compute((4, 9), lambda i, j: te.sum(power[i, j, r], axis=r), name="sum")
    return [data, elements((4, 9, length), lambda *i: power[i] / total[i[:2]], "norm")]


def of_numpy(x):
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def plans_of(mod):
    """A plan of each set of recipes, whose lanes do not divide the reduction."""
    reading, cpu = read_prim_func(mod["main"]), device("avx512")
    found = {}
    for one in construct(reading.expression, cpu, 20, Features.of_tensor_ir(cpu)).plans:
        if one.plan.split_reductions:
            found.setdefault(tuple(p.recipe for p in one.plan.programs), one.plan)
    return reading, found


@pytest.mark.parametrize(
    "made, expected",
    [(rows, lambda x: x.max(-1)), (several, lambda x: x.sum((1, 2))), (softmax, of_numpy),
     (apart, lambda x: x.sum((1, 3))), (shaped, lambda x: 2 * x.sum(-1)[:, None])],
)  # fmt: skip
def test_every_term_is_counted_once(made, expected):
    tensors = made()
    func = te.create_prim_func(tensors, index_dtype_override="int64").with_attr("global_symbol", "main")
    mod = tvm.IRModule({"main": func})
    reading, plans = plans_of(mod)
    # What is not of a row shows: each row's numbers are others'.
    shape = [int(n) for n in tensors[0].shape]
    given = np.random.default_rng(0).uniform(-1, 1, shape) + np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    given = given.astype("float32")
    assert plans
    for plan in plans.values():
        schedule = apply_steps_tir(mod, reading, lower(plan))
        check_replay(mod, schedule, TARGET, str(plan))
        out = tvm.runtime.tensor(np.full([int(n) for n in tensors[-1].shape], 77, "float32"))
        tvm.compile(schedule.mod, TARGET)["main"](tvm.runtime.tensor(given), out)
        np.testing.assert_allclose(out.numpy(), expected(given), rtol=1e-5, atol=1e-5, err_msg=str(plan))


def test_sums_are_computed_in_the_loops_of_their_rows():
    func = te.create_prim_func(softmax(4003), index_dtype_override="int64").with_attr("global_symbol", "main")
    mod = tvm.IRModule({"main": func})
    reading, plans = plans_of(mod)
    text = apply_steps_tir(mod, reading, lower(plans["cpu.rows",])).mod["main"].script(show_meta=False)
    assert text.count("T.where") >= 2 and text.count("T.parallel") == 1


def doubled(tensor):
    return lambda *i: tensor[i] + tensor[i]


def nest():
    a, b = (te.placeholder((6, 8, 4), name=name) for name in "ab")
    both = [elements((6, 8, 4), doubled(tensor), f"{tensor.name}2") for tensor in (a, b)]
    schedule = s_tir.Schedule(te.create_prim_func([a, b, *both]))
    return schedule, schedule.get_sblock("a2"), schedule.get_sblock("b2")


def test_loops_are_taken_apart_like_the_others():
    schedule, one, other = nest()
    steps = [
        Split("b2", "i", (2,), ("i.o", "i.i")), Split("b2", "k", (4,), ("k.o", "k.v")),
        Reorder("b2", ("i.o", "j", "k.o", "i.i", "k.v")), Fuse("b2", ("i.o", "j"), "p"),
    ]  # fmt: skip
    i, j, k = schedule.get_loops(other)
    i_o, i_i = schedule.split(i, [None, 2])
    schedule.reorder(i_o, j, i_i)
    loop = schedule.fuse(i_o, j)
    assert axes_of(["p"], steps) == ["i", "j"]
    merged = Merged(schedule, one, ["i", "j"], ["k"])
    merged.follow(steps)
    merged.merge(["p"], loop)
    extents = [int(schedule.get(own).extent) for own in schedule.get_loops(one)]
    assert extents == [24, 2, 1, 4] and merged.names == ["i.i", "j", "k"]


def test_loops_of_other_extents_are_refused():
    schedule, one, other = nest()
    merged = Merged(schedule, one, ["i"], ["j", "k"])
    with pytest.raises(ValueError, match="loops i, j, k cannot be merged with i.o"):
        merged.merge(["i.o"], schedule.get_loops(other)[0])
