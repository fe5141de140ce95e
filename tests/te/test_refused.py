"""What TE's line reads and must leave to TVM, because this TVM computes something else once it is scheduled."""

import pytest

pytestmark = pytest.mark.tvm
tvm = pytest.importorskip("tvm")

from tvm import te  # noqa: E402

from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.errors import UnsupportedOperator  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.te.combiners import begins_neutral  # noqa: E402
from roller_tvm.te.read import read_te  # noqa: E402


def mask(compare):
    a = te.placeholder((16, 128), name="a")
    return te.compute((16, 128), lambda i, j: tvm.tir.Select(compare(i, j), a[i, j], 0.0), name="masked")


@pytest.mark.parametrize(
    "compare",
    [lambda i, j: i < j, lambda i, j: j >= i + 1, lambda i, j: 2 * i > j, lambda i, j: tvm.tir.all(i > 2, j <= 3 * i)],
)
def test_a_comparison_of_axes(compare):
    with pytest.raises(UnsupportedOperator, match="compares axes"):
        read_te(mask(compare))


@pytest.mark.parametrize(
    "compare", [lambda i, j: i < 7, lambda i, j: tvm.tir.all(i + j >= 3, j < 100), lambda i, j: tvm.tir.likely(i >= 3)]
)
def test_a_comparison_with_numbers_is_read(compare):
    expression = read_te(mask(compare)).expression
    assert [(r.tensor, [str(i) for i in r.indices]) for r in expression.output.reads] == [("a", ["i", "j"])]
    assert [a.extent for a in expression.output.axes] == [16, 128]


def test_a_comparison_of_elements_is_read():
    a, b = (te.placeholder((16, 128), name=n) for n in "ab")
    kept = te.compute((16, 128), lambda i, j: tvm.tir.Select(a[i, j] < b[i, j], a[i, j], 0.0), name="kept")
    assert read_te(kept).expression.stages


def sums_from(identity):
    return te.comm_reducer(lambda x, y: x + y, lambda dtype: tvm.tir.const(identity, dtype), name="from")


def test_a_sum_that_begins_elsewhere_is_not_split():
    a, k = te.placeholder((16, 256), name="a"), te.reduce_axis((0, 256), name="k")

    def initial(identity):
        total_of = sums_from(identity)
        (stage,) = read_te(te.compute((16,), lambda i: total_of(a[i, k], axis=k), name="total")).expression.stages
        return stage.initial

    assert initial(3) and not initial(0)


def test_what_tvm_s_own_reductions_begin_with_is_neutral():
    k = te.reduce_axis((0, 8), name="k")
    for dtype in ("float32", "float16", "int8", "uint8", "int64"):
        a = te.placeholder((8,), dtype, name="a")
        for reduce, kind in ((te.sum, "sum"), (te.max, "max"), (te.min, "min")):
            assert begins_neutral(reduce(a[k], axis=k).combiner, kind)


def test_several_results_of_which_the_first_is_not_read():
    a, k = te.placeholder((16, 32), name="a"), te.reduce_axis((0, 32), name="k")
    pair = te.comm_reducer(
        lambda x, y: (tvm.tir.Select(x[1] >= y[1], x[0], y[0]), tvm.tir.Select(x[1] >= y[1], x[1], y[1])),
        lambda t, u: (tvm.tir.const(-1, t), tvm.te.min_value(u)), name="argmax",
    )  # fmt: skip
    index, value = te.compute((16,), lambda i: pair((k.var, a[i, k]), axis=k), name="best")
    assert read_te([index, value]).expression.stages
    with pytest.raises(UnsupportedOperator, match="nothing reads the first of its 2 results"):
        read_te(te.compute((16,), lambda i: value[i] * 2, name="twice"))
    assert read_te(te.compute((16,), lambda i: index[i] * 2, name="twice")).expression.stages


def test_rows_of_sums_of_which_a_part_is_read():
    """TVM has memory for that part alone."""
    a, k = te.placeholder((128, 256), name="a"), te.reduce_axis((0, 256), name="k")
    sums = te.compute((128,), lambda i: te.sum(a[i, k], axis=k), name="sums")
    rows = {}
    for count in (127, 128):
        out = te.compute((count, 8), lambda i, j: sums[i] * (j + 1), name="out")
        plans = construct(read_te(out).expression, load_device("v100"), top=10).plans
        programs = [p for plan in plans for p in plan.plan.programs if p.recipe == "gpu.reduce"]
        rows[count] = {p.choice("rows", 1) for p in programs}
    assert rows[127] == {1} and max(rows[128]) > 1


@pytest.mark.parametrize("dtype, shared", [("float32", True), ("float16", True), ("int8", False), ("uint8", False)])
def test_the_place_of_the_largest_of_types_that_lanes_do_not_shuffle(dtype, shared):
    """The first result is an index, which they do."""
    a = te.placeholder((4, 512), dtype, name="a")
    best = tvm.topi.argmax(a, axis=1)
    plans = construct(read_te(best).expression, load_device("v100"), top=10).plans
    assert plans and any("gpu.reduce" in str(p.plan) for p in plans) is shared
