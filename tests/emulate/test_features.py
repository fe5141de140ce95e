"""Plans with the Relax line's words, executed: tensor cores, copies ahead in several stages, for awkward shapes too."""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.tirx", reason="needs the Relax line")
pytestmark = pytest.mark.relax

from tvm import te  # noqa: E402

from roller_tvm.plan import construct  # noqa: E402
from roller_tvm.plan.features import Features  # noqa: E402
from roller_tvm.relax.emulated import check_plan  # noqa: E402
from roller_tvm.te import te_operator  # noqa: E402
from roller_tvm.tir import read_prim_func  # noqa: E402

from ..lower.gpu_check import spread  # noqa: E402
from ..plan.devices import device  # noqa: E402


def matmul(m, n, k, dtype, result, transposed=False):
    a = te.placeholder((m, k), dtype, name="A")
    b = te.placeholder((n, k) if transposed else (k, n), dtype, name="B")
    r = te.reduce_axis((0, k), name="r")

    def product(i, j):
        right = b[j, r] if transposed else b[r, j]
        return te.sum(a[i, r].astype(result) * right.astype(result), axis=r)

    return [a, b, te.compute((m, n), product, name="C")]


CASES = {
    "half": (matmul(128, 128, 96, "float16", "float32"), "gpu.tensor"),
    "half, transposed": (matmul(64, 128, 128, "float16", "float32", True), "gpu.tensor"),
    "half, summed in half": (matmul(64, 64, 64, "float16", "float16"), "gpu.tensor"),
    "half, awkward": (matmul(100, 70, 56, "float16", "float32"), "gpu.tensor"),
    "bytes": (matmul(64, 64, 128, "int8", "int32", True), "gpu.tensor"),
    "float": (matmul(128, 96, 64, "float32", "float32"), "gpu.tiled"),
    "float, awkward": (matmul(100, 75, 36, "float32", "float32"), "gpu.tiled"),
    "convolution": (
        te_operator("conv2d_nchw", n=1, c=16, h=14, w=14, f=32, kh=3, kw=3, stride=1, padding=1, bias=True, relu=True),
        "gpu.tiled",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_plans(name):
    tensors, recipe = CASES[name]
    reading = read_prim_func(te.create_prim_func(list(tensors)))
    gpu = device("a100")
    plans = [r.plan for r in construct(reading.expression, gpu, top=20, features=Features.of_tensor_ir(gpu)).plans]
    assert any(p.recipe == recipe for plan in plans for p in plan.programs)
    for plan in spread([p for p in plans if any(q.recipe == recipe for q in p.programs)], 3):
        checked = check_plan(plan, tensors, "sm_80")
        assert checked.elements == checked.of_elements
