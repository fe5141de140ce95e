"""Products with constant matrices on a CPU: Winograd's transforms, unrolled for a vector."""

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import auto_scheduler, te, topi  # noqa: E402

from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.relay.candidates import make_candidates  # noqa: E402
from roller_tvm.relay.tasks import Task  # noqa: E402
from roller_tvm.relay.worker_side import record_line, work_of  # noqa: E402
from roller_tvm.roller.steps import CacheWrite, Split  # noqa: E402
from roller_tvm.tuning.measurer import Measurer  # noqa: E402
from roller_tvm.tuning.session import Limits  # noqa: E402
from roller_tvm.tuning.supervise import Pool  # noqa: E402

from .kernels import check, plans_of  # noqa: E402


def winograd(size, channels, filters, batch=1):
    """Relay's choice for 3x3 convolutions in NHWC, weights transformed beforehand, with an epilogue."""
    data = te.placeholder((batch, size, size, channels), name="data")
    weight = te.placeholder((6, 6, filters, channels), name="weight")
    bias = te.placeholder((1, 1, 1, filters), name="bias")
    with tvm.target.Target("llvm -mcpu=skylake-avx512"):
        out = topi.nn.conv2d_winograd_nhwc_without_weight_transform(data, weight, 1, 1, 1, "float32")
    return [data, weight, bias, topi.nn.relu(topi.add(out, bias))]


@pytest.mark.nightly
@pytest.mark.parametrize("size, channels, filters, batch", [(5, 16, 8, 2)])
def test_results(size, channels, filters, batch):
    tensors = winograd(size, channels, filters, batch)
    plans = check(tensors, most=1, as_tvm_builds=False)
    assert [p.recipe for p in plans[0].programs].count("cpu.unrolled") == 2


@pytest.mark.nightly
def test_a_network_gets_the_weights_of_the_product_packed_and_the_record_is_checked():
    key = auto_scheduler.workload_registry.register_workload_tensors("roller_test_winograd", winograd(8, 32, 32))
    option = auto_scheduler.LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED
    task = auto_scheduler.SearchTask(
        workload_key=key, target=tvm.target.Target("llvm -num-cores 2"), layout_rewrite_option=option
    )
    candidates = make_candidates(Task(0, "winograd", 1, task, 1.0), load_device("cpu"), 1)
    found = [state for _, state in candidates.applied()]
    with Pool(1, threads=1) as pool:
        lines = [record_line(task, state) for state in found]
        measured = Measurer(pool, Limits(build_s=60.0)).measure(work_of(task), lines)
    assert [o.kind for o in measured.outcomes] == ["ok", "ok"] and measured.outcomes[measured.winner].checked
    packed = task.compute_dag.rewrite_layout_from_state(found[0]).tensors[1]
    assert len(packed.shape) > 4


def test_stages_are_inserted_before_any_step_names_one_by_number():
    plan = plans_of(winograd(8, 16, 16), most=1)[0]
    steps = lower(plan)
    inserted = [n for n, step in enumerate(steps) if isinstance(step, CacheWrite)]
    assert len(inserted) > 1 and inserted[-1] < min(n for n, step in enumerate(steps) if isinstance(step, Split))
    order = [s.name for s in plan.expression.stages]
    written = [steps[n].stage for n in inserted]
    assert written == sorted(written, key=order.index)
