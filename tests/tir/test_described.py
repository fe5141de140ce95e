"""Scheduled TensorIR read back: our own plans give the tiles that they were made of, and their predicted times."""

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.relax

from tvm import s_tir, te  # noqa: E402

from roller_bench.replay.described import kernels_of_function  # noqa: E402
from roller_bench.replay.state import Unreadable  # noqa: E402
from roller_bench.replay.workload import kind_of  # noqa: E402
from roller_tvm.codegen.apply_tensorir import apply_steps_tir  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.micro_perf.gpu_kernel import staged_time  # noqa: E402
from roller_tvm.micro_perf.kernel import DirectKernel, ReduceKernel, StagedKernel  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.roller.features import Features  # noqa: E402
from roller_tvm.te import te_operator  # noqa: E402
from roller_tvm.tir import read_prim_func  # noqa: E402

DEVICE = load_device("a100")
STAGED = {
    "matmul": ("matmul", dict(m=256, n=512, k=128)),
    "conv2d": ("conv2d_nchw", dict(n=2, c=16, h=14, w=14, f=32, kh=3, kw=3, stride=1, padding=1, relu=True)),
    "depthwise": ("depthwise_conv2d_nchw", dict(n=16, c=64, h=28, w=28, k=3, padding=1)),
}  # fmt: skip


def planned(operator, params, recipe, top=10, features=None):
    """Plans of one kernel of a recipe, each with what is read back from its schedule."""
    func = te.create_prim_func(te_operator(operator, **params))
    reading = read_prim_func(func)
    given = {"features": features} if features else {}
    for ranked in construct(reading.expression, DEVICE, top, **given).plans:
        if [p.recipe for p in ranked.plan.programs] == [recipe]:
            schedule = apply_steps_tir(func, reading, lower(ranked.plan))
            (kernel,) = kernels_of_function(schedule.mod["main"], func, reading)
            yield ranked.plan.programs[0], ranked.estimate.programs[0], kernel


@pytest.mark.parametrize("kind", STAGED)
def test_a_staged_plan_is_read_back_whole(kind):
    found = 0
    for program, estimate, kernel in planned(*STAGED[kind], "gpu.tiled", 20):
        found += 1
        axes = kernel.geometry.axes
        assert kind_of(kernel.geometry.expression) == kind and isinstance(kernel, StagedKernel)
        assert dict(zip(axes, kernel.block, strict=True)) == program.tile("shared").shape
        assert dict(zip(axes, kernel.thread, strict=True)) == program.tile("register").shape
        virtual = program.choices_of("vthread")
        assert kernel.vthreads == tuple(virtual.get(a, 1) for a in axes)
        assert (kernel.threads, kernel.store) == (program.choice("threads"), program.choice("store"))
        assert kernel.vectors == tuple(program.choice(f"vector:{op.name}") for op in kernel.geometry.operands)
        assert kernel.shared_bytes == estimate.shared_bytes, "padding of rows is read"
        told = staged_time(kernel, DEVICE, registers=estimate.registers)
        assert told.seconds == pytest.approx(estimate.seconds, rel=1e-6), "loops and what is unrolled of them"
    assert found


def test_buffers_of_copies_that_run_ahead_are_counted():
    features = Features(dynamic_shared=True, async_copy=True)
    stages = {
        (kernel.stages, program.choice("stages", 1))
        for program, _, kernel in planned("matmul", dict(m=512, n=512, k=512), "gpu.tiled", 20, features)
    }
    assert any(n > 1 for n, _ in stages) and all(read == made for read, made in stages)


def test_kernels_without_staging():
    pool = dict(n=2, c=16, h=28, w=28, k=3, stride=2, padding=1)
    program, estimate, kernel = next(planned("max_pool2d", pool, "gpu.direct"))
    assert isinstance(kernel, DirectKernel) and kernel.threads == estimate.threads
    assert (kernel.outputs, kernel.vector) == (program.choice("items", 1), program.choice("vector", 1))
    assert kernel.blocks == estimate.blocks
    program, estimate, kernel = next(planned("reduce_sum", dict(shape=(4096, 512), axis=(1,)), "gpu.reduce"))
    assert isinstance(kernel, ReduceKernel)
    assert (kernel.threads, kernel.blocks) == (estimate.threads, estimate.blocks)
    assert kernel.geometry.reduce


def test_what_has_no_description_says_so():
    func = te.create_prim_func(te_operator("softmax", shape=(64, 1024)))
    reading = read_prim_func(func)
    with pytest.raises(Unreadable, match="bound to no GPU threads|reduce in one kernel"):
        kernels_of_function(func, func, reading)
    plans = construct(reading.expression, DEVICE, 20).plans
    rows = next(r for r in plans if [p.recipe for p in r.plan.programs] == ["gpu.rows"])
    schedule = apply_steps_tir(func, reading, lower(rows.plan))
    with pytest.raises(Unreadable, match="no known kind of kernel"):
        kernels_of_function(schedule.mod["main"], func, reading)


def test_axes_fused_across_a_tile_are_not_guessed_at():
    func = te.create_prim_func(te_operator("matmul", m=30, n=50, k=16))
    reading = read_prim_func(func)
    schedule = s_tir.Schedule(func)
    block = schedule.get_sblock(reading.blocks[reading.expression.anchor.name])
    for n in (0, 1):
        schedule.cache_read(block, n, "shared")
    schedule.cache_write(block, 0, "local")
    i, j, k = schedule.get_loops(block)
    grid, threads = schedule.split(schedule.fuse(i, j), [None, 32])
    schedule.bind(grid, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    for name in ("A", "B"):
        schedule.compute_at(schedule.get_sblock(f"{name}_shared"), k)
    with pytest.raises(Unreadable):
        kernels_of_function(schedule.mod["main"], func, reading)
