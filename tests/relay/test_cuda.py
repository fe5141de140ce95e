"""Plans compiled to cubins: what the kernels take is what the model said, and what spills is changed or refused."""

from dataclasses import replace

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from roller_tvm.codegen import find_compilers  # noqa: E402
from roller_tvm.codegen.apply_te import TeProgram  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.micro_perf.estimate import Estimate  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.relay.cuda import ResourcesDiffer, check_resources  # noqa: E402
from roller_tvm.roller.alignment import Rejection  # noqa: E402
from roller_tvm.roller.rtile import RTile  # noqa: E402
from roller_tvm.te import read_te, te_operator  # noqa: E402

from ..sampling import covering  # noqa: E402

needs_compiler = pytest.mark.skipif(not find_compilers(), reason="neither NVRTC nor nvcc is here")
ARCHS = ("sm_80", "sm_90")


def planned(name, **params):
    tensors = te_operator(name, **params)
    reading = read_te(tensors)
    best = construct(reading.expression, load_device("h200"), top=1).best
    return best, TeProgram.of_reading(reading, tensors)


@needs_compiler
@pytest.mark.parametrize(
    ("name", "params", "dtype"),
    covering(
        [
            ("matmul", dict(m=256, n=1000, k=512, layout="NT", bias=True, relu=True)),
            ("conv2d_nchw", dict(n=1, c=64, h=14, w=14, f=64, kh=3, kw=3, stride=1, padding=1)),
            ("max_pool2d", dict(n=1, c=16, h=28, w=28, k=3, stride=2, padding=1)),
            ("softmax", dict(shape=(64, 4096))),
        ],
        ["float32", "float16"],
    ),
)
def test_kernels_take_what_was_predicted(name, params, dtype):
    ranked, program = planned(name, **params, dtype=dtype)
    checked = check_resources(ranked.plan, ranked.estimate, program, ARCHS)
    assert not isinstance(checked, Rejection), checked
    for arch in ARCHS:
        kernels = checked.kernels(arch)
        assert len(kernels) == len(ranked.plan.programs)
        for kernel, predicted in zip(kernels, ranked.estimate.programs, strict=True):
            assert kernel.local_bytes == 0 and kernel.shared_bytes == predicted.shared_bytes
            assert kernel.registers <= 2 * predicted.registers
            assert kernel.max_threads == predicted.threads


@needs_compiler
def test_a_tile_that_spills_is_refused_with_the_bytes():
    ranked, te_program = planned("matmul", m=1024, n=1024, k=1024)
    program = ranked.plan.programs[0]
    axes = [a for a, _ in program.tiles[0].extents]
    # 256 accumulators: more than the registers that a thread can have.
    tiles = tuple(
        RTile(level, tuple(zip(axes, extents, strict=True)))
        for level, extents in (("shared", (64, 128, 4)), ("register", (16, 16, 1)))
    )
    changed = replace(program, tiles=tiles, choices=(("threads", 32), ("vector:A", 1), ("vector:B", 1)))
    plan = replace(ranked.plan, programs=(changed,))
    refused = check_resources(plan, ranked.estimate, te_program, ("sm_80",))
    assert isinstance(refused, Rejection) and refused.rule == "registers"
    assert "B of local memory" in refused.required


@needs_compiler
def test_a_wrong_prediction_is_an_error_that_names_both_numbers():
    ranked, program = planned("matmul", m=256, n=256, k=256)
    lying = Estimate(tuple(replace(p, shared_bytes=p.shared_bytes + 16) for p in ranked.estimate.programs))
    with pytest.raises(ResourcesDiffer, match=r"shared memory of \[\d+.*predicted \[\d+"):
        check_resources(ranked.plan, lying, program, ("sm_80",))
