"""FoldScales: what is folded, what is left, and that it computes the same."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax, topi  # noqa: E402
from tvm.script import tirx as T  # noqa: E402

from roller_tvm.relax.folding import FoldScales  # noqa: E402

from .modules import answer  # noqa: E402
from .networks import classifier, default, module, operators, values  # noqa: E402

OP = relax.op


def const(*shape, **bounds):
    return relax.const(values(*shape, **bounds))


def check(mod, expected, *shapes):
    """The operators that are left, and the same answers."""
    folded = FoldScales()(mod)
    assert operators(folded) == expected
    inputs = [values(*shape) for shape in shapes]
    for got, wanted in zip(default(folded, *inputs), default(mod, *inputs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_batch_normalisation_and_bias_end_in_the_weights():
    check(classifier(), ["nn.conv2d", "add", "nn.relu", "mean", "matmul"], (1, 3, 12, 12))


@pytest.mark.parametrize(
    ("layout", "kernel", "data", "weight", "constant"),
    [
        ("NCHW", "OIHW", (1, 4, 6, 6), (8, 4, 3, 3), (8, 1, 1)),
        ("NHWC", "OHWI", (1, 6, 6, 4), (8, 3, 3, 4), (8,)),
        ("NHWC", "HWIO", (1, 6, 6, 4), (3, 3, 4, 8), (1, 1, 1, 8)),
    ],
)
def test_chain_of_scales_and_shifts_in_every_layout(layout, kernel, data, weight, constant):
    def body(builder, x):
        y = builder.emit(OP.nn.conv2d(x, const(*weight), data_layout=layout, kernel_layout=kernel))
        for op in (OP.multiply, OP.add, OP.subtract, OP.divide):
            y = builder.emit(op(y, const(*constant, low=0.5, high=1.5)))
        return builder.emit(OP.divide(y, relax.const(3.0)))

    check(module(body, data), ["nn.conv2d", "add"], data)


def test_groups():
    def body(builder, x):
        y = builder.emit(OP.nn.conv2d(x, const(8, 1, 3, 3), groups=8))
        return builder.emit(OP.multiply(const(1, 8, 1, 1), y))

    check(module(body, (1, 8, 6, 6)), ["nn.conv2d"], (1, 8, 6, 6))


def test_a_product_that_something_else_reads_keeps_its_weights():
    def body(builder, x):
        y = builder.emit(OP.matmul(x, const(4, 5)))
        return builder.emit(relax.Tuple([y, builder.emit(OP.multiply(y, const(5)))]))

    check(module(body, (3, 4)), ["matmul", "multiply"], (3, 4))


def test_dropout_is_nothing():
    def body(builder, x):
        y = builder.emit(OP.matmul(x, const(4, 5)))
        y = builder.emit(relax.TupleGetItem(builder.emit(OP.nn.dropout(y, 0.5)), 0))
        return builder.emit(OP.nn.relu(builder.emit(OP.add(y, const(5)))))

    check(module(body, (3, 4)), ["matmul", "add", "nn.relu"], (3, 4))


def test_a_normalisation_without_a_product_is_two_operators():
    parts = [relax.const(values(6, low=0.5, high=1.5)) for _ in range(4)]

    def body(builder, x):
        norm = builder.emit(OP.nn.batch_norm(x, *parts, axis=1, training=False))
        return builder.emit(OP.nn.relu(builder.emit(relax.TupleGetItem(norm, 0))))

    check(module(body, (1, 6, 4, 4)), ["multiply", "add", "nn.relu"], (1, 6, 4, 4))


@pytest.mark.parametrize(
    ("rows", "constant"),
    [(4, (4, 5)), (3, (3, 1)), (1, (4, 5)), (3, (2, 3, 5))],
    ids=["along two axes", "along the rows", "making more rows", "making more dimensions"],
)
def test_constants_that_are_no_scale_of_the_channels_stay(rows, constant):
    def body(builder, x):
        return builder.emit(OP.multiply(builder.emit(OP.matmul(x, const(4, 5))), const(*constant)))

    check(module(body, (rows, 4)), ["matmul", "multiply"], (rows, 4))


def test_division_by_zero_stays_a_division():
    def body(builder, x):
        return builder.emit(OP.divide(builder.emit(OP.matmul(x, const(4, 2))), relax.const(np.array([1.0, 0.0], "f4"))))

    assert operators(FoldScales()(module(body, (3, 4)))) == ["matmul", "divide"]


def test_half_precision_and_integers_are_left_alone():
    def body(builder, x):
        y = builder.emit(OP.matmul(x, relax.const(np.ones((4, 5), "float16"))))
        return builder.emit(OP.multiply(y, relax.const(np.full(5, 3, "float16"))))

    assert operators(FoldScales()(module(body, (3, 4), dtype="float16"))) == ["matmul", "multiply"]

    def whole(builder, x):
        return builder.emit(OP.divide(x, relax.const(2, "int32")))

    assert operators(FoldScales()(module(whole, (8,), dtype="int32"))) == ["divide"]


def test_maximum_left_as_te_becomes_an_operator_with_a_number():
    """As the ONNX importer writes Clip; a function of that name that computes something else stays."""

    def body(builder, x):
        bound = builder.emit(OP.where(builder.emit(OP.isnan(relax.const(0.5))), relax.const(9.0), relax.const(0.5)))
        y = builder.emit_te(topi.maximum, x, bound)
        return builder.emit_te(lambda a, b: topi.add(a, b), y, bound, primfunc_name_hint="minimum")

    check(module(body, (3, 4)), ["maximum", "call_tir"], (3, 4))


def test_a_function_with_branches_is_left_as_it_is():
    from roller_tvm.relax.dynamic import Buckets

    mod = Buckets([2])(classifier(tvm.tirx.Var("n", "int64")))
    folded = FoldScales()(mod)
    assert folded["main"].script() == mod["main"].script()
    assert "nn.batch_norm" not in operators(folded, "main_n2") + operators(folded, "main_any")


def test_extents_that_only_a_run_can_tell():
    """Of NonZero: a tensor of known rank and unknown shape. TVM itself builds none of it without a cast."""

    def body(builder, x):
        found = builder.emit(OP.permute_dims(builder.emit(OP.nonzero(x))))
        y = builder.emit(OP.matmul(builder.emit(OP.astype(found, "float32")), const(2, 8)))
        return builder.emit(OP.multiply(y, const(8)))

    left = ["nonzero", "permute_dims", "astype", "matmul", "multiply"]
    assert operators(FoldScales()(module(body, (4, 5)))) == left


def test_constants_keep_their_type():
    def body(builder, x):
        weights = relax.const(values(4, 5).astype("float64"), "float64")
        return builder.emit(OP.multiply(builder.emit(OP.matmul(x, weights)), relax.const(3.0, "float64")))

    mod = module(body, (3, 4), dtype="float64")
    folded = FoldScales()(mod)
    assert operators(folded) == ["matmul"]
    x = values(3, 4).astype("float64")
    np.testing.assert_allclose(default(folded, x)[0], default(mod, x)[0], rtol=1e-12)

    def clipped(builder, x):
        return builder.emit_te(topi.maximum, x, builder.emit(relax.const(3, "int64")))

    check_int = module(clipped, (3, 4), dtype="int64")
    x = np.arange(12, dtype="int64").reshape(3, 4)
    assert (default(FoldScales()(check_int), x)[0] == np.maximum(x, 3)).all()


def test_a_constant_of_nothing_is_no_scale():
    mod = module(lambda b, x: b.emit(OP.add(x, relax.const(np.zeros(0, "float32")))), (4, 0))
    assert operators(FoldScales()(mod)) == ["add"]


@pytest.mark.parametrize("divisor", [41.0, 47.0, 3.0])
def test_arithmetic_that_no_product_is_before_keeps_its_bits(divisor):
    """x / 41 is not x * (1 / 41): floor(41 / 41) would be 0."""
    mod = module(lambda b, x: b.emit(OP.floor(b.emit(OP.divide(x, relax.const(divisor))))), (64,))
    x = (np.arange(64) * divisor).astype("float32")
    assert operators(FoldScales()(mod)) == ["divide", "floor"]
    assert (default(FoldScales()(mod), x)[0] == np.arange(64)).all()


def test_what_is_added_to_round_stays():
    """Adding 1.5 * 2**23 and taking it away again is how exporters write round()."""
    magic, weight = relax.const(np.float32(1.5 * 2**23)), values(3, 4, 1, 1, low=-20, high=20)

    def body(builder, x):
        y = builder.emit(OP.nn.conv2d(x, relax.const(weight)))
        return builder.emit(OP.subtract(builder.emit(OP.add(y, magic)), magic))

    mod, x = module(body, (1, 4, 2, 2)), values(1, 4, 2, 2)
    (found,) = default(FoldScales()(mod), x)
    assert (found == np.round(found)).all() and np.abs(found).max() > 1


@T.prim_func(s_tir=True, private=True)
def ONE_MORE(a: T.handle):
    A = T.match_buffer(a, (T.int64(8),), "float32")
    for i in T.serial(T.int64(8)):
        with T.sblock("one_more"):
            at = T.axis.spatial(T.int64(8), i)
            A[at] = A[at] + T.float32(1)


@pytest.mark.parametrize("kind", ["scale", "stack"])
def test_nothing_moves_past_what_writes_in_place(kind):
    """A product of x, x itself counted up, and both added: x must be read before."""
    from roller_tvm.relax import build

    from .networks import LLVM

    x = relax.Var("x", relax.TensorType((8,), "float32"))
    builder = relax.BlockBuilder()
    counted = builder.add_func(ONE_MORE, "one_more")
    with builder.function("main", [x]):
        with builder.dataflow():
            if kind == "scale":
                before = builder.emit(OP.multiply(x, relax.const(2.0)))
            else:
                before = builder.emit(OP.stack([x, x], axis=0))
            after = builder.emit(OP.call_tir_inplace(counted, (x,), [0], relax.TensorType((8,), "float32")))
            if kind == "stack":
                before = builder.emit(OP.sum(before, axis=[0]))
            result = builder.emit_output(OP.add(before, after))
        builder.emit_func_output(result)
    given = np.arange(8, dtype="float32")
    machine = relax.VirtualMachine(build(builder.get(), LLVM), tvm.cpu())
    assert (machine["main"](tvm.runtime.tensor(given.copy())).numpy() == 3 * given + 1).all()


@pytest.mark.parametrize("index", [0, 2, -1, -3, 5])
def test_elements_of_shapes_are_folded_where_they_are_and_others_are_taken_as_before(index):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1,), "int64"))
    with builder.function("main", [x]):
        with builder.dataflow():
            row = relax.const(np.array([10, 20, 30]), "int64")
            taken = builder.emit(relax.op.take(row, relax.const(index, "int64"), axis=0, mode="clip"))
            large = relax.const(np.array([2**53 + 1]), "int64")  # no float64
            same = builder.emit(relax.op.divide(large, relax.const(1, "int64")))
            out = builder.emit_output(builder.emit(relax.op.add(builder.emit(relax.op.add(x, taken)), same)))
        builder.emit_func_output(out)
    mod, given = builder.get(), np.array([3], "int64")
    np.testing.assert_array_equal(answer(FoldScales()(mod), given), answer(mod, given))
