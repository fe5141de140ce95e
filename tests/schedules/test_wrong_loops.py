"""Loops that compute something else than they seem to: none is proven, and none that is right is refuted."""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("islpy")
pytestmark = pytest.mark.te

NEW = hasattr(tvm, "tirx")
if NEW:
    from tvm.script import tirx as T

    script = T.prim_func(s_tir=True)
else:
    from tvm.script import tir as T

    script = T.prim_func

from roller_tvm.schedules.proofs import prove_lowered  # noqa: E402


@script
def copied(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")):
    for i in range(16):
        y[i] = x[i]


@script
def square(x: T.Buffer((4, 4), "float32"), y: T.Buffer((4, 4), "float32")):
    for i in range(4):
        for j in range(4):
            y[i, j] = x[i, j]


if NEW:
    @script
    def named_before(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")):
        for i in range(16):
            y[i] = x[0]
            first = T.bind(y[i])
            y[i] = x[i]
            y[i] = first

    @script
    def named(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")):
        for i in range(16):
            own = T.bind(x[i])
            y[i] = own

    @script
    def stepped(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")):
        for i in T.serial(0, 16, step=2):
            y[i] = x[i]
else:
    @script
    def named_before(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")):
        for i in range(16):
            y[i] = x[0]
            first: T.float32 = y[i]
            y[i] = x[i]
            y[i] = first

    @script
    def named(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")):
        for i in range(16):
            own: T.float32 = x[i]
            y[i] = own

    @script
    def stepped(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")):
        for i in range(8):
            y[i * 2] = x[i * 2]


@script
def by_columns(whole: T.handle, y: T.Buffer((4, 4), "float32")):
    x = T.match_buffer(whole, (4, 4), "float32", strides=(1, 4))
    for i in range(4):
        for j in range(4):
            y[i, j] = x[i, j]


@script
def from_the_fifth(whole: T.handle, y: T.Buffer((4, 4), "float32")):
    x = T.match_buffer(whole, (4, 4), "float32", elem_offset=4)
    for i in range(4):
        for j in range(4):
            y[i, j] = x[i, j]


@script
def asserted(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")):
    for i in range(16):
        assert i < 8, "too many"
        y[i] = x[i]


@script
def vectors_turned(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")):
    for i in range(4):
        y[T.Ramp(i * 4, 1, 4)] = x[T.Ramp(i * 4 + 3, -1, 4)]


@script
def vectors(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")):
    for i in range(4):
        y[T.Ramp(i * 4, 1, 4)] = x[T.Ramp(i * 4, 1, 4)]


def called(name):
    @script
    def func(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")):
        for i in range(16):
            y[i] = T.call_pure_extern("float32", name, x[i])

    return func


@pytest.mark.parametrize("wrong, right", [
    (named_before, copied), (stepped, copied), (by_columns, square), (from_the_fifth, square), (asserted, copied),
    (vectors_turned, copied), (called("sinf"), called("cosf")),
], ids=["named", "stepped", "by columns", "from the fifth", "asserted", "vectors", "called"])  # fmt: skip
def test_wrong_ones_are_not_proven(wrong, right):
    assert prove_lowered(wrong, right).answer != "proven"


def test_right_ones_are_not_refuted():
    assert prove_lowered(named, copied).answer == "proven"
    assert prove_lowered(called("sinf"), called("sinf")).answer == "proven"
    assert prove_lowered(vectors, copied).answer != "refuted"


def valued(value, once=True):
    """Return loops that give a value of elements of two inputs, or its sums."""

    @script
    def func(x: T.Buffer((16, 4), "float32"), z: T.Buffer((16, 4), "float32"), y: T.Buffer((16,), "float32")):
        for i in range(16):
            y[i] = value(x[i, 0], z[i, 0])

    @script
    def summed(x: T.Buffer((16, 4), "float32"), z: T.Buffer((16, 4), "float32"), y: T.Buffer((16,), "float32")):
        for i in range(16):
            y[i] = T.float32(0)
            for k in range(4):
                y[i] = y[i] + value(x[i, k], z[i, k])

    return func if once else summed


tir = tvm.tirx if NEW else tvm.tir
ONE, NOTHING = tir.const(1, "float32"), tir.const(0, "float32")


@pytest.mark.parametrize("once", [True, False], ids=["once", "summed"])
@pytest.mark.parametrize("value, same", [
    (lambda x, z: x * z + tir.Mul(x, ONE), lambda x, z: x * z + x),
    (lambda x, z: z + tir.Mul(x, NOTHING), lambda x, z: z), (lambda x, z: z + (x - x), lambda x, z: z),
    (lambda x, z: T.max(x, T.max(x, z)), lambda x, z: T.max(x, z)),
], ids=["times one", "times nothing", "a difference", "a maximum"])  # fmt: skip
def test_values_that_are_equal_are_not_refuted(value, same, once):
    assert prove_lowered(valued(value, once), valued(same, once)).answer != "refuted"
    assert prove_lowered(valued(same, once), valued(value, once)).answer != "refuted"
