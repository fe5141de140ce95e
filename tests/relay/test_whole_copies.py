"""Copies to shared memory of which TVM sees no part: it would copy the whole tensor."""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.auto_scheduler")

from tvm import auto_scheduler, te, topi  # noqa: E402

from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.relay.candidates import make_candidates  # noqa: E402
from roller_tvm.relay.tasks import Task  # noqa: E402


@auto_scheduler.register_workload
def turned_heads():
    """Heads of attention as Whisper has them: a bias added, reshaped, transposed twice."""
    x, bias = te.placeholder((1500, 512), name="x"), te.placeholder((512,), name="bias")
    heads = topi.reshape(topi.add(topi.reshape(x, (1, 1500, 512)), bias), (1, 1500, 8, 64))
    heads = topi.transpose(heads, (0, 2, 1, 3))
    return [x, bias, topi.transpose(topi.reshape(heads, (8, 1500, 64)), (0, 2, 1))]


def test_a_plan_that_would_copy_all_is_refused():
    limits = auto_scheduler.HardwareParams(1, 16, 64, 49152, 2**30, 1024, 8, 32)  # of no card here
    target = tvm.target.Target("cuda -arch=sm_80")
    task = auto_scheduler.SearchTask(func=turned_heads, args=(), target=target, hardware_params=limits)
    found = make_candidates(Task(0, "turned_heads", 1, task, 0.0), load_device("a100"), 4)
    assert list(found.schedules()) == []
    assert all("TVM copies 3072000 B" in told or "TVM copies 3080192 B" in told for told in found.failures)
