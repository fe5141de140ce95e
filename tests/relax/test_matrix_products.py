"""Products of a model on a matrix unit: which, and that they compute the same. The unit itself is emulated."""

from dataclasses import replace

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.device.spec import FrozenMap  # noqa: E402
from roller_tvm.relax import matrix_products  # noqa: E402
from roller_tvm.relax.layout import PlanLayout  # noqa: E402
from roller_tvm.relax.matrix_products import MatrixProducts  # noqa: E402
from roller_tvm.relax.pipeline import build, prepare  # noqa: E402
from roller_tvm.relax.tasks import extract_tasks  # noqa: E402

from ..plan.devices import device  # noqa: E402
from .networks import LLVM, module, run, values  # noqa: E402

OP = relax.op
PLAIN = device("avx512")
#: With a unit and a memory fast enough for products that are small: the unit's emulation is slow.
UNIT = replace(
    PLAIN,
    tensor_gflops=FrozenMap({"bfloat16": 50.0 * PLAIN.peak()}),
    levels=(replace(PLAIN.far, bandwidth_gbps=PLAIN.levels[1].bandwidth_gbps), *PLAIN.levels[1:]),
)


def layer(rows=192, terms=256, columns=256):
    """Two products by constants of one shape, with what follows them, and one of two activations."""
    first, second, bias = values(terms, columns), values(terms, columns), values(columns)

    def body(b, x):
        one = b.emit(OP.nn.relu(b.emit(OP.add(b.emit(OP.matmul(x, relax.const(first))), relax.const(bias)))))
        other = b.emit(OP.nn.relu(b.emit(OP.add(b.emit(OP.matmul(x, relax.const(second))), relax.const(bias)))))
        return b.emit(OP.matmul(one, b.emit(OP.permute_dims(other, [0, 2, 1]))))

    def wanted(x):
        one, other = (np.maximum(x.astype("float64") @ w + bias, 0) for w in (first, second))
        return one @ other.transpose(0, 2, 1)

    return module(body, (2, rows // 2, terms)), values(2, rows // 2, terms), wanted


@pytest.fixture
def whatever_is_predicted(monkeypatch):
    monkeypatch.setattr(matrix_products, "GAIN", 0.0)


def test_products_by_constants(emulated):
    mod, x, wanted = layer()
    made = build(mod, LLVM)
    (found,) = run(made, x)
    np.testing.assert_allclose(found, wanted(x), rtol=1e-4, atol=1e-4)
    (note,) = emulated[0].notes  # one kernel of both; the product of activations is another
    assert note.recipe == "cpu.matrix" and note.name.endswith("_matrix") and "by rows" in note.plan


@pytest.mark.parametrize("columns", [250, 251])
def test_columns_that_fill_no_vector(emulated, columns):
    mod, x, wanted = layer(columns=columns)
    (found,) = run(build(mod, LLVM), x)
    np.testing.assert_allclose(found, wanted(x), rtol=1e-4, atol=1e-4)
    assert [note.recipe for note in emulated[0].notes] == ["cpu.matrix"]


@pytest.mark.parametrize(("strides", "size"), [((1, 1), 14), ((2, 2), 20)])
def test_convolutions_of_one_pixel(emulated, whatever_is_predicted, strides, size):
    first, last, bias = values(112, 64, 1, 1), values(176, 112, 1, 1), values(1, 176, 1, 1)

    def body(b, x):
        x = b.emit(OP.nn.relu(b.emit(OP.nn.conv2d(x, relax.const(first)))))
        x = b.emit(OP.nn.conv2d(x, relax.const(last), strides=strides))
        return b.emit(OP.nn.relu(b.emit(OP.add(x, relax.const(bias)))))

    x = values(1, 64, size, size)
    mod = PlanLayout(LLVM, UNIT, only="blocked")(module(body, x.shape))
    (found,) = run(build(mod, LLVM), x)
    middle = np.maximum(np.einsum("nchw,oc->nohw", x.astype("float64"), first[:, :, 0, 0]), 0)
    out = np.einsum("nchw,oc->nohw", middle[:, :, :: strides[0], :: strides[1]], last[:, :, 0, 0]) + bias
    np.testing.assert_allclose(found, np.maximum(out, 0), rtol=1e-4, atol=1e-4)
    assert [note.recipe for note in emulated[0].notes] == ["cpu.matrix"] * 2


@pytest.mark.parametrize(
    ("data", "window", "dilation"),
    [((1, 64, 9, 11), (3, 3), (1, 1)), ((2, 48, 8, 5), (1, 7), (1, 1)), ((1, 32, 12, 9), (3, 3), (2, 1))],
)
def test_convolutions_of_windows(emulated, whatever_is_predicted, data, window, dilation):
    weights, bias = values(48, data[1], *window), values(1, 48, 1, 1)
    sides = [(w - 1) * d for w, d in zip(window, dilation, strict=True)]
    pad = [side // 2 for side in sides]

    def body(b, x):
        x = b.emit(OP.nn.relu(x))
        x = b.emit(OP.nn.conv2d(x, relax.const(weights), padding=pad, dilation=dilation))
        return b.emit(OP.nn.relu(b.emit(OP.add(x, relax.const(bias)))))

    x = values(*data)
    mod = PlanLayout(LLVM, UNIT, only="blocked", winograd=False)(module(body, x.shape))
    (found,) = run(build(mod, LLVM), x)
    padded = np.pad(np.maximum(x, 0).astype("float64"), [(0, 0), (0, 0), *((p, p) for p in pad)])
    seen = np.lib.stride_tricks.sliding_window_view(padded, [side + 1 for side in sides], (2, 3))
    out = np.einsum("nchwyx,ocyx->nohw", seen[..., :: dilation[0], :: dilation[1]], weights) + bias
    np.testing.assert_allclose(found, np.maximum(out, 0), rtol=1e-4, atol=1e-4)
    assert [note.recipe for note in emulated[0].notes] == ["cpu.matrix"]


def test_windows_that_leap_are_left(emulated, whatever_is_predicted):
    weights = values(48, 32, 3, 3)
    mod = module(lambda b, x: b.emit(OP.nn.conv2d(x, relax.const(weights), strides=(2, 2))), (1, 32, 9, 9))
    build(PlanLayout(LLVM, UNIT, only="blocked")(mod), LLVM)
    assert not emulated[0].notes


def test_calls_keep_their_own_weights(emulated):
    mod, _, _ = layer()
    made = MatrixProducts(LLVM, UNIT, emulated=True)(prepare(mod, LLVM, device=UNIT))
    text = made.script()
    assert text.count("_matrix(") == 1 and text.count("cls.fused_matmul_add_relu_matrix") == 2


@pytest.mark.parametrize("shape", [(192, 250, 256), (2, 256, 256)])
def test_what_does_not_pay_or_fit_is_left(emulated, shape):
    mod, x, wanted = layer(*shape)
    (found,) = run(build(mod, LLVM), x)
    np.testing.assert_allclose(found, wanted(x), rtol=1e-4, atol=1e-4)
    assert not emulated[0].notes


def test_weights_beyond_bfloat16_are_left(emulated):
    weights = values(256, 256)
    weights[3, 3] = np.finfo("float32").max
    mod = module(lambda b, x: b.emit(OP.matmul(x, relax.const(weights))), (192, 256))
    x = np.zeros((192, 256), "float32")
    np.testing.assert_array_equal(run(build(mod, LLVM), x)[0], 0)
    assert not emulated[0].notes


def test_a_target_without_the_unit_has_none_of_it():
    mod = prepare(layer()[0], LLVM)
    assert MatrixProducts(LLVM, UNIT)(mod) is mod


def test_what_follows_a_product_counts():
    """GELU takes a core longer than the product's tiles: beside it, the unit's gain is smaller."""
    weights = relax.const(values(256, 256))
    chosen = [MatrixProducts(LLVM, UNIT, emulated=True).chosen(prepare(module(body, (192, 256)), LLVM)) for body in (
        lambda b, x: b.emit(OP.nn.relu(b.emit(OP.matmul(x, weights)))),
        lambda b, x: b.emit(OP.nn.gelu(b.emit(OP.matmul(x, weights)))),
    )]  # fmt: skip
    (rectified,), (gelu,) = (one.values() for one in chosen)
    vectors = 192 * 256 / UNIT.vector_width / UNIT.units
    assert gelu - rectified >= 10 * vectors / (UNIT.clock_ghz * 1e9)


def test_what_vectors_cannot_follow_a_product_with_stops_nothing():
    """No plan has elements of float8: the unit's is compared with none."""
    weights = relax.const(values(256, 256))

    def body(b, x):
        return b.emit(OP.astype(b.emit(OP.matmul(x, weights)), "float8_e4m3fn"))

    mod = prepare(module(body, (192, 256)), LLVM)
    assert len(MatrixProducts(LLVM, UNIT, emulated=True).chosen(mod)) == 1


def test_they_are_no_tasks_of_a_tuner():
    mod = prepare(layer()[0], LLVM)
    left = extract_tasks(MatrixProducts(LLVM, UNIT, emulated=True)(mod))
    assert len(left) == len(extract_tasks(mod)) - 1 and not any("relu" in task.name for task in left)
