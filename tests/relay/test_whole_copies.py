"""Copies to shared memory of which TVM sees no part: it would copy the whole tensor."""

import re

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.auto_scheduler")

from tvm import auto_scheduler, te, topi  # noqa: E402

from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.errors import MeasureError  # noqa: E402
from roller_tvm.relay.candidates import _check_room, make_candidates  # noqa: E402
from roller_tvm.relay.tasks import Task  # noqa: E402


@auto_scheduler.register_workload
def turned_heads():
    """Heads of attention as Whisper has them: a bias added, reshaped, transposed twice."""
    x, bias = te.placeholder((1500, 512), name="x"), te.placeholder((512,), name="bias")
    heads = topi.reshape(topi.add(topi.reshape(x, (1, 1500, 512)), bias), (1, 1500, 8, 64))
    heads = topi.transpose(heads, (0, 2, 1, 3))
    return [x, bias, topi.transpose(topi.reshape(heads, (8, 1500, 64)), (0, 2, 1))]


@auto_scheduler.register_workload
def two_products():
    """Two kernels, each with two copies."""
    shapes = {"x": (128, 512), "w": (512, 256), "v": (256, 256)}
    x, w, v = (te.placeholder(shape, name=name) for name, shape in shapes.items())
    k, m = te.reduce_axis((0, 512), name="k"), te.reduce_axis((0, 256), name="m")
    first = te.compute((128, 256), lambda i, j: te.sum(x[i, k] * w[k, j], k), name="first")
    return [x, w, v, te.compute((128, 256), lambda i, j: te.sum(first[i, m] * v[m, j], m), name="second")]


def task_of(workload):
    limits = auto_scheduler.HardwareParams(1, 16, 64, 49152, 2**30, 1024, 8, 32)  # of no card here
    target = tvm.target.Target("cuda -arch=sm_80")
    return auto_scheduler.SearchTask(func=workload, args=(), target=target, hardware_params=limits)


def test_a_plan_that_would_copy_all_is_refused():
    task = task_of(turned_heads)
    found = make_candidates(Task(0, "turned_heads", 1, task, 0.0), load_device("a100"), 4)
    assert list(found.schedules()) == []
    assert all("TVM copies 3072000 B" in told or "TVM copies 3080192 B" in told for told in found.failures)


def test_copies_of_one_kernel_count_together():
    task = task_of(two_products)
    found = make_candidates(Task(0, "two_products", 1, task, 1e6), load_device("a100"), 1)
    (_, state), dag = next(found.schedules()), task.compute_dag
    with pytest.raises(MeasureError, match="B to 'x.shared', 'w.shared', a block has 1 B") as told:
        _check_room(dag, state, 1)
    size = int(re.search(r"copies (\d+) B", str(told.value)).group(1))
    _check_room(dag, state, size)  # as the other kernel has its own
    with pytest.raises(MeasureError):
        _check_room(dag, state, size - 1)
