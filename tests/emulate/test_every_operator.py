"""Every operator as the Relay line's GPU kernels, executed: its numbers those of TVM's own schedule for the CPU.

Each SAMPLE-th at every change, all of them in ``make nightly``: one or two minutes, most of it the C++ compiler; a
second run takes what was compiled from the cache.
"""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.relay", reason="needs the Relay line")
pytestmark = [pytest.mark.tvm, pytest.mark.slow]

from tvm import te  # noqa: E402

from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.relay import reference  # noqa: E402
from roller_tvm.relay.emulated import emulated_function  # noqa: E402
from roller_tvm.te import read_te  # noqa: E402
from roller_tvm.tuning import numerics  # noqa: E402

from ..lower.gpu_check import spread  # noqa: E402
from ..plan.devices import device  # noqa: E402
from ..sampling import sampled  # noqa: E402
from ..te.every_operator import COMPARED, FAMILIES, NOT_ON_A_GPU, POSITIVE  # noqa: E402

GPU, PLANS = "a100", 2
SAMPLE = 32
# What TVM 0.17 makes wrong kernels of, or none, unless a plan avoids it.
ALWAYS = ("conv2d int8", "depthwise int8", "max int8")
NAMES = [
    (family, name) for family, cases in FAMILIES.items() for name in cases if name not in (*NOT_ON_A_GPU, *COMPARED)
]


@pytest.mark.parametrize(("family", "name"), sampled(NAMES, SAMPLE, 0, [c for c in NAMES if c[1] in ALWAYS]))
def test_kernels(family, name):
    tensors = list(FAMILIES[family][name]())
    outputs = [t for t in tensors if not isinstance(t.op, te.PlaceholderOp)]
    placeholders = [t for t in tensors if isinstance(t.op, te.PlaceholderOp)]
    kinds = (True,) if name in POSITIVE else (False, True)
    feeds, expected = numerics.reference_on(placeholders, lambda given: own(tensors, outputs, given), kinds)
    reading = read_te(tensors, "op")
    terms = reference.reduction_terms(tvm.auto_scheduler.ComputeDAG(tensors).ops)
    given = iter(feeds)
    arrays = [next(given) if isinstance(t.op, te.PlaceholderOp) else None for t in tensors]
    for plan in spread([r.plan for r in construct(reading.expression, device(GPU), top=10).plans], PLANS):
        schedule, args = apply_steps_te(TeProgram.of_reading(reading, tensors), lower(plan))
        function = emulated_function(schedule, args)
        for got, wanted in zip(function.run(arrays), expected, strict=True):
            wrong = reference.difference(got, wanted, terms)
            assert not wrong, f"{wrong}\n{function}\n{plan}"


def own(tensors, outputs, feeds):
    """What TVM's default schedule computes on the CPU."""
    kernel = tvm.build(reference.reference_schedule(outputs), tensors, "llvm")
    made = [tvm.nd.empty([int(e) for e in t.shape], t.dtype) for t in outputs]
    given, results = iter(feeds), iter(made)
    kernel(*(tvm.nd.array(next(given)) if isinstance(t.op, te.PlaceholderOp) else next(results) for t in tensors))
    return [m.numpy() for m in made]
