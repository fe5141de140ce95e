"""Tiles of open extents, of which the last begins early: right kernels are proven, wrong ones are not."""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("islpy")
pytestmark = pytest.mark.relax
if not hasattr(tvm, "tirx"):
    pytest.skip("written in the Relax line's script", allow_module_level=True)

from tvm.script import tirx as T  # noqa: E402

from roller_tvm.relax.begins import with_begins  # noqa: E402
from roller_tvm.relax.proving import loops_of, prove  # noqa: E402
from roller_tvm.schedules.proofs import prove_lowered  # noqa: E402
from roller_tvm.schedules.proofs.cases import Sizes  # noqa: E402

TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
#: Sizes of a kernel with tiles of 16.
ONE_TILE = ("n <= 1000", "16 <= n")


def answer(func, original, checks=ONE_TILE):
    return prove(func, original, TARGET, checks=checks).answer


@T.prim_func(s_tir=True)
def copied(a: T.handle, b: T.handle):
    n = T.int64()
    x = T.match_buffer(a, (n,))
    y = T.match_buffer(b, (n,))
    for i in range(n):
        with T.sblock("y"):
            v = T.axis.spatial(n, i)
            y[v] = x[v]


def tiled(
    blocks=lambda n: (n + 15) // 16,
    begin=lambda b, n: T.min(b * 16, n - 16),
    at=lambda i, s, n: i,
    to=lambda i, s, n: i,
):
    """Return the copy by tiles: their number, begins, and the places that are read and written."""

    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(a: T.handle, b: T.handle):
        n = T.int64()
        x = T.match_buffer(a, (n,))
        y = T.match_buffer(b, (n,))
        for block in T.thread_binding(blocks(n), thread="blockIdx.x"):
            for t in T.thread_binding(T.int64(16), thread="threadIdx.x"):
                with T.sblock("y"):
                    v = T.axis.spatial(16, t)
                    y[to(v + begin(block, n), begin(block, n), n)] = x[at(v + begin(block, n), begin(block, n), n)]

    return func


def is_begin(s, n):
    return T.Or(s % 16 == 0, s == n - 16)


def test_a_last_tile_that_begins_early_is_proven():
    own, begins = with_begins(loops_of(tiled(), TARGET))
    assert len(begins) == 1 and "begin" in str(own)
    assert answer(tiled(), copied) == "proven"


def test_begins_between_those_that_there_are_do_not_refute():
    elsewhere = tiled(at=lambda i, s, n: T.if_then_else(is_begin(s, n), i, T.int64(0)))
    outside = tiled(at=lambda i, s, n: T.if_then_else(is_begin(s, n), i, i - n))
    assert answer(elsewhere, copied) != "refuted"
    assert answer(outside, copied) != "refuted"


@pytest.mark.parametrize("wrong", [
    tiled(blocks=lambda n: n // 16), tiled(blocks=lambda n: n // 16 + 1, begin=lambda b, n: T.min(b * 16, n - 17)),
    tiled(begin=lambda b, n: T.min(b * 17, n - 16)), tiled(begin=lambda b, n: T.min(b * 16, n - 15)),
    tiled(begin=lambda b, n: T.min(b * 16 - 1, n - 16)),
    tiled(at=lambda i, s, n: T.if_then_else(s % 16 == 0, i, T.max(i - 1, 0))),
    tiled(at=lambda i, s, n: T.if_then_else(s == n - 16, n - 1, i)), tiled(at=lambda i, s, n: i - s),
    tiled(to=lambda i, s, n: T.if_then_else(s == 32, T.int64(0), i)), tiled(to=lambda i, s, n: T.max(i - 1, 0)),
], ids=["one less", "one short", "gaps", "past the end", "before the first", "last tile", "end", "places", "one begin",
        "written elsewhere"])  # fmt: skip
def test_wrong_tiles_are_refuted(wrong):
    assert answer(wrong, copied) == "refuted"


@T.prim_func(s_tir=True)
def summed(a: T.handle, b: T.handle):
    n = T.int64()
    x = T.match_buffer(a, (n, 32))
    y = T.match_buffer(b, (n,))
    for i, k in T.grid(n, 32):
        with T.sblock("y"):
            v, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[v] = T.float32(0)
            y[v] = y[v] + x[v, vk]


def in_parts(
    term=lambda p, q, s, n: p * 8 + q,
    blocks=lambda n: (n + 15) // 16,
    parts=4,
    begin=lambda b, n: T.min(b * 16, n - 16),
):
    """Return the sums by way of parts in global memory: the term of a part, the blocks, and the parts to add."""

    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(a: T.handle, b: T.handle):
        n = T.int64()
        x = T.match_buffer(a, (n, 32))
        y = T.match_buffer(b, (n,))
        rf = T.alloc_buffer((4, n), "float32")
        for block in T.thread_binding(blocks(n), thread="blockIdx.x"):
            for t in T.thread_binding(T.int64(16), thread="threadIdx.x"):
                with T.sblock("kernel"):
                    T.reads()
                    T.writes()
                    local = T.alloc_buffer((4, 16), "float32", scope="local")
                    for p in range(T.int64(4)):
                        with T.sblock("y_rf_init"):
                            vp, v = T.axis.remap("SS", [p, t])
                            local[vp, v] = T.float32(0)
                        for q in range(T.int64(8)):
                            with T.sblock("y_rf_update"):
                                vp, v, vq = T.axis.remap("SSR", [p, t, q])
                                local[vp, v] = local[vp, v] + x[v + begin(block, n), term(vp, vq, begin(block, n), n)]
                        with T.sblock("rf"):
                            vp, v = T.axis.remap("SS", [p, t])
                            rf[vp, v + begin(block, n)] = local[vp, v]
        for i in T.thread_binding(n, thread="blockIdx.x"):
            for _ in T.thread_binding(T.int64(1), thread="threadIdx.x"):
                with T.sblock("y_init"):
                    v = T.axis.spatial(n, i)
                    y[v] = T.float32(0)
                for p in range(T.int64(parts)):
                    with T.sblock("y_update"):
                        v, vp = T.axis.remap("SR", [i, p])
                        y[v] = y[v] + rf[vp, v]

    return func


def test_parts_that_several_blocks_write_alike_are_proven():
    assert answer(in_parts(), summed) == "proven"


@pytest.mark.parametrize("wrong", [
    in_parts(lambda p, q, s, n: T.if_then_else(s % 16 == 0, p, 3 - p) * 8 + q),
    in_parts(lambda p, q, s, n: p * 8 + T.if_then_else(s % 16 == 0, q, T.int64(0))),
    in_parts(lambda p, q, s, n: p * 8 + T.max(q, 1)), in_parts(blocks=lambda n: n // 16), in_parts(parts=3),
    in_parts(begin=lambda b, n: T.min(b * 17, n - 16)),
], ids=["parts of others", "terms of others", "a term twice", "one block less", "one part less", "gaps"])  # fmt: skip
def test_wrong_parts_are_not_proven(wrong):
    assert answer(wrong, summed) != "proven"


def turned(waits=True, at=lambda t, s, n: t, last=15):
    """Return each tile's copy by way of shared memory, in which another thread reads."""

    @T.prim_func(s_tir=True)
    def func(a: T.handle, b: T.handle):
        n = T.int64()
        x = T.match_buffer(a, (n,))
        y = T.match_buffer(b, (n,))
        block = T.launch_thread("blockIdx.x", (n + 15) // 16)
        own = T.alloc_buffer((16,), "float32", scope="shared")
        t = T.launch_thread("threadIdx.x", 16)
        own[15 - t] = x[T.min(block * 16, n - 16) + at(T.int64(t), T.min(block * 16, n - 16), n)]
        if waits:
            T.evaluate(T.tvm_storage_sync("shared"))
        y[T.min(block * 16, n - 16) + last - t] = own[t]

    return func


def of_lowered(func):
    own, begins = with_begins(func)
    assert begins
    return prove_lowered(
        func, loops_of(copied, tvm.target.Target("llvm")), sizes=Sizes(rules=ONE_TILE), begun=(own, begins)
    ).answer


def test_tiles_in_shared_memory():
    assert of_lowered(turned()) == "proven"
    assert of_lowered(turned(waits=False)) == "refuted"
    assert of_lowered(turned(at=lambda t, s, n: T.if_then_else(s == 48, T.int64(0), t))) == "refuted"


def in_turns(first, second, at=lambda i, n: i):
    """Return tiles of 16 and blocks of one element, each for some sizes; the tiles take other places."""

    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(a: T.handle, b: T.handle):
        n = T.int64()
        x = T.match_buffer(a, (n,))
        y = T.match_buffer(b, (n,))
        for _ in range(T.Cast("int64", first(n))):
            for block in T.thread_binding((n + 15) // 16, thread="blockIdx.x"):
                for t in T.thread_binding(T.int64(16), thread="threadIdx.x"):
                    with T.sblock("y"):
                        v = T.axis.spatial(16, t)
                        y[v + T.min(block * 16, n - 16)] = x[at(v + T.min(block * 16, n - 16), n)]
        for _ in range(T.Cast("int64", second(n))):
            for block in T.thread_binding(n, thread="blockIdx.x"):
                with T.sblock("y"):
                    v = T.axis.spatial(n, block)
                    y[v] = x[v]

    return func


def some(n):
    return T.Or(T.And(n >= 16, n < 20), n >= 40)


def others(n):
    return T.And(T.Or(n < 16, n >= 20), n < 40)


@pytest.mark.parametrize("right", [
    in_turns(some, others), in_turns(some, others, lambda i, n: T.if_then_else(n == 25, T.int64(0), i)),
], ids=["for all", "but for sizes of the other"])  # fmt: skip
def test_sizes_in_ranges_are_not_refuted(right):
    assert answer(right, copied, ()) == "proven"


@pytest.mark.parametrize("wrong", [
    in_turns(lambda n: T.Or(T.And(n >= 15, n < 20), n >= 40), others),
    in_turns(some, lambda n: T.And(T.Or(n < 16, n >= 21), n < 40)),
    in_turns(some, others, lambda i, n: T.if_then_else(n == 45, T.int64(0), i)),
    in_turns(some, others, lambda i, n: T.if_then_else(n == 17, i - 1, i)),
], ids=["less than a tile", "none for a size", "one size", "outside"])  # fmt: skip
def test_wrong_sizes_in_ranges_are_not_proven(wrong):
    assert answer(wrong, copied, ()) != "proven"


def test_blocks_that_are_used_otherwise_stay():
    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(a: T.handle, b: T.handle):
        n = T.int64()
        x = T.match_buffer(a, (n,))
        y = T.match_buffer(b, (n,))
        block = T.launch_thread("blockIdx.x", (n + 15) // 16)
        t = T.launch_thread("threadIdx.x", 16)
        y[T.min(block * 16, n - 16) + t] = x[T.if_then_else(block == 1, T.int64(0), T.min(block * 16, n - 16) + t)]

    assert with_begins(func) == (func, {})
