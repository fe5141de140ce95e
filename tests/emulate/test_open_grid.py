"""Kernels of a GPU with open extents, on the emulator: a few tiles, the grid from the size, each against numpy."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roller_tvm.device import load_device

from ..sampling import sampled

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.relax")

from tvm import relax  # noqa: E402

from roller_check import compile as compiled  # noqa: E402
from roller_check.function import Function  # noqa: E402
from roller_tvm.codegen.host_code_tensorir import generated  # noqa: E402
from roller_tvm.relax.cuda import cuda_target  # noqa: E402
from roller_tvm.relax.pipeline import prepare, schedule  # noqa: E402

from ..relax.networks import module, values  # noqa: E402

DEVICE = load_device("a100")
TARGET = cuda_target("sm_80", DEVICE)
#: One; the first, the last and one beyond of tiles of 4, 6, 12, 16 and 64; primes.
SIZES = (1, 2, 3, 4, 5, 6, 7, 12, 13, 15, 16, 17, 31, 63, 64, 65, 129)


def var(name="n"):
    return tvm.tirx.Var(name, "int64")


def same(mod, expected, sizes=SIZES, tolerance=1e-5):
    """The one function of a module is planned, and computes at each size of n what numpy does of its inputs."""
    scheduled, report = schedule(prepare(mod, TARGET), TARGET, device=DEVICE)
    assert not report.left, str(report)
    (name,) = [str(v.name_hint) for v, f in scheduled.functions_items() if type(f).__name__ == "PrimFunc"]
    source, host = generated(scheduled, TARGET, name)
    program = compiled(source, arch="sm_80")
    for size in sizes:
        function = Function.of(program, host, {"n": size})
        shapes = [p.shape for p in function.parameters[:-1]]
        given = [values(*shape).astype(p.dtype) for shape, p in zip(shapes, function.parameters, strict=False)]
        (result,) = function.run(given)
        x = [a for a in given if a.shape in {tuple(_sized(p, size)) for p in mod["main"].params}]
        rest = [a for a in given if not any(a is own for own in x)]
        assert len(x) == 1
        np.testing.assert_allclose(result.astype("float64"), expected(*x, *rest), rtol=tolerance, atol=tolerance)
    return report


def _sized(param, size):
    return [int(e) if isinstance(e, tvm.tirx.IntImm) else size for e in param.ty.shape]


def one(op):
    return lambda b, x: b.emit(op(x))


def product(columns, dtype="float32", inner=64):
    weight = relax.const(values(inner, columns).astype(dtype))
    return lambda b, x: b.emit(relax.op.nn.relu(b.emit(relax.op.matmul(x, weight))))


@pytest.mark.parametrize("columns", sampled([96, 30, 512], 3))
def test_a_product(columns):
    """A few rows by another kernel than many."""
    report = same(module(product(columns), (1, var(), 64)), lambda x, w: np.maximum(x @ w, 0))
    assert "gpu.tiled" in str(report.scheduled[0].recipe)


def test_a_product_on_tensor_cores():
    report = same(
        module(product(256, "float16", 256), (var(), 256), dtype="float16"),
        lambda x, w: np.maximum(x.astype("float64") @ w.astype("float64"), 0), (1, 16, 63, 65, 129), 0.1,
    )  # fmt: skip
    assert "gpu.tensor" in str(report.scheduled[0].recipe)


@pytest.mark.parametrize("inner", sampled([7, 64, 6], 3))
def test_elements(inner):
    """Vectors are aligned wherever the last tile begins."""
    same(module(one(relax.op.nn.relu), (var(), inner)), lambda x: np.maximum(x, 0))


def test_elements_along_the_last_axis():
    same(module(one(relax.op.nn.relu), (3, var())), lambda x: np.maximum(x, 0))


def test_rows():
    def softmax(x):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    same(module(one(lambda x: relax.op.nn.softmax(x, -1)), (1, var(), 40)), softmax)


def test_several_kernels():
    """What lies between them has the open extent too."""
    ones = relax.const(np.ones(48, "float32"))

    def norm(x, scale, shift):
        mean, deviation = x.mean(-1, keepdims=True), np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return (x - mean) / deviation * scale + shift

    mod = module(lambda b, x: b.emit(relax.op.nn.layer_norm(x, ones, ones, [-1])), (1, var(), 48))
    same(mod, norm, (1, 2, 5, 16, 33), 1e-4)


def test_a_transpose():
    same(module(one(lambda x: relax.op.permute_dims(x, [0, 2, 1, 3])), (1, var(), 4, 8)),
         lambda x: x.transpose(0, 2, 1, 3))  # fmt: skip


@pytest.mark.parametrize("stride", sampled([2, 1], 2))
def test_a_convolution_of_a_batch(stride):
    weight = relax.const(values(16, 8, 3, 3))
    mod = module(lambda b, x: b.emit(relax.op.nn.conv2d(x, weight, padding=1, strides=stride)), (var(), 8, 9, 9))

    def convolved(x, w):
        padded, size = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), 8 // stride + 1
        windows = [(i, j, padded[:, :, i : i + 9 : stride, j : j + 9 : stride]) for i in range(3) for j in range(3)]
        return sum(np.einsum("nchw,oc->nohw", part[:, :, :size, :size], w[:, :, i, j]) for i, j, part in windows)

    same(mod, convolved, (1, 3, 5))


def test_a_reduction_along_an_open_axis_is_left_and_told():
    mod = prepare(module(one(lambda x: relax.op.sum(x, -1)), (3, var())), TARGET)
    _, report = schedule(mod, TARGET, device=DEVICE)
    assert "a reduction along an open axis is planned for CPUs" in str(report)


drawn = st.tuples(st.integers(1, 70), st.integers(1, 70), st.lists(st.integers(1, 150), min_size=1, max_size=3))


@pytest.mark.nightly
@given(drawn)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_drawn_products(case):
    inner, columns, sizes = case
    same(module(product(columns, inner=inner), (var(), inner)), lambda x, w: np.maximum(x @ w, 0), sizes, 1e-4)
