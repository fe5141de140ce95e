"""Row operators in one kernel: the lanes of a block walk rows together through every stage."""

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from roller_tvm.codegen import find_compilers  # noqa: E402
from roller_tvm.codegen.apply_te import TeProgram  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.relay.cuda import check_resources  # noqa: E402
from roller_tvm.roller.alignment import Rejection  # noqa: E402
from roller_tvm.te import read_te, te_operator  # noqa: E402

from ..sampling import sampled  # noqa: E402
from . import gpu_check  # noqa: E402


def softmax(*shape):
    return te_operator("softmax", shape=shape)


def layer_norm(rows, length):
    from tvm import te

    x = te.placeholder((rows, length), name="x")
    gamma = te.placeholder((length,), name="gamma")
    k, r = te.reduce_axis((0, length), name="k"), te.reduce_axis((0, length), name="r")
    total = te.compute((rows,), lambda i: te.sum(x[i, k], axis=k), name="total")
    centred = te.compute((rows, length), lambda i, j: x[i, j] - total[i] / length, name="centred")
    squares = te.compute((rows,), lambda i: te.sum(centred[i, r] * centred[i, r], axis=r), name="squares")
    out = te.compute(
        (rows, length), lambda i, j: centred[i, j] * te.rsqrt(squares[i] / length + 1e-5) * gamma[j], name="normal")
    return [x, gamma, out]


def centred_planes(batch, channels, height, width):
    from tvm import te

    x = te.placeholder((batch, channels, height, width), name="x")
    h, w = te.reduce_axis((0, height), name="h"), te.reduce_axis((0, width), name="w")
    high = te.compute((batch, channels), lambda n, c: te.max(x[n, c, h, w], axis=[h, w]), name="high")
    out = te.compute(x.shape, lambda n, c, i, j: x[n, c, i, j] - high[n, c], name="centred")
    return [x, out]


CASES = {
    "softmax": lambda: softmax(37, 100),
    "softmax of vectors": lambda: softmax(8, 256),
    "softmax of attention": lambda: softmax(2, 3, 5, 64),
    "softmax of one row": lambda: softmax(1, 1000),
    "softmax longer than a block": lambda: softmax(3, 2500),
    "layer norm": lambda: layer_norm(6, 96),
    "norm of planes": lambda: centred_planes(2, 3, 7, 5),
}


@pytest.mark.parametrize("name", sampled(CASES, 3))
def test_results(pocl, name):
    """The best with rows in shared memory and the best without, as both differ in what they choose."""
    plans = gpu_check.check(CASES[name](), "gpu.rows", device="t4", most=3)
    assert len(plans[0].programs) == 1


@pytest.mark.skipif(not find_compilers(), reason="neither NVRTC nor nvcc is here")
@pytest.mark.parametrize(("rows", "length"), [(1536, 128), (64, 1000), (16, 8192)])
def test_the_kernel_takes_what_was_predicted(rows, length):
    tensors = softmax(rows, length)
    reading = read_te(tensors)
    ranked = construct(reading.expression, load_device("t4"), top=1).best
    assert [p.recipe for p in ranked.plan.programs] == ["gpu.rows"]
    checked = check_resources(ranked.plan, ranked.estimate, TeProgram.of_reading(reading, tensors), ("sm_75",))
    assert not isinstance(checked, Rejection)
    (kernel,), (predicted,) = checked.kernels("sm_75"), ranked.estimate.programs
    assert kernel.shared_bytes == predicted.shared_bytes and kernel.registers <= predicted.registers / 0.75


def test_rows_read_once_are_not_kept():
    """A row that one stage reads gains nothing from shared memory."""
    from tvm import te

    x = te.placeholder((64, 512), name="x")
    y = te.placeholder((64, 512), name="y")
    k = te.reduce_axis((0, 512), name="k")
    total = te.compute((64,), lambda i: te.sum(x[i, k], axis=k), name="total")
    out = te.compute((64, 512), lambda i, j: y[i, j] * total[i], name="out")
    plans, _ = gpu_check.plans_with([x, y, out], "gpu.rows", "h200")
    assert all(not p.choices_of("keep") for plan in plans for p in plan.programs)
