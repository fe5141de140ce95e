"""Weights out of the caches: which operands are weights, and what a candidate is run on."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import auto_scheduler, te  # noqa: E402

from roller_tvm.device import cpu_device  # noqa: E402
from roller_tvm.relay.tasks import weight_names, weights_of  # noqa: E402
from roller_tvm.tuning.supervise import Pool  # noqa: E402
from roller_tvm.tuning.timing import OF_CACHE, Rotation, cold_options  # noqa: E402

from . import programs as P  # noqa: E402
from .test_measure import TARGET, measured, states  # noqa: E402


def dense_model(bound: bool):
    from tvm import relay

    weights = np.zeros((8, 16), "float32")
    x = relay.var("x", shape=(4, 16))
    w = relay.const(weights) if bound else relay.var("w", shape=(8, 16))
    y = relay.nn.dense(x, w)
    mod = tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(y), y))
    return mod, ({} if bound else {"w": weights})


@pytest.mark.parametrize("bound", [True, False])
def test_weights_are_known_by_their_size_bound_or_not(bound):
    size, sizes = weights_of(*dense_model(bound))
    assert size == 8 * 16 * 4 == cold_options(size, cpu_device())["footprint_bytes"]
    x, packed, other = (
        te.placeholder(s, name=n) for n, s in (("p0", (8, 16)), ("p1", (2, 16, 4)), ("p2", (8,)))
    )
    y = te.compute((2,), lambda i: x[i, 0] + packed[i, 0, 0] + other[i], name="y")
    assert weight_names([x, packed, other, y], sizes) == ("p1",)  # p0 is of that size too, but computed


def test_no_more_copies_than_push_each_other_out():
    from tvm import relay

    big = relay.const(np.zeros((64, 1 << 20), "float32"))
    mod = tvm.IRModule.from_expr(relay.Function([], big))
    device = cpu_device()
    cold = cold_options(weights_of(mod, None)[0], device)
    assert cold["footprint_bytes"] == min(256 << 20, OF_CACHE * max(lv.capacity_bytes for lv in device.levels[1:]))


def test_a_rotation_changes_the_weights_alone_and_goes_on_where_it_was():
    activations, weights, out = (tvm.nd.array(np.full(8, n, "float32")) for n in range(3))
    rotation = Rotation((1,), 3 * 32, tvm.nd.array)
    lists = rotation.lists([activations, weights, out])
    four = [next(lists) for _ in range(4)]
    assert all(one[0] is activations and one[2] is out for one in four)
    assert len({id(one[1]) for one in four}) == 3 and four[3][1] is four[0][1]
    assert all((one[1].numpy() == 1).all() for one in four)
    assert next(rotation.lists([activations, weights, out]))[1] is four[1][1]


def test_candidates_are_timed_and_checked_on_cold_weights():
    key = auto_scheduler.workload_registry.register_workload_tensors("roller_test_cold", P.matmul())
    task = auto_scheduler.SearchTask(workload_key=key, target=tvm.target.Target(TARGET))
    weights = tuple(t.op.name for t in task.compute_dag.tensors if isinstance(t.op, te.PlaceholderOp))
    cold = {"footprint_bytes": 1 << 20, "read_s_per_byte": 1.0}  # so slow that the weights always count
    with Pool(1, threads=1) as pool:
        result = measured(pool, task, states(task, (8, 16)), weights=weights, cold=cold)
    assert all(o.ok and len(o.repeats) > 1 for o in result.outcomes)
    assert result.outcomes[result.winner].checked
