"""Kernels of open extents that no proof decides are executed at sizes that their model takes."""

import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax, te  # noqa: E402
from tvm.script import tirx as T  # noqa: E402

from roller_check.open_kernels import check_open  # noqa: E402
from roller_tvm.errors import RollerError, WrongAnswer  # noqa: E402
from roller_tvm.relax import proving  # noqa: E402
from roller_tvm.relax.pipeline import prepare, schedule  # noqa: E402
from roller_tvm.relax.proving import prove_module  # noqa: E402
from roller_tvm.relax.size_checks import with_bounds  # noqa: E402
from roller_tvm.schedules.proofs import prove  # noqa: E402

from ..plan.devices import device  # noqa: E402
from .networks import LLVM, module, values  # noqa: E402
from .test_open_proofs import kernels, var  # noqa: E402

CHECKS = ["1 <= n", "n <= 40"]


def one(body):
    """Return the one kernel of a model of open rows, scheduled, and before."""
    (found,) = kernels(module(body, (var(), 24)))
    return found


def product(factor=1.0):
    return one(lambda b, x: b.emit(relax.op.matmul(x, relax.const(factor * values(24, 96)))))


def test_smallest_sizes_some_between_and_the_largest_are_executed():
    scheduled, plain = product()
    told = check_open(plain, scheduled, CHECKS)
    assert told == "all elements agree with the reference at n=1; n=21; n=40"


def test_a_wrong_kernel_is_told():
    (scheduled, _), (_, plain) = (
        one(lambda b, x, op=op: b.emit(op(x, b.emit(relax.op.nn.relu(x))))) for op in (relax.op.add, relax.op.multiply)
    )
    with pytest.raises(WrongAnswer):
        check_open(plain, scheduled, CHECKS)


def test_sizes_that_no_model_has_are_not_executed():
    scheduled, plain = product()
    with pytest.raises(RollerError, match="sizes are open"):
        check_open(plain, scheduled, ["n <= 0"])


def test_what_no_proof_decides_is_executed(monkeypatch):
    for limit in ("FIRST", "OPERATIONS"):
        monkeypatch.setattr(prove, limit, 1)
    monkeypatch.setattr(proving, "_proof", proving._proof.__wrapped__)  # nothing remembered
    mod = with_bounds(module(lambda b, x: b.emit(relax.op.nn.softmax(x)), (var(), 24)), {"n": (1, 40)}, {})
    before = prepare(mod, LLVM)
    after = schedule(before, LLVM)[0]
    told = prove_module(before, after, tvm.target.Target(LLVM), device("avx512"))["softmax"]
    assert "undecided" in told and "all elements agree with the reference at n=1; n=21; n=40" in told


@pytest.mark.parametrize("checks, told", [
    (["m + n <= 100"], "m=1, n=1; m=26, n=25; m=50, n=50"),
    (["m + n <= 100", "n <= 20"], "m=1, n=1; m=41, n=20; m=80, n=20"),
    (["m + n >= 200", "m <= 120", "n <= 120"], "m=100, n=100; m=110, n=109; m=120, n=120"),
    (["m + n >= 200"], "m=100, n=100; m=228, n=227; m=355, n=355"),
    (["m == n", "n <= 9"], "m=1, n=1; m=5, n=5; m=9, n=9"),
    (["m >= n + 64", "m <= 90"], "m=90, n=1"),
    (["m % 32 == 0", "n <= 3"], "m=32, n=1; m=160, n=3; m=256, n=3"),
])  # fmt: skip
def test_sizes_meet_checks_of_several(checks, told):
    m, n = te.var("m", "int64"), te.var("n", "int64")
    x = te.placeholder((m, n), name="x")
    func = te.create_prim_func([x, te.compute((m, n), lambda i, j: x[i, j] * 2, name="twice")])
    assert check_open(func, func, checks) == f"all elements agree with the reference at {told}"


@pytest.mark.parametrize("checks", [["n >= 5000"], ["m + n >= 10000"]])
def test_sizes_that_are_too_large_are_not_executed(checks):
    m, n = te.var("m", "int64"), te.var("n", "int64")
    x = te.placeholder((m, n), name="x")
    func = te.create_prim_func([x, te.compute((m, n), lambda i, j: x[i, j] * 2, name="twice")])
    with pytest.raises(RollerError, match=f"none that were tried meet {checks[0].replace('+', '.')}"):
        check_open(func, func, checks)


def reduced(dtype, op, start, first):
    """Return the sums, or maxima, of rows, with or without their start."""

    @T.prim_func(s_tir=True)
    def func(px: T.handle, pa: T.handle):
        n = T.int64()
        x = T.match_buffer(px, (n, 16), dtype)
        a = T.match_buffer(pa, (n,), dtype)
        for i, k in T.grid(n, 16):
            with T.sblock("a"):
                vi, vk = T.axis.remap("SR", [i, k])
                if first:
                    with T.init():
                        a[vi] = start
                a[vi] = op(a[vi], x[vi, vk])

    return func


REDUCED = [
    ("float32", lambda a, b: a + b, T.float32(0)),
    ("float32", T.max, T.float32(-3.4e38)),
    ("float32", T.min, T.float32(3.4e38)),
    ("int32", lambda a, b: a + b, T.int32(0)),
    ("int32", T.max, T.int32(-(2**31))),
    ("int32", T.min, T.int32(2**31 - 1)),
]


@pytest.mark.parametrize("dtype, op, start", REDUCED)
def test_a_reduction_without_its_start_is_told(dtype, op, start):
    func = reduced(dtype, op, start, True)
    assert "all elements agree" in check_open(func, func, ())
    with pytest.raises(WrongAnswer):
        check_open(func, reduced(dtype, op, start, False), ())


def test_an_element_that_is_not_written_is_told():
    """Zeros of a ReLU."""

    @T.prim_func(s_tir=True)
    def lacking(px: T.handle, pa: T.handle):
        n = T.int64()
        x = T.match_buffer(px, (n,), "float32")
        a = T.match_buffer(pa, (n,), "float32")
        for i in range(n):
            if x[i] > T.float32(0):
                with T.sblock("a"):
                    vi = T.axis.spatial(n, i)
                    a[vi] = x[vi]

    n = te.var("n", "int64")
    x = te.placeholder((n,), name="x")
    relu = te.create_prim_func([x, te.compute((n,), lambda i: te.max(x[i], 0.0), name="relu")])
    with pytest.raises(WrongAnswer):
        check_open(relu, lacking, ())
