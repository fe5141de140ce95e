"""Copies to shared memory of which TVM sees no part: it would copy the whole tensor."""

import pytest

pytestmark = pytest.mark.relax
pytest.importorskip("tvm.relax")
pytest.importorskip("islpy")

from tvm import te, topi  # noqa: E402
from tvm.target import Target  # noqa: E402

from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.relax.candidates import make_candidates  # noqa: E402
from roller_tvm.relax.proving import prove  # noqa: E402


def test_a_plan_that_would_copy_all_is_refused():
    """Heads of attention as ONNX exporters write them: reshape, transpose twice, reshape."""
    x = te.placeholder((197, 1, 768), name="x")
    heads = topi.transpose(topi.reshape(x, (197, 12, 64)), (1, 0, 2))
    turned = topi.reshape(topi.transpose(heads, (0, 2, 1)), (1, 12, 64, 197))
    func = te.create_prim_func([x, topi.multiply(turned, 0.125)], index_dtype_override="int64")
    device = load_device("a100")
    found = make_candidates(func, device, 4)
    _, schedule = next(found.schedules())
    assert any("TVM copies 605184 B" in told for told in found.failures)
    assert prove(schedule.mod["main"], func, Target({"kind": "cuda", "arch": "sm_80"}), device).answer == "proven"
