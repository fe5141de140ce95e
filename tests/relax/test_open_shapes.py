"""ONNX models that compute with their sizes: shapes known as expressions, answers as onnx's own, checks of sizes."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")
reference = pytest.importorskip("onnx.reference")

import roller_tvm  # noqa: E402
from roller_bench.open_models import OpenNetwork  # noqa: E402
from roller_tvm.errors import BadInput  # noqa: E402
from roller_tvm.relax.importers import load_model  # noqa: E402


@pytest.fixture
def net():
    return OpenNetwork()


def same(net, result, inputs, arrays, tmp_path):
    """The model compiled; it computes what ONNX's reference does for each of the arrays."""
    path = tmp_path / "model.onnx"
    net.write(path, inputs, [result])
    model = roller_tvm.compile(path)
    evaluator = reference.ReferenceEvaluator(str(path))
    for given in arrays:
        named = dict(zip(inputs, given, strict=True))
        np.testing.assert_allclose(model.run(named)[0], evaluator.run(None, named)[0], rtol=1e-5, atol=1e-6)
    return model


def rows(*sizes, width=12):
    return [[np.random.default_rng(n).standard_normal((1, n, width), np.float32)] for n in sizes]


def test_heads_take_their_sizes_from_their_input(net, tmp_path):
    """Shape, Gather, Concat, Reshape, Transpose and back."""
    y = net.merged(net.heads("x", 3, 4), 12)
    same(net, net.node("Mul", [y, y]), {"x": ((1, "n", 12), "float32")}, rows(1, 5, 16), tmp_path)


def test_positions_as_many_as_tokens_and_no_more(net, tmp_path):
    places = net.part(net.random(32, 12, scale=1.0), net.whole([0]), net.size("x", 1))
    model = same(net, net.node("Add", ["x", places]), {"x": ((1, "n", 12), "float32")}, rows(1, 7, 32), tmp_path)
    with pytest.raises(BadInput, match="n = 33, but n <= 32 must hold"):
        model(rows(33)[0][0])
    model.save(tmp_path / "m.so")
    with pytest.raises(BadInput, match="n <= 32"):
        roller_tvm.load(tmp_path / "m.so")(rows(40)[0][0])


def test_a_cache_grows(net, tmp_path):
    past, length = net.size("past", 1), net.size("x", 1)
    total = net.node("Add", [past, length])
    joined = net.node("Concat", ["past", "x"], axis=1)
    places = net.part(net.random(64, 12, scale=1.0), past, total)
    turned = net.node("Mul", ["x", places])
    result = net.node("Add", [net.node("ReduceSum", [joined, net.whole([1])], keepdims=1), turned])
    rng = np.random.default_rng(0)
    arrays = [[rng.standard_normal((1, s, 12), np.float32) for s in (p, n)] for p, n in ((1, 1), (9, 1), (3, 20))]
    same(net, result, {"past": ((1, "p", 12), "float32"), "x": ((1, "n", 12), "float32")}, arrays, tmp_path)


def test_a_range_and_an_expansion(net, tmp_path):
    length = net.size("x", 1)
    scalar = net.node("Squeeze", [length, net.whole([0])])
    steps = net.node("Range", [net.constant(np.asarray(0)), scalar, net.constant(np.asarray(1))])
    steps = net.node("Cast", [net.node("Unsqueeze", [steps, net.whole([1])])], to=1)
    zeros = net.node("ConstantOfShape", [net.node("Shape", ["x"])])
    wide = net.node("Expand", [steps, net.node("Concat", [net.whole([1]), length, net.whole([12])], axis=0)])
    y = net.node("Add", [net.node("Add", ["x", zeros]), wide])
    same(net, y, {"x": ((1, "n", 12), "float32")}, rows(1, 6, 17), tmp_path)


def test_a_batch_and_a_sequence_become_one_extent(net, tmp_path):
    rows_ = net.node("Mul", [net.size("x", 0), net.size("x", 1)])
    flat = net.product(net.shaped("x", rows_, 12), 12, 8)
    y = net.shaped(flat, net.size("x", 0), net.size("x", 1), 8)
    arrays = [[np.random.default_rng(b).standard_normal((b, n, 12), np.float32)] for b, n in ((1, 1), (2, 5), (3, 16))]
    same(net, y, {"x": (("b", "n", 12), "float32")}, arrays, tmp_path)


def test_features_of_unlike_sizes_are_checked_when_they_are_added(net, tmp_path):
    """Twice half the height is the height only where it is even."""
    small = net.node("MaxPool", ["x"], kernel_shape=[2, 2], strides=[2, 2])
    scales = net.constant(np.asarray([1, 1, 2, 2], np.float32))
    large = net.node("Resize", [small, "", scales], mode="nearest", coordinate_transformation_mode="asymmetric",
                     nearest_mode="floor")  # fmt: skip
    arrays = [[np.random.default_rng(h).standard_normal((1, 3, h, w), np.float32)] for h, w in ((2, 4), (6, 10))]
    model = same(net, net.node("Add", ["x", large]), {"x": ((1, 3, "h", "w"), "float32")}, arrays, tmp_path)
    with pytest.raises(Exception, match="match_cast|shape"):
        model(np.ones((1, 3, 7, 8), "float32"))


def test_what_is_computed_is_known(net, tmp_path):
    length = net.size("x", 1)
    half = net.node("Div", [length, net.whole([2])])
    y = net.part("x", half, length, 1)
    net.write(tmp_path / "m.onnx", {"x": ((1, "n", 4), "float32")}, [y])
    shape = load_model(tmp_path / "m.onnx").mod["main"].ret_ty.shape
    assert [str(e).replace("T.int64", "").replace("(", "").replace(")", "") for e in shape] == ["1", "n - n // 2", "4"]
