"""Kernels of the Relay line, as TVM 0.17 generates them, executed and compared with TVM's own schedule for the CPU."""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.relay", reason="needs the Relay line")
pytestmark = pytest.mark.tvm

from roller_check.faults import KernelFault  # noqa: E402
from roller_check.relay_plans import check_plan, emulated_function  # noqa: E402
from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.relay.reference import difference, make_inputs, reduction_terms  # noqa: E402
from roller_tvm.te import te_operator  # noqa: E402

from ..lower.gpu_check import expected_of, plans_with, spread  # noqa: E402
from ..sampling import sampled  # noqa: E402

OPERATORS = {
    "matmul": ("matmul", dict(m=64, n=96, k=40, bias=True, relu=True)),
    "matmul primes": ("matmul", dict(m=41, n=37, k=43)),
    "conv": ("conv2d_nchw", dict(n=1, c=8, h=14, w=14, f=16, kh=3, kw=3, stride=1, padding=1, bias=True, relu=True)),
    "depthwise": ("depthwise_conv2d_nchw", dict(n=1, c=8, h=13, w=13, k=3, stride=2, padding=1)),
    "softmax, with shuffles": ("softmax", dict(shape=(16, 100))),
    "rows that lanes share, left over": ("reduce_sum", dict(shape=(7, 300), axis=(1,))),
    "reduction in two kernels": ("reduce_sum", dict(shape=(4, 20480), axis=(1,))),
    "transpose": ("transpose", dict(shape=(37, 65), perm=(1, 0))),
}


@pytest.mark.parametrize("name", sampled(OPERATORS, 3))
def test_our_plans(name):
    operator, parameters = OPERATORS[name]
    tensors = list(te_operator(operator, **parameters))
    plans, reading = plans_with(tensors)
    feeds = make_inputs(tensors[:-1])
    expected = expected_of(tensors, feeds)
    for plan in spread(plans, 3):
        function = emulated_function(*apply_steps_te(TeProgram.of_reading(reading, tensors), lower(plan)))
        (got,) = function.run(feeds)
        wrong = difference(got, expected, reduction_terms([tensors[-1].op]))
        assert not wrong, f"{wrong}\n{function}\n{plan}"


def test_a_plan_too_large_to_run_whole_is_run_in_part():
    tensors = list(te_operator("matmul", m=256, n=256, k=64))
    (plan, *_), _ = plans_with(tensors)
    whole, part = check_plan(plan, tensors), check_plan(plan, tensors, budget_s=0.02)
    assert whole.blocks == whole.of_blocks and whole.elements == 256 * 256
    assert 2 <= part.blocks < part.of_blocks == whole.of_blocks
    assert part.elements == part.blocks * 256 * 256 // part.of_blocks
    assert f"{part.blocks} of {part.of_blocks} blocks" in str(part)


def two_stages(columns=64):
    """Rows' maxima in a first kernel, what is left above them in a second."""
    from tvm import te

    a = te.placeholder((24, columns), name="A")
    k = te.reduce_axis((0, columns), name="k")
    b = te.compute((24,), lambda i: te.max(a[i, k], axis=k), name="B")
    c = te.compute((24, columns), lambda i, j: b[i] - a[i, j], name="C")
    s = te.create_schedule(c.op)
    s[b].bind(s[b].op.axis[0], te.thread_axis("blockIdx.x"))
    s[b].bind(s[b].op.reduce_axis[0], te.thread_axis("threadIdx.x"))
    s[c].bind(s[c].op.axis[0], te.thread_axis("blockIdx.x"))
    s[c].bind(s[c].op.axis[1], te.thread_axis("threadIdx.x"))
    return s, [a, c]


def test_kernels_hand_over_memory_in_the_order_of_the_host_code():
    import numpy as np

    function = emulated_function(*two_stages())
    assert [len(launch.arguments) for launch in function.launches] == [2, 3]
    assert [str(b) for b in function.between] == ["B: float32[24]"]
    a = np.random.default_rng(0).standard_normal((24, 64)).astype("float32")
    (got,) = function.run([a])
    assert (got == a.max(1, keepdims=True) - a).all()


def test_a_barrier_within_a_branch_that_tvm_generates_is_seen():
    """Reducing with threads that fill no whole warp, TVM 0.17 puts barriers where only some threads pass."""
    import numpy as np

    function = emulated_function(*two_stages(100))
    with pytest.raises(KernelFault, match="divergent barrier: 16 threads wait at line"):
        function.run([np.zeros((24, 100), "float32")])


def test_a_kernel_left_out_is_noticed():
    import dataclasses

    import numpy as np

    function = emulated_function(*two_stages())
    broken = dataclasses.replace(function, launches=function.launches[1:])
    with pytest.raises(KernelFault, match="'B'.*nobody wrote it"):
        broken.run([np.zeros((24, 64), "float32")])
