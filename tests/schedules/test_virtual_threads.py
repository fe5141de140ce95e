"""Virtual threads, which TVM writes out one after the other: proven where this is the same as threads side by side."""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("islpy")
pytestmark = pytest.mark.relax
if not hasattr(tvm, "tirx"):
    pytest.skip("written in the Relax line's script", allow_module_level=True)

from tvm.script import tirx as T  # noqa: E402

from roller_tvm.schedules.proofs import prove_lowered  # noqa: E402

from .test_wrong_launches import turned_round  # noqa: E402


def within(holds=lambda b, v: b < 4, begin=lambda v: 0, end=lambda v: 1, tag="vthread.x", threads=lambda v: 6):
    """Return blocks that turn their elements round, all of it under a condition and in a loop."""

    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
        b = T.launch_thread("blockIdx.x", 4)
        a = T.alloc_buffer((12,), "float32", scope="shared")
        v = T.launch_thread(tag, 2)
        t = T.launch_thread("threadIdx.x", threads(v))
        if holds(b, v):
            for _ in range(begin(v), end(v)):
                a[v * 6 + t] = x[b * 12 + v * 6 + t]
                T.evaluate(T.tvm_storage_sync("shared"))
                y[b * 12 + v * 6 + t] = a[11 - (v * 6 + t)]

    return func


def named(late):
    """Return the same by a name, which is there before the barrier or after it."""

    @T.prim_func(s_tir=True, check_well_formed=False)
    def early(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
        b = T.launch_thread("blockIdx.x", 4)
        a = T.alloc_buffer((12,), "float32", scope="shared")
        v = T.launch_thread("vthread.x", 2)
        t = T.launch_thread("threadIdx.x", 6)
        i: T.let = v * 6 + t
        a[i] = x[b * 12 + i]
        T.evaluate(T.tvm_storage_sync("shared"))
        y[b * 12 + i] = a[11 - i]

    @T.prim_func(s_tir=True, check_well_formed=False)
    def after(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
        b = T.launch_thread("blockIdx.x", 4)
        a = T.alloc_buffer((12,), "float32", scope="shared")
        v = T.launch_thread("vthread.x", 2)
        t = T.launch_thread("threadIdx.x", 6)
        a[v * 6 + t] = x[b * 12 + v * 6 + t]
        T.evaluate(T.tvm_storage_sync("shared"))
        i: T.let = v * 6 + t
        y[b * 12 + i] = a[11 - i]

    return after if late else early


@T.prim_func(s_tir=True, check_well_formed=False)
def by_a_name(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
    b = T.launch_thread("blockIdx.x", 4)
    a = T.alloc_buffer((12,), "float32", scope="shared")
    v = T.launch_thread("vthread.x", 2)
    t = T.launch_thread("threadIdx.x", 6)
    twice: T.let = v * 2
    if b < 4:
        if twice > 2:
            y[b * 12] = x[b * 12]
        else:
            a[v * 6 + t] = x[b * 12 + v * 6 + t]
            T.evaluate(T.tvm_storage_sync("shared"))
            y[b * 12 + v * 6 + t] = a[11 - (v * 6 + t)]


def of_two(holds):
    """Return the same of virtual threads along two axes."""

    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
        b = T.launch_thread("blockIdx.x", 4)
        a = T.alloc_buffer((12,), "float32", scope="shared")
        v = T.launch_thread("vthread.x", 2)
        w = T.launch_thread("vthread.y", 2)
        t = T.launch_thread("threadIdx.x", 3)
        if holds(v, w):
            a[v * 6 + w * 3 + t] = x[b * 12 + v * 6 + w * 3 + t]
            T.evaluate(T.tvm_storage_sync("shared"))
            y[b * 12 + v * 6 + w * 3 + t] = a[11 - (v * 6 + w * 3 + t)]

    return func


@T.prim_func(s_tir=True, check_well_formed=False)
def trips_of_trips(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
    b = T.launch_thread("blockIdx.x", 4)
    a = T.alloc_buffer((12,), "float32", scope="shared")
    v = T.launch_thread("vthread.x", 2)
    t = T.launch_thread("threadIdx.x", 6)
    for k in range(v // 2 + 1):
        for _ in range(k + 1):
            a[v * 6 + t] = x[b * 12 + v * 6 + t]
            T.evaluate(T.tvm_storage_sync("shared"))
            y[b * 12 + v * 6 + t] = a[11 - (v * 6 + t)]


@pytest.mark.parametrize("right", [
    within(), named(True), of_two(lambda v, w: T.bool(True)),
], ids=["a condition on the block", "a name after the barrier", "two axes"])  # fmt: skip
def test_barriers_of_all_virtual_threads_are_proven(right):
    assert prove_lowered(right, turned_round).answer == "proven"


@pytest.mark.parametrize("wrong", [
    within(lambda b, v: v < 2), within(lambda b, v: b + v < 9), within(end=lambda v: v // 2 + 1),
    within(begin=lambda v: v // 2), within(end=lambda v: T.Cast("int32", v < 2)),
    within(lambda b, v: v < 2, tag="cthread"), within(threads=lambda v: v // 2 + 6), named(False), by_a_name,
    of_two(lambda v, w: v < 2), of_two(lambda v, w: w < 2), of_two(lambda v, w: v + w < 4), trips_of_trips,
], ids=["a condition", "and the block", "trips", "first trip", "a trip where", "cthread", "threads", "a name",
        "otherwise", "outer axis", "inner axis", "both axes", "trips of trips"])  # fmt: skip
def test_barriers_of_one_virtual_thread_after_the_other_are_not_proven(wrong):
    proof = prove_lowered(wrong, turned_round)
    assert proof.answer == "undecided" and "names a virtual thread" in str(proof)


def by_registers(holds):
    """Return neighbours exchanged by memory of a thread, which its virtual threads share."""

    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
        b = T.launch_thread("blockIdx.x", 4)
        t = T.launch_thread("threadIdx.x", 6)
        a = T.alloc_buffer((2,), "float32", scope="local")
        v = T.launch_thread("vthread.x", 2)
        if holds(t, v):
            a[v] = x[b * 12 + t * 2 + v]
            y[b * 12 + t * 2 + v] = a[1 - v]

    return func


@T.prim_func(s_tir=True)
def exchanged(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
    for i in range(48):
        y[i] = x[i // 2 * 2 + 1 - i % 2]


def test_memory_of_a_thread_and_its_virtual_threads():
    assert prove_lowered(by_registers(lambda t, v: t < 6), exchanged).answer == "proven"
    assert prove_lowered(by_registers(lambda t, v: v < 2), exchanged).answer == "undecided"


def tile_within(tells=lambda v, k: k):
    """Return the blocks turned round by a tile that is allocated among the virtual threads."""

    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
        b = T.launch_thread("blockIdx.x", 4)
        v = T.launch_thread("vthread.x", 2)
        a = T.alloc_buffer((12,), "float32", scope="shared")
        t = T.launch_thread("threadIdx.x", 6)
        for k in range(2):
            a[tells(v, k) * 6 + t] = x[b * 12 + tells(v, k) * 6 + t]
        T.evaluate(T.tvm_storage_sync("shared"))
        y[b * 12 + v * 6 + t] = a[11 - (v * 6 + t)]

    return func


def test_a_tile_among_virtual_threads_is_theirs_if_none_tells_its_places():
    assert prove_lowered(tile_within(), turned_round).answer == "proven"
    assert prove_lowered(tile_within(lambda v, k: v), turned_round).answer == "undecided"


@T.prim_func(s_tir=True)
def first_or_second(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
    for i in range(48):
        y[i] = x[i % 2]


@T.prim_func(s_tir=True, check_well_formed=False)
def one_register(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
    b = T.launch_thread("blockIdx.x", 4)
    t = T.launch_thread("threadIdx.x", 6)
    v = T.launch_thread("vthread.x", 2)
    a = T.alloc_buffer((1,), "float32", scope="local")
    if v == 0:
        a[0] = x[0]
    else:
        a[0] = x[1]
    y[b * 12 + t * 2 + v] = a[0]


def test_memory_that_no_value_tells_apart_is_one():
    assert prove_lowered(one_register, first_or_second).answer == "undecided"


@T.prim_func(s_tir=True)
def sums_of_one(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
    for i in range(48):
        y[i] = T.float32(0)
        for _ in range(1):
            if i % 12 < 6:
                y[i] = y[i] + x[i]


@T.prim_func(s_tir=True, check_well_formed=False)
def added_again(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
    b = T.launch_thread("blockIdx.x", 4)
    v = T.launch_thread("vthread.x", 2)
    t = T.launch_thread("threadIdx.x", 6)
    y[b * 12 + v * 6 + t] = T.float32(0)
    y[b * 12 + t] = y[b * 12 + t] + x[b * 12 + t]


def test_each_virtual_thread_adds():
    assert prove_lowered(added_again, sums_of_one).answer == "undecided"
