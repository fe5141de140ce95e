"""Forms of TE that topi and Relay produce, and those that cannot be planned."""

import json
import sys

import pytest

pytestmark = pytest.mark.te
te = pytest.importorskip("tvm.te")

import tvm  # noqa: E402
from tvm import topi  # noqa: E402

from roller_tvm.errors import UnsupportedOperator  # noqa: E402
from roller_tvm.ir import TensorExpression  # noqa: E402
from roller_tvm.ir.pattern import pattern  # noqa: E402
from roller_tvm.te import read_te  # noqa: E402
from roller_tvm.te.body import StageReader  # noqa: E402

tir = tvm.tir if hasattr(tvm, "tir") else tvm.tirx
X = te.placeholder((6, 8), name="x")
Y = te.placeholder((6, 8), name="y")


def reads(tensor, stage=None):
    expression = read_te(tensor).expression
    return [str(a) for a in (expression.stage(stage) if stage else expression.output).reads]


def test_names_are_kept_and_made_unique():
    out = topi.add(topi.add(topi.add(X, Y), Y), X)
    reading = read_te([out])
    assert list(reading.ops) == ["T_add", "T_add_1", "T_add_2"]
    assert list(reading.tensors) == ["x", "y"]
    assert reading.ops["T_add_2"].same_as(out.op)
    assert reading.tensors["y"].op.same_as(Y.op)
    assert reading.expression.stage("T_add_1").reads[0].tensor == "T_add"
    assert sorted(reading.positions.values()) == list(range(5))


def test_axes_with_one_name_are_told_apart():
    import_names = te.compute((6, 8), lambda i, i_: X[i, i_], name="c")
    reading = read_te(import_names)
    assert list(reading.axes["c"]) == [v.var.name for v in import_names.op.axis]
    k1, k2 = te.reduce_axis((0, 6), "k"), te.reduce_axis((0, 8), "k")
    total = te.compute((1,), lambda i: te.sum(X[k1, k2], axis=[k1, k2]), name="total")
    reading = read_te(total)
    assert list(reading.axes["total"].values())[1:] == [("k",), ("k_1",)]
    assert reads(total) == ["x[k, k_1]"]


def test_guards():
    padded = te.compute((8, 8), lambda i, j: tvm.te.if_then_else(i >= 2, X[i - 2, j], 0.0), name="pad")
    assert read_te(padded).expression.output.reads[0].guarded
    always = te.compute((6, 8), lambda i, j: tvm.te.if_then_else(i < 6, X[i, j], 0.0), name="same")
    assert not read_te(always).expression.output.reads[0].guarded


def test_concatenation_and_broadcast():
    assert sorted(reads(topi.concatenate([X, Y], 0))) == ["x[ax0, ax1]?", "y[ax0 - 6, ax1]?"]
    row = te.placeholder((1, 8), name="row")
    assert reads(topi.multiply(X, row)) == ["x[ax0, ax1]", "row[0, ax1]"]


def test_reshape_and_layout_transforms_are_affine():
    assert reads(topi.reshape(X, (3, 2, 8))) == ["x[2*ax0 + ax1, ax2]"]
    assert reads(topi.reshape(X, (48,))) == ["x[ax0.o, ax0.i]"]
    image = te.placeholder((1, 32, 4, 4), name="image")
    blocked = topi.layout_transform(image, "NCHW", "NCHW16c")
    assert reads(blocked) == ["image[ax0, 16*ax1 + ax4, ax2, ax3]"]
    reading = read_te(topi.layout_transform(blocked, "NCHW16c", "NCHW"))
    assert reading.expression.output.shape == (1, 32, 4, 4)
    (composed,) = reading.expression.resolve(reading.expression.output, [next(iter(reading.ops))])
    assert str(composed) == "image[ax0, 16*ax1.o + ax1.i, ax2, ax3]"


def test_gathers_read_their_indices_and_the_whole_dimension():
    rows = te.placeholder((5,), name="rows", dtype="int32")
    expression = read_te(topi.take(X, rows, axis=0)).expression
    assert {str(a) for a in expression.output.reads} == {"rows[ax0]", "x[?, ax1]"}
    assert pattern(expression) == "injective"


def test_what_chooses_an_index_is_read():
    x, mask = te.placeholder((9,), name="x"), te.placeholder((8,), name="mask", dtype="int32")
    for choose in (tir.if_then_else, tir.Select):
        y = te.compute((8,), lambda i: x[choose(mask[i] > 0, i, i + 1)])  # noqa: B023
        assert {a.tensor for a in read_te(y).expression.output.reads} == {"x", "mask"}


def test_round_takes_halves_away_from_zero_and_nearbyint_to_even():
    x = te.placeholder((4,), name="x")

    def at(function):
        y = te.compute((3,), lambda i: x[function(i.astype("float32") * 0.5).astype("int32")])
        ((index,),) = (a.indices for a in read_te(y).expression.output.reads)
        return [(sum(c * n for _, c in index.terms) + index.const) // index.divisor for n in range(3)]

    assert at(tir.round) == [0, 1, 1]  # 0, 0.5, 1
    assert at(tir.nearbyint) == [0, 0, 1]


def test_a_bound_name_is_no_axis():
    x, rows = te.placeholder((8,), name="x"), te.placeholder((8,), name="rows", dtype="int32")

    def chosen(i):
        bound = tir.Var(i.name if hasattr(i, "name") else i.var.name, "int32")
        return tir.Let(bound, rows[i], x[bound])

    found = read_te(te.compute((8,), chosen)).expression.output.reads
    assert sorted(a.tensor for a in found) == ["rows", "x"]
    assert next(a for a in found if a.tensor == "x").indices[0].is_affine is False


def test_expressions_that_are_too_deep_are_refused():
    x = te.placeholder((4000,), name="x")

    def deep(i):
        value = x[i]
        for n in range(3000):
            value = tir.if_then_else(i < n, x[n], value)
        return value

    y, before = te.compute((4000,), deep), sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # TVM's relay raises it
    try:
        with pytest.raises(UnsupportedOperator, match="too deep"):
            read_te(y)
    finally:
        sys.setrecursionlimit(before)


def ops(tensor):
    return dict(read_te(tensor).expression.output.ops)


def test_what_stands_in_an_expression_twice_is_counted_once():
    def twice(i, j):
        return (X[i, j] + 1.0) * (X[i, j] + 1.0) - (X[i, j] + 2.0)

    assert ops(te.compute((6, 8), twice)) == {"add": 3, "mul": 1}
    y = te.compute((6, 8), lambda i, j: tir.exp(X[i, j]) + tir.exp(X[i, j]) * tir.exp(Y[i, j]))
    assert ops(y) == {"exp": 2, "mul": 1, "add": 1}


def test_what_stays_the_same_along_the_innermost_loops_is_not_counted():
    rows, one = te.placeholder((6,), name="rows"), te.placeholder((6, 1), name="one")
    assert ops(te.compute((6, 8), lambda i, j: X[i, j] * tir.sqrt(rows[i] / 3.0 + 1.0))) == {"mul": 1}
    assert ops(te.compute((6, 1), lambda i, j: tir.sqrt(one[i, j]))) == {"sqrt": 1}  # its loop is the first
    assert ops(te.compute((6, 8, 2), lambda i, j, c: tir.exp(X[i, j]))) == {"exp": 1}  # two trips are no loop
    assert ops(te.compute((1,), lambda i: rows[i] * 2.0)) == {"mul": 1}
    k = te.reduce_axis((0, 8), "k")
    assert ops(te.compute((6,), lambda i: te.sum(X[i, k] - rows[i] / 8.0, axis=k))) == {"add": 2}


def test_what_differs_by_the_loop_alone_varies():
    rows, k = te.placeholder((6,), name="rows"), te.reduce_axis((0, 8), "k")
    waves = te.compute((6, 8), lambda i, j: tir.sin(rows[i] * j.astype("float32")))
    assert ops(waves) == {"mul": 1, "special": 1}
    assert ops(te.compute((6,), lambda i: te.sum(tir.exp(rows[i] * k.astype("float32")), axis=k))) == {
        "mul": 1, "exp": 1, "add": 1
    }  # fmt: skip
    assert ops(topi.one_hot(te.placeholder((6,), "int32"), 1.0, 0.0, 8, -1, "float32"))["cmp"] > 0


def test_no_read_is_taken_for_another():
    x = te.placeholder((8,), name="x")
    near = te.compute((6,), lambda i: x[i + 2 + te.const(-1)] * 3.0 + x[i + 2 + te.const(-2)] * 3.0)
    assert sorted(reads(near)) == ["x[i + 1]", "x[i]"] and ops(near) == {"mul": 2, "add": 1}
    a, b = te.compute((8,), lambda i: (x[i] * 2.0, x[i] + 1.0), name="two")
    assert ops(te.compute((8,), lambda i: tir.exp(a[i]) + tir.exp(b[i])))["exp"] == 2
    at = te.placeholder((8,), name="at")

    def gathered(i):
        return x[tir.exp(at[i]).astype("int32")] + tir.exp(at[i])

    assert ops(te.compute((8,), gathered)) == {"exp": 1, "add": 1}  # that of the index is not its work


@pytest.mark.one_line("relax")
def test_many_tensors_are_read_side_by_side():
    parts = [te.placeholder((1, 4), name=f"p{n}") for n in range(256)]
    assert len(read_te(topi.concatenate(parts, 0)).expression.output.reads) == 256


def test_a_select_computes_both_sides_and_an_if_then_else_checks():
    picked = te.compute((6, 8), lambda i, j: tir.Select(X[i, j] > 0.0, X[i, j], Y[i, j]))
    assert reads(picked) == ["x[i, j]", "y[i, j]"] and ops(picked) == {"cmp": 2}
    checked = te.compute((6, 8), lambda i, j: tir.if_then_else(i > 0, X[i - 1, j], 0.0))
    assert reads(checked) == ["x[i - 1, j]?"]


def test_arithmetic_is_counted_by_kind():
    assert ops(topi.tanh(X)) == {"exp": 1} and ops(topi.log(X)) == {"special": 1}
    assert ops(topi.rsqrt(X)) == {"sqrt": 1}
    assert ops(topi.nn.relu(X)) == {"cmp": 1}
    assert ops(topi.cast(X, "float16")) == {"cast": 1}
    assert ops(te.compute((6, 8), lambda i, j: X[i, j] * 2.0 / (Y[i, j] + 1.0) - X[i, j])) == {
        "mul": 1, "div": 1, "add": 2
    }  # fmt: skip
    k = te.reduce_axis((0, 8), "k")
    product = te.compute((6, 6), lambda i, j: te.sum(X[i, k] * Y[j, k], axis=k))
    assert ops(product) == {"fma": 1}
    scaled = te.compute((6, 6), lambda i, j: te.sum(X[i, k] * Y[j, k] * 2.0, axis=k))
    assert ops(scaled) == {"mul": 1, "fma": 1}
    total = te.compute((6,), lambda i: te.sum(X[i, k], axis=k))
    assert ops(total) == {"add": 1}


def test_arithmetic_on_indices_is_free():
    data = te.placeholder((1, 2, 8, 8), name="data")
    average = topi.nn.pool2d(data, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "avg", False, "NCHW", False)
    assert ops(average) == {"div": 1}


@pytest.mark.parametrize(("reduce", "combiner"), [(te.sum, "sum"), (te.max, "max"), (te.min, "min")])
def test_combiners(reduce, combiner):
    k = te.reduce_axis((0, 8), "k")
    assert read_te(te.compute((6,), lambda i: reduce(X[i, k], axis=k))).expression.output.combiner == combiner


def test_combiners_of_ones_own():
    assert read_te(topi.argmax(X, 1)).expression.anchor.combiner == "other"
    product = te.comm_reducer(lambda a, b: a * b, lambda t: tir.const(1, t))
    k = te.reduce_axis((0, 8), "k")
    stage = read_te(te.compute((6,), lambda i: product(X[i, k], axis=k))).expression.output
    assert (stage.combiner, dict(stage.ops)) == ("prod", {"mul": 1})


def test_several_outputs():
    k = te.reduce_axis((0, 8), "k")
    total = te.compute((6,), lambda i: te.sum(X[i, k], axis=k), name="total")
    expression = read_te([X, total, topi.nn.relu(X)]).expression
    assert [s.name for s in expression.outputs] == ["total", "compute"]
    assert expression.anchor_name == "total"


def test_one_computation_with_two_results():
    both = te.compute((6, 8), lambda i, j: (X[i, j] + 1.0, X[i, j] * 2.0), name="both")
    out = te.compute((6, 8), lambda i, j: both[0][i, j] - both[1][i, j], name="out")
    expression = read_te(out).expression
    assert dict(expression.stage("both").ops) == {"add": 1, "mul": 1}
    assert [str(a) for a in expression.output.reads] == ["both[i, j]"]


def test_float16_and_constants():
    a, b = (te.placeholder((8, 8), "float16", name=n) for n in "ab")
    reading = read_te(topi.nn.matmul(a, b), name="half", constants=[b])
    assert {t.name: t.constant for t in reading.expression.inputs} == {"a": False, "b": True}
    assert reading.expression.name == "half"
    assert {t.dtype for t in reading.expression.tensors.values()} == {"float16"}
    assert read_te(topi.nn.matmul(a, b), constants=["a"]).expression.inputs[0].constant
    assert reading.layout_free == ("b",)


@pytest.mark.parametrize(
    "outputs",
    [
        lambda: topi.nn.softmax(X),
        lambda: topi.nn.adaptive_pool(te.placeholder((1, 2, 7, 7)), (3, 3), "avg"),
        lambda: topi.argmax(X, 1),
        lambda: topi.image.resize2d(te.placeholder((1, 2, 5, 5)), [0.0] * 4, (9, 8)),
        lambda: [relu := topi.nn.relu(X), topi.exp(relu)],
    ],
)
def test_what_was_read_round_trips(outputs):
    expression = read_te(outputs()).expression
    assert TensorExpression.from_json(json.loads(json.dumps(expression.to_json()))) == expression


def test_lengths_that_depend_on_the_output():
    stage = read_te(topi.nn.adaptive_pool(te.placeholder((1, 2, 7, 10)), (3, 4), "max")).expression.anchor
    assert stage.uneven == ("ax2", "ax3") and stage.indivisible
    assert [a.extent for a in stage.reduce] == [3, 3]


def test_outputs_that_are_read_are_outputs():
    relu = topi.nn.relu(X)
    exp = topi.exp(relu)
    assert len(read_te([X, relu, exp]).expression.outputs) == 2
    assert len(read_te([X, exp]).expression.outputs) == 1


def test_each_stage_of_a_long_chain_is_read_once(monkeypatch):
    out, walked = X, []
    for _ in range(30):
        out = topi.nn.relu(topi.add(out, Y))
    once = StageReader._walk
    monkeypatch.setattr(StageReader, "_walk", lambda self, *told: walked.append(self.name) or once(self, *told))
    stages = read_te(out).expression.stages
    assert len(stages) == 60 and len(set(walked)) == 60
    assert len(walked) <= 4 * 60  # a sum of two reads, a maximum of one and a constant, and no more


# -- what cannot be planned ---------------------------------------------------------------------


def dynamic():
    n = te.var("n")
    return topi.nn.relu(te.placeholder((n, 8), name="dyn"))


def uneven():
    data = te.placeholder((4, 9), name="d")

    def value(i, j):
        k = te.reduce_axis((0, i + j + 1), "k")
        return te.sum(data[i, k], axis=k)

    return te.compute((4, 4), value, name="both")


def extern():
    return te.extern((6, 8), [X], lambda ins, outs: tir.Evaluate(0), name="black_box", dtype="float32")


def wide():
    return topi.nn.relu(te.placeholder((4,), "float32x4", name="wide"))


def empty():
    return topi.nn.relu(te.placeholder((0, 4), name="none"))


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (dynamic, ["dyn", "dimension 0", "n", "constant"]),
        (uneven, ["both", "'k'", "one output axis"]),
        (extern, ["black_box", "ExternOp"]),
        (wide, ["wide", "float32x4"]),
        (empty, ["none", "0", ">= 1"]),
        (lambda: X, ["nothing is computed"]),
    ],
)
def test_what_cannot_be_planned_says_why(build, names):
    tensor = build()
    with pytest.raises(UnsupportedOperator) as caught:
        read_te(tensor)
    assert caught.value.remedy
    for name in names:
        assert name in str(caught.value)
