"""Layout changes: tiles turned in shared memory, read and stored along rows."""

import re

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from roller_tvm.codegen import find_compilers  # noqa: E402
from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.relay.cuda import check_resources, cuda_source  # noqa: E402
from roller_tvm.roller.alignment import Rejection  # noqa: E402
from roller_tvm.te import read_te  # noqa: E402

from . import gpu_check  # noqa: E402


def transpose(shape, axes):
    from tvm import te, topi

    x = te.placeholder(shape, name="x")
    return [x, topi.transpose(x, axes)]


def heads(batch, tokens, count, size):
    """The keys of attention: bias, heads apart, transposed."""
    from tvm import te, topi

    x = te.placeholder((batch * tokens, count * size), name="x")
    bias = te.placeholder((count * size,), name="bias")
    whole = topi.reshape(topi.add(x, bias), (batch, tokens, count, size))
    return [x, bias, topi.reshape(topi.transpose(whole, (0, 2, 3, 1)), (batch * count, size, tokens))]


def sum_with_transposed(rows, columns):
    from tvm import te

    x, y = te.placeholder((rows, columns), name="x"), te.placeholder((columns, rows), name="y")
    return [x, y, te.compute((rows, columns), lambda i, j: x[i, j] + te.exp(y[j, i]), name="out")]


CASES = {
    "matrix": lambda: transpose((256, 192), (1, 0)),
    "odd matrix": lambda: transpose((83, 131), (1, 0)),
    "nchw to nhwc": lambda: transpose((2, 24, 14, 14), (0, 2, 3, 1)),
    "nhwc to nchw": lambda: transpose((2, 14, 14, 24), (0, 3, 1, 2)),
    "outer axes stay": lambda: transpose((3, 4, 33, 65), (1, 0, 3, 2)),
    "attention": lambda: heads(2, 32, 3, 16),
    "with another operand": lambda: sum_with_transposed(96, 160),
}


@pytest.mark.parametrize("name", CASES)
def test_results(pocl, name):
    gpu_check.check(CASES[name](), "gpu.transpose", most=2)


@pytest.mark.skipif(not find_compilers(), reason="neither NVRTC nor nvcc is here")
@pytest.mark.parametrize("name", CASES)
def test_the_kernel_takes_what_was_predicted(name):
    tensors = CASES[name]()
    reading = read_te(tensors)
    plans = construct(reading.expression, load_device("h200"), top=80).plans
    ranked = next(r for r in plans if r.plan.programs[0].recipe == "gpu.transpose")
    checked = check_resources(ranked.plan, ranked.estimate, TeProgram.of_reading(reading, tensors), ("sm_90",))
    assert not isinstance(checked, Rejection)
    (kernel,), (predicted,) = checked.kernels("sm_90"), ranked.estimate.programs
    assert kernel.shared_bytes == predicted.shared_bytes and kernel.registers <= predicted.registers / 0.75
    assert kernel.max_threads == predicted.threads


def test_a_large_transpose_is_turned_in_shared_memory_and_a_copy_is_not():
    def best(tensors):
        return construct(read_te(tensors).expression, load_device("h200"), top=1).best.plan.programs[0].recipe

    assert best(transpose((4096, 4096), (1, 0))) == "gpu.transpose"
    assert best(transpose((64, 128, 12, 64), (0, 2, 1, 3))) == "gpu.direct"  # rows stay rows


def test_neighbouring_threads_touch_neighbouring_elements_both_ways():
    tensors = CASES["matrix"]()
    (plan, *_), reading = gpu_check.plans_with(tensors, "gpu.transpose", "h200")
    source = cuda_source(*apply_steps_te(TeProgram.of_reading(reading, tensors), lower(plan)), "sm_90")
    wide, deep = (dict(plan.programs[0].tile("shared").extents)[a] for a in ("ax1", "ax0"))
    stored = re.findall(r"T_transpose\[(.*)\] = x_shared", source)[0]
    assert f"((int)threadIdx.x) & {wide - 1}" in stored or wide >= plan.programs[0].choice("threads")
    assert deep > 1 and dict(plan.programs[0].tile("shared").padding) == {"x": 1}
