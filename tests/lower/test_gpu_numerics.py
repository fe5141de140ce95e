"""GPU plans executed without a GPU: their OpenCL source on PoCL against TVM's own schedule.

Needs pyopencl and a PoCL platform (Debian: pocl-opencl-icd). Each SAMPLE-th at every change, all in ``make nightly``.
"""

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = [pytest.mark.tvm, pytest.mark.usefixtures("pocl")]

from roller_check.relay_plans import opencl_function  # noqa: E402
from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.planner.gpu_variants import variants  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.relay.reference import difference, make_inputs, reduction_terms  # noqa: E402
from roller_tvm.roller.rprogram import Plan  # noqa: E402
from roller_tvm.te import read_te, te_operator  # noqa: E402

from ..sampling import sampled  # noqa: E402
from .gpu_check import expected_of, spread  # noqa: E402

OPERATORS = {
    "matmul": ("matmul", dict(m=128, n=96, k=64)),
    "matmul nt bias relu": ("matmul", dict(m=64, n=128, k=48, layout="NT", bias=True, relu=True)),
    "matmul tn": ("matmul", dict(m=96, n=64, k=40, layout="TN")),
    "matmul odd": ("matmul", dict(m=83, n=50, k=27)),
    "matmul prime rows": ("matmul", dict(m=67, n=64, k=48)),
    "matmul prime columns": ("matmul", dict(m=64, n=37, k=50, bias=True)),
    "matmul primes": ("matmul", dict(m=41, n=37, k=43)),
    "conv prime": ("conv2d_nchw", dict(n=1, c=8, h=37, w=37, f=8, kh=3, kw=3, stride=1, padding=1)),
    "matrix and vector": ("matmul", dict(m=1, n=50, k=96, layout="NT", bias=True, relu=True)),
    "matrix and vector, long": ("matmul", dict(m=1, n=7, k=3000, layout="NT")),
    "matmul split": ("matmul", dict(m=4, n=64, k=2048)),
    "matmul split bias relu": ("matmul", dict(m=2, n=32, k=1024, bias=True, relu=True)),
    "batch matmul": ("batch_matmul", dict(b=3, m=32, n=40, k=24)),
    "conv": ("conv2d_nchw", dict(n=2, c=8, h=14, w=14, f=16, kh=3, kw=3, stride=1, padding=1, bias=True, relu=True)),
    "conv split": ("conv2d_nchw", dict(n=1, c=64, h=7, w=7, f=16, kh=3, kw=3, stride=1, padding=1, relu=True)),
    "conv strided": ("conv2d_nchw", dict(n=1, c=6, h=15, w=15, f=8, kh=3, kw=3, stride=2, padding=1)),
    "conv 1x1": ("conv2d_nchw", dict(n=2, c=32, h=14, w=14, f=64, kh=1, kw=1, stride=1, padding=0)),
    "conv dilated": ("conv2d_nchw", dict(n=1, c=4, h=16, w=16, f=8, kh=3, kw=3, stride=1, padding=2, dilation=2)),
    "conv nhwc": ("conv2d_nhwc", dict(n=1, c=16, h=12, w=12, f=32, kh=3, kw=3, stride=1, padding=1)),
    "depthwise": ("depthwise_conv2d_nchw", dict(n=2, c=8, h=21, w=21, k=5, stride=1, padding=2)),
    "depthwise strided": ("depthwise_conv2d_nchw", dict(n=1, c=8, h=20, w=20, k=3, stride=2, padding=1)),
    "max pool": ("max_pool2d_nchw", dict(n=2, c=4, h=15, w=15, k=3, stride=2, padding=1)),
    "relu": ("relu", dict(shape=(2, 8, 7, 7))),
    "reduce rows": ("reduce_sum", dict(shape=(64, 1000), axis=(1,))),
    "reduce all": ("reduce_sum", dict(shape=(8, 20480), axis=(0, 1))),
    "reduce columns": ("reduce_max", dict(shape=(6400, 8), axis=(0,))),
    "reduce planes": ("reduce_max", dict(shape=(2, 16, 7, 7), axis=(2, 3))),
    "softmax": ("softmax", dict(shape=(32, 100))),
}


SAMPLE = 8


@pytest.mark.parametrize("name", sampled(OPERATORS, SAMPLE))
def test_results(name):
    operator, params = OPERATORS[name]
    tensors = te_operator(operator, **params)
    reading = read_te(tensors)
    feeds = make_inputs(tensors[:-1])
    expected = expected_of(tensors, feeds)
    for plan in spread([r.plan for r in construct(reading.expression, load_device("v100"), top=10).plans], 3):
        schedule, args = apply_steps_te(TeProgram.of_reading(reading, tensors), lower(plan))
        (got,) = opencl_function(schedule, args).run(feeds)
        wrong = difference(got, expected, reduction_terms([tensors[-1].op]))
        assert not wrong, f"{wrong}\n{plan}"


def test_variants_compute_the_same():
    operator, params = OPERATORS["conv"]
    tensors = te_operator(operator, **params)
    reading = read_te(tensors)
    feeds = make_inputs(tensors[:-1])
    expected = expected_of(tensors, feeds)
    plan = construct(reading.expression, load_device("v100"), top=1).best.plan
    for name, program in variants(plan.programs[0]):
        changed = Plan(plan.expression, plan.device, (program,))
        schedule, args = apply_steps_te(TeProgram.of_reading(reading, tensors), lower(changed))
        (got,) = opencl_function(schedule, args).run(feeds)
        wrong = difference(got, expected, 72)
        assert not wrong, f"{name}: {wrong}\n{changed}"
