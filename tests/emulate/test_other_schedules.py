"""Kernels that TVM makes itself (dlight), executed: products on tensor cores by WMMA, rows shared by warps."""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.tirx", reason="needs the Relax line")
pytestmark = [pytest.mark.relax, pytest.mark.slow]

from tvm import te  # noqa: E402
from tvm.s_tir import dlight  # noqa: E402

from roller_check import Checked  # noqa: E402
from roller_check.relax_plans import check_module  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.relax.cuda import cuda_target  # noqa: E402
from roller_tvm.te import te_operator  # noqa: E402

from ..sampling import sampled  # noqa: E402


def product(m, n, k):
    a, b = te.placeholder((m, k), "float16", name="A"), te.placeholder((n, k), "float16", name="B")
    r = te.reduce_axis((0, k), name="r")
    return [a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[j, r], axis=r), name="C")]


# Operator, and what its kernel must contain to be the schedule that is meant.
CASES = {
    "product on tensor cores": (lambda: product(128, 128, 96), "wmma"),
    "product on tensor cores, awkward": (lambda: product(100, 130, 70), "wmma"),
    "softmax": (lambda: te_operator("softmax", shape=(16, 100)), "threadIdx.x"),
}


# Dlight's tiles for tensor cores are so large that one of them is executed for most of a minute.
@pytest.mark.parametrize("name", sampled(CASES, always=("softmax",)))
def test_dlight(name):
    make, contains = CASES[name]
    func = te.create_prim_func(list(make())).with_attr("global_symbol", "main")
    target, rules = cuda_target("sm_80", load_device("a100")), dlight.gpu
    before = tvm.IRModule({"main": func})
    with target:
        every = (rules.Matmul(), rules.GEMV(), rules.Reduction(), rules.GeneralReduction(), rules.Fallback())
        after = dlight.ApplyDefaultSchedule(*every)(tvm.IRModule({"main": func}))
    assert contains in after.script()
    found = check_module(before, after, target, budget_s=60)["main"]
    assert isinstance(found, Checked) and found.elements == found.of_elements, found
