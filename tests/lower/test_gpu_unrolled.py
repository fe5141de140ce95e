"""Products with constant matrices: Winograd's transforms, unrolled in a thread."""

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.relay.cuda import cuda_source  # noqa: E402

from ..sampling import sampled  # noqa: E402
from . import gpu_check  # noqa: E402


def winograd(size, channels=8, filters=8, batch=1, relu=False):
    """Relay's choice for 3x3 convolutions in NHWC with weights transformed beforehand."""
    from tvm import te, topi

    edge = 6 if size % 8 == 0 else 4
    data = te.placeholder((batch, size, size, channels), name="data")
    weight = te.placeholder((edge, edge, filters, channels), name="weight")
    with tvm.target.Target("cuda -arch=sm_80"):
        out = topi.nn.conv2d_winograd_nhwc_without_weight_transform(data, weight, 1, 1, 1, "float32")
    if relu:
        out = topi.nn.relu(out)
    return [data, weight, out]


@pytest.mark.parametrize(
    "params", sampled([dict(size=8), dict(size=7, batch=2), dict(size=10, channels=3, relu=True)], 3, 1), ids=str
)
def test_results(pocl, params):
    plans = gpu_check.check(winograd(**params), "gpu.unrolled", most=1)
    assert [p.recipe for p in plans[0].programs].count("gpu.unrolled") == 2


def test_constants_are_in_the_code():
    """No table is read, no index decides which constant it is."""
    tensors = winograd(8)
    (plan, *_), reading = gpu_check.plans_with(tensors, "gpu.unrolled")
    source = cuda_source(*apply_steps_te(TeProgram.of_reading(reading, tensors), lower(plan)), "sm_80")
    assert "5.000000e-01f" in source or "2.500000e-01f" in source
    assert "* 0.0" not in source and "* 1.0" not in source and "% 6) ==" not in source


def test_a_tensor_read_twice_is_not_staged_twice(pocl):
    """One staged tile would have to hold both; its bytes would be wrong."""
    from tvm import te

    a = te.placeholder((64, 32), name="A")
    k = te.reduce_axis((0, 32), name="k")
    gram = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * a[j, k], axis=k), name="gram")
    plans = gpu_check.check([a, gram], most=1)
    assert all(p.recipe != "gpu.tiled" for p in plans[0].programs)
