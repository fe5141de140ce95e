"""Blocks that people write by hand: read as they are, or refused with what is not understood."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.relax

from tvm.script import tirx as T  # noqa: E402

from roller_tvm.codegen.apply_tensorir import apply_steps_tir  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.errors import UnsupportedOperator  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.tir import AlreadyScheduled, read_prim_func  # noqa: E402

TARGET = {"kind": "llvm"}


@T.prim_func(s_tir=True)
def starts_from_a_vector(
    A: T.Buffer((64, 256), "float32"), b: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")
):
    for i, k in T.grid(64, 256):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = b[vi]
            C[vi] = C[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def starts_below_everything(A: T.Buffer((64, 4096), "float32"), C: T.Buffer((64,), "float32")):
    for i, k in T.grid(64, 4096):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32("-inf")
            C[vi] = T.max(C[vi], A[vi, vk])


@T.prim_func(s_tir=True)
def names_a_value(A: T.Buffer((64, 256), "float32"), B: T.Buffer((64, 256), "float32")):
    for i, k in T.grid(64, 256):
        with T.sblock("B"):
            vi, vk = T.axis.remap("SS", [i, k])
            x: T.let[T.float32] = A[vi, vk]
            B[vi, vk] = x * x + x


@T.prim_func(s_tir=True)
def columns_outermost(A: T.Buffer((48, 256), "float32"), B: T.Buffer((48, 256), "float32")):
    for j, i in T.grid(256, 48):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)


@T.prim_func(s_tir=True)
def reduction_in_the_middle(
    A: T.Buffer((48, 64), "float32"), B: T.Buffer((64, 32), "float32"), C: T.Buffer((48, 32), "float32")
):
    for i, k, j in T.grid(48, 64, 32):
        with T.sblock("C"):
            vi, vk, vj = T.axis.remap("SRS", [i, k, j])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@T.prim_func(s_tir=True)
def chosen_by_a_mask(
    A: T.Buffer((65,), "float32"), m: T.Buffer((64,), "int32"), B: T.Buffer((64,), "float32")
):
    for i in range(64):
        with T.sblock("B"):
            vi = T.axis.spatial(64, i)
            B[vi] = A[T.if_then_else(m[vi] > 0, vi, vi + 1)]


@T.prim_func(s_tir=True)
def backwards(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for i in range(64):
        with T.sblock("B"):
            vi = T.axis.spatial(64, i)
            B[63 - vi] = A[vi]


@T.prim_func(s_tir=True)
def turned(A: T.Buffer((8, 16), "float32"), B: T.Buffer((16, 8), "float32")):
    for i, k in T.grid(8, 16):
        with T.sblock("B"):
            vi, vk = T.axis.remap("SS", [i, k])
            B[vk, vi] = A[vi, vk]


@T.prim_func(s_tir=True)
def scan(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for k in range(64):
        with T.sblock("B"):
            vk = T.axis.reduce(64, k)
            with T.init():
                B[0] = T.float32(0)
            B[vk] = B[T.max(vk - 1, 0)] + A[vk]


@T.prim_func(s_tir=True)
def elsewhere(A: T.Buffer((64, 8), "float32"), B: T.Buffer((64,), "float32")):
    for i, k in T.grid(64, 8):
        with T.sblock("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[T.max(vi - 1, 0)] + A[vi, vk]


@T.prim_func(s_tir=True)
def adds_to_what_is_there(A: T.Buffer((64, 8), "float32"), B: T.Buffer((64,), "float32")):
    for i, k in T.grid(64, 8):
        with T.sblock("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            B[vi] = B[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def a_part_of_it(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for i in range(32):
        with T.sblock("B"):
            vi = T.axis.spatial(64, i)
            B[vi] = A[vi]


@T.prim_func(s_tir=True)
def adds_the_other_way_round(A: T.Buffer((64, 256), "float32"), C: T.Buffer((64,), "float32")):
    for i, k in T.grid(64, 256):
        with T.sblock("C"):
            v_i, v_k = T.axis.remap("SR", [i, k])
            with T.init():
                C[v_i] = T.float32(0.0)
            C[v_i] = A[v_i, v_k] + C[v_i]


def reads_of(func):
    return {a.tensor for stage in read_prim_func(func).expression.stages for a in stage.reads}


def arrays_of(func):
    rng = np.random.default_rng(0)
    shapes = [([int(e) for e in p.shape], str(p.dtype)) for p in func.params]
    return [(rng.standard_normal(shape) * 4).astype(dtype) for shape, dtype in shapes]


def run(func, arrays):
    given = [tvm.runtime.tensor(a) for a in arrays]
    tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), TARGET)(*given)
    return given[-1].numpy()


@pytest.mark.parametrize("func", [
    starts_from_a_vector, starts_below_everything, names_a_value, columns_outermost, reduction_in_the_middle,
    chosen_by_a_mask, backwards, turned, adds_the_other_way_round,
], ids=lambda f: str(f.attrs["global_symbol"]))  # fmt: skip
def test_every_plan_computes_what_it_should(func):
    reading, arrays = read_prim_func(func), arrays_of(func)
    arrays[-1][:] = np.nan
    expected = run(func, arrays)
    assert np.isfinite(expected).all()
    for ranked in construct(reading.expression, load_device("cpu"), top=6).plans:
        mod = apply_steps_tir(func, reading, tuple(lower(ranked.plan))).mod
        answer = run(mod["main"], arrays)
        np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-4, err_msg=str(ranked.plan))


def test_what_is_written_in_another_order_is_known():
    """It can be scheduled: each element is computed once. Who reads which tile of it cannot be told from its axes."""
    assert "63 - vi" in read_prim_func(backwards).elsewhere["B"] and read_prim_func(turned).elsewhere
    assert not read_prim_func(columns_outermost).elsewhere


def test_what_a_block_reads_is_all_there():
    assert reads_of(starts_from_a_vector) == {"A", "b"} and reads_of(names_a_value) == {"A"}
    assert reads_of(chosen_by_a_mask) == {"A", "m"}


def test_a_reduction_in_parts_starts_as_tvms_or_is_none():
    """rfactor and threads that reduce together know what TVM starts from, and nothing else."""
    for func in (starts_from_a_vector, starts_below_everything):
        (stage,) = read_prim_func(func).expression.stages
        assert stage.initial
    (stage,) = read_prim_func(reduction_in_the_middle).expression.stages
    assert not stage.initial and stage.combiner == "sum"


@pytest.mark.parametrize("func, told", [
    (scan, "writes B"),
    (elsewhere, "reads another element of 'B'"), (adds_to_what_is_there, "adds to what is there"),
])  # fmt: skip
def test_what_is_not_understood_is_refused(func, told):
    with pytest.raises(UnsupportedOperator, match=told):
        read_prim_func(func)


def test_a_part_of_a_tensor_was_scheduled_by_somebody():
    with pytest.raises(AlreadyScheduled, match="not the whole of axis"):
        read_prim_func(a_part_of_it)


def test_what_tvm_has_no_reducer_for_is_not_shared_by_threads():
    """It knows `C + A`, not `A + C`: the module would not build."""
    reading = read_prim_func(adds_the_other_way_round, name="other")
    (stage,) = reading.expression.stages
    assert stage.combiner == "sum" and stage.initial
    plans = construct(reading.expression, load_device("a100"), top=10).plans
    assert plans and not any("gpu.reduce" in str(p.plan) for p in plans)
