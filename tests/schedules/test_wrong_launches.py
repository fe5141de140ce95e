"""Blocks and threads that are no single number: wrong kernels are not proven, right ones are not refuted."""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("islpy")
pytestmark = pytest.mark.relax
if not hasattr(tvm, "tirx"):
    pytest.skip("written in the Relax line's script", allow_module_level=True)

from tvm.script import tirx as T  # noqa: E402

from roller_tvm.schedules.proofs import prove_lowered  # noqa: E402


def copied(size, count):
    """Return the copy of the first elements of a tensor."""

    @T.prim_func(s_tir=True)
    def func(x: T.Buffer((size,), "float32"), y: T.Buffer((count,), "float32")):
        for i in range(count):
            y[i] = x[i]

    return func


@T.prim_func(s_tir=True)
def with_a_loop_between(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
    b = T.launch_thread("blockIdx.x", 4)
    for k in range(48):
        t = T.launch_thread("threadIdx.x", 12)
        y[b * 12 + t] = x[k]


@T.prim_func(s_tir=True)
def first_of_each(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
    for i in range(48):
        y[i] = T.float32(0)
        for k in range(1):
            y[i] = y[i] + x[k]


@T.prim_func(s_tir=True)
def trips_by_block(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
    b = T.launch_thread("blockIdx.x", 4)
    t = T.launch_thread("threadIdx.x", 12)
    y[b * 12 + t] = T.float32(0)
    for k in range(b + 1):
        y[b * 12 + t] = y[b * 12 + t] + x[k]


@T.prim_func(s_tir=True)
def more_of_each(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
    for i in range(48):
        y[i] = T.float32(0)
        for k in range(4):
            if k < i // 12 + 1:
                y[i] = y[i] + x[k]


@T.prim_func(s_tir=True)
def repeated(x: T.Buffer((8,), "float32"), y: T.Buffer((48,), "float32")):
    for i in range(48):
        y[i] = x[i // 12]


@T.prim_func(s_tir=True)
def truncated(x: T.Buffer((8,), "float32"), y: T.Buffer((48,), "float32")):
    b = T.launch_thread("blockIdx.x", 4)
    t = T.launch_thread("threadIdx.x", 12)
    y[b * 12 + t] = x[T.truncdiv(b * 12 + t - 24, 12) + 2]


@T.prim_func(s_tir=True)
def wrapped(x: T.Buffer((512,), "float32"), y: T.Buffer((480,), "float32")):
    b = T.launch_thread("blockIdx.x", 40)
    t = T.launch_thread("threadIdx.x", 12)
    y[b * 12 + t] = x[T.Cast("int32", T.Cast("uint8", b * 12 + t))]


@T.prim_func(s_tir=True)
def each_block_once(x: T.Buffer((48,), "float32"), y: T.Buffer((4,), "float32"), z: T.Buffer((48,), "float32")):
    b = T.launch_thread("blockIdx.x", 4)
    y[b] = x[b]
    t = T.launch_thread("threadIdx.x", 12)
    z[b * 12 + t] = x[b * 12 + t]


@pytest.mark.parametrize("wrong, right", [
    (with_a_loop_between, copied(48, 48)), (trips_by_block, first_of_each), (truncated, repeated),
    (wrapped, copied(512, 480)),
], ids=["a loop between", "trips by block", "truncated", "wrapped"])  # fmt: skip
def test_wrong_ones_are_not_proven(wrong, right):
    assert prove_lowered(wrong, right).answer != "proven"


def test_right_ones_are_not_refuted():
    assert prove_lowered(trips_by_block, more_of_each).answer != "refuted"
    assert prove_lowered(each_block_once).answer != "refuted"
