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


def turned(scope="shared", waits="shared", reached=lambda b, t: t >= 0, trips=lambda b, t: 1):
    """Return each block's elements turned round, by way of memory of a scope, with barriers where they are reached."""

    @T.prim_func(s_tir=True)
    def func(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
        b = T.launch_thread("blockIdx.x", 4)
        a = T.alloc_buffer((12,), "float32", scope=scope)
        t = T.launch_thread("threadIdx.x", 12)
        a[t] = x[b * 12 + t]
        for _ in range(trips(b, t)):
            if reached(b, t):
                T.evaluate(T.tvm_storage_sync(waits))
        y[b * 12 + t] = a[11 - t]

    return func


def turned_at(to=lambda b, t: t, at=lambda b, t: t, virtual=1, waits=True):
    """Return the same by places in shared memory, which blocks may choose, written and read by virtual threads."""

    @T.prim_func(s_tir=True)
    def func(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
        b = T.launch_thread("blockIdx.x", 4)
        a = T.alloc_buffer((12,), "float32", scope="shared")
        v = T.launch_thread("vthread.x", virtual)
        t = T.launch_thread("threadIdx.x", 12 // virtual)
        a[to(b, v * (12 // virtual) + t)] = x[b * 12 + v * (12 // virtual) + t]
        if waits:
            T.evaluate(T.tvm_storage_sync("shared"))
        y[b * 12 + v * (12 // virtual) + t] = a[at(b, 11 - (v * (12 // virtual) + t))]

    return func


def in_launches(number):
    """Return blocks that take what those of the launch before wrote, and the launch in which each does."""

    @T.prim_func(s_tir=True)
    def func(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
        for n in range(4):
            b = T.launch_thread("blockIdx.x", 4)
            t = T.launch_thread("threadIdx.x", 12)
            if number(n) == b:
                if b == 0:
                    y[t] = x[t]
                else:
                    y[b * 12 + t] = y[b * 12 - 12 + t]

    return func


@T.prim_func(s_tir=True)
def turned_round(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
    for i in range(48):
        y[i] = x[i // 12 * 12 + 11 - i % 12]


@T.prim_func(s_tir=True)
def of_the_first(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "float32")):
    for i in range(48):
        y[i] = x[i % 12]


@pytest.mark.parametrize("wrong", [
    turned(waits="warp"), turned("local"), turned("warp"), turned(reached=lambda b, t: t < 6),
    turned(reached=lambda b, t: b < 2), turned(reached=lambda b, t: b * 12 + t < 24), turned(trips=lambda b, t: t + 1),
    turned(trips=lambda b, t: b),
], ids=["waits", "local", "warp", "threads", "blocks", "both", "trips by thread", "trips by block"])  # fmt: skip
def test_threads_that_do_not_meet_are_not_proven(wrong):
    assert prove_lowered(wrong, turned_round).answer != "proven"


@pytest.mark.parametrize("right", [
    turned(), turned(reached=lambda b, t: b < 4), turned(reached=lambda b, t: b * 12 + t < 48),
    turned(trips=lambda b, t: b + 1), turned(trips=lambda b, t: t // 12 + 1),
], ids=["always", "blocks", "both", "trips by block", "trips by thread"])  # fmt: skip
def test_threads_that_meet_are_proven(right):
    assert prove_lowered(right, turned_round).answer == "proven"


@pytest.mark.parametrize("right", [
    turned_at(), turned_at(lambda b, t: (t + b) % 12, lambda b, t: (t + b) % 12),
    turned_at(lambda b, t: T.if_then_else(b < 4, t, 0)), turned_at(virtual=2),
], ids=["alike", "moved by the block", "a condition on the block", "virtual threads"])  # fmt: skip
def test_memory_of_each_block_is_proven(right):
    assert prove_lowered(right, turned_round).answer == "proven"


@pytest.mark.parametrize("wrong", [
    turned_at(lambda b, t: T.if_then_else(b == 2, T.min(t, 10), t)), turned_at(lambda b, t: T.min(t, 10)),
    turned_at(at=lambda b, t: T.if_then_else(b == 2, T.max(t, 1), t)),
    turned_at(lambda b, t: T.max(t - b // 3, 0), lambda b, t: t), turned_at(virtual=2, waits=False),
], ids=["one block races", "all race", "one reads another", "one leaves one out", "virtual threads"])  # fmt: skip
def test_memory_of_one_block_that_differs_is_refuted(wrong):
    assert prove_lowered(wrong, turned_round).answer == "refuted"


def test_launches_run_one_after_the_other():
    assert prove_lowered(in_launches(lambda n: n), of_the_first).answer == "proven"
    for wrong in (lambda n: 3 - n, lambda n: n // 2 * 2, lambda n: 0):
        assert prove_lowered(in_launches(wrong), of_the_first).answer == "refuted"


@pytest.mark.parametrize("wrong, right", [
    (with_a_loop_between, copied(48, 48)), (trips_by_block, first_of_each), (truncated, repeated),
    (wrapped, copied(512, 480)),
], ids=["a loop between", "trips by block", "truncated", "wrapped"])  # fmt: skip
def test_wrong_ones_are_not_proven(wrong, right):
    assert prove_lowered(wrong, right).answer != "proven"


def test_right_ones_are_not_refuted():
    assert prove_lowered(trips_by_block, more_of_each).answer != "refuted"
    assert prove_lowered(each_block_once).answer != "refuted"


def in_turns(first, second, at=lambda i: i):
    """Return two launches, each under a condition on the size, of which the second takes other places."""

    @T.prim_func(s_tir=True)
    def func(a: T.handle, b: T.handle):
        n = T.int64()
        x = T.match_buffer(a, (n,))
        y = T.match_buffer(b, (n,))
        for _ in range(T.Cast("int64", first(n))):
            i = T.launch_thread("blockIdx.x", n)
            y[i] = x[i]
        for _ in range(T.Cast("int64", second(n))):
            i = T.launch_thread("blockIdx.x", n)
            y[i] = x[at(i)]

    return func


@T.prim_func(s_tir=True)
def whole(a: T.handle, b: T.handle):
    n = T.int64()
    x = T.match_buffer(a, (n,))
    y = T.match_buffer(b, (n,))
    for i in range(n):
        y[i] = x[i]


def large(n):
    return n >= T.int64(8)


def small(n):
    return n < T.int64(8)


def test_launches_that_each_take_a_turn():
    assert prove_lowered(in_turns(large, small), whole).answer == "proven"
    both = in_turns(large, lambda n: n < T.int64(9))  # a size for which both run
    assert prove_lowered(both, whole).answer == "undecided"


@pytest.mark.parametrize("wrong", [
    in_turns(large, lambda n: n < T.int64(7)), in_turns(large, small, lambda i: T.max(i - T.int64(1), T.int64(0))),
    in_turns(large, lambda n: n < T.int64(9), lambda i: T.int64(0)), in_turns(large, large),
], ids=["none for a size", "another place", "the first again", "none of the small ones"])  # fmt: skip
def test_wrong_launches_that_each_take_a_turn_are_not_proven(wrong):
    assert prove_lowered(wrong, whole).answer != "proven"


def through(scope, blocks):
    """Return the copy of twelve elements by way of memory from outside of two launches, of a block each or of none."""

    @T.prim_func(s_tir=True, check_well_formed=False)
    def of_blocks(x: T.Buffer((12,), "float32"), y: T.Buffer((12,), "float32")):
        a = T.alloc_buffer((12,), "float32", scope=scope)
        for _ in range(1):
            b = T.launch_thread("blockIdx.x", 1)
            t = T.launch_thread("threadIdx.x", 12)
            a[b * 12 + t] = x[b * 12 + t]
        for _ in range(1):
            b = T.launch_thread("blockIdx.x", 1)
            t = T.launch_thread("threadIdx.x", 12)
            y[b * 12 + t] = a[b * 12 + t]

    @T.prim_func(s_tir=True, check_well_formed=False)
    def of_threads(x: T.Buffer((12,), "float32"), y: T.Buffer((12,), "float32")):
        a = T.alloc_buffer((12,), "float32", scope=scope)
        for _ in range(1):
            t = T.launch_thread("threadIdx.x", 12)
            a[t] = x[t]
        for _ in range(1):
            t = T.launch_thread("threadIdx.x", 12)
            y[t] = a[t]

    return of_blocks if blocks else of_threads


def in_one_launch(trips):
    """Return the same in one launch without blocks, whose trips on the host write and read."""

    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(x: T.Buffer((12,), "float32"), y: T.Buffer((12,), "float32")):
        a = T.alloc_buffer((12,), "float32", scope="shared")
        for n in range(trips):
            t = T.launch_thread("threadIdx.x", 12)
            if n == 0:
                a[t] = x[t]
            if n == trips - 1:
                y[t] = a[t]

    return func


@pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "threads"])
@pytest.mark.parametrize("scope", ["shared", "shared.dyn", "local", "warp", "wmma.accumulator"])
def test_memory_of_blocks_and_threads_does_not_outlive_a_launch(scope, blocks):
    proof = prove_lowered(through(scope, blocks), copied(12, 12))
    assert proof.answer == "undecided" and "has a place outside of them: a" in str(proof)
    assert prove_lowered(through("global", blocks), copied(12, 12)).answer == "proven"


def test_one_launch_without_blocks_may_have_shared_memory_from_outside():
    assert prove_lowered(in_one_launch(1), copied(12, 12)).answer == "proven"
    assert prove_lowered(in_one_launch(2), copied(12, 12)).answer == "undecided"
