"""Instructions of staged kernels and the chain of a step: against machine code, and by hand.

The loads on the right were read from the main loops of NVRTC 12.9's code for sm_80 (one unrolled body).
"""

from dataclasses import replace

import pytest

from roller_tvm.device import load_device
from roller_tvm.ir.operators import operator, parse_operator
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.micro_perf.gpu import GpuRates
from roller_tvm.micro_perf.gpu_constants import OPERATION_SLOTS
from roller_tvm.micro_perf.gpu_tiles import Tiled, quick_times, shared_reads
from roller_tvm.roller.partition import partition

from ..plan.devices import device


def conv(n, c, h, f, k):
    return operator("conv2d_nchw", n=n, c=c, h=h, w=h, f=f, kh=k, kw=k, stride=1, padding=k // 2)


CASES = {
    # expression, block, thread, virtual threads, unrolled, vectors: FFMA, LDS
    "matmul 16x8": (
        operator("matmul", m=65536, n=1024, k=1024), (128, 64, 8), (16, 8, 1), (1, 2, 1), (1, 1, 4), (512, 24)),
    "conv 1x1, planes whole": (
        conv(128, 256, 14, 1024, 1), (2, 128, 2, 14, 32, 1, 1), (2, 8, 2, 1, 1, 1, 1), (1,) * 7,
        (1, 1, 1, 1, 16, 1, 1), (512, 96)),
    "conv 1x1, one row": (
        conv(128, 168, 42, 168, 1), (8, 84, 1, 21, 8, 1, 1), (8, 12, 1, 1, 1, 1, 1), (1,) * 7,
        (1, 1, 1, 1, 4, 1, 1), (384, 44)),
    "conv 3x3": (
        conv(128, 128, 28, 128, 3), (2, 32, 7, 28, 4, 3, 3), (2, 4, 7, 1, 1, 1, 1), (1,) * 7,
        (1, 1, 1, 1, 1, 3, 3), (504, 90)),
    "depthwise 7x7, part of the window": (
        operator("depthwise_conv2d_nchw", n=128, c=336, h=21, w=21, k=7, stride=1, padding="SAME"),
        (32, 1, 7, 21, 4, 7), (1, 1, 7, 1, 1, 1), (1,) * 6, (1, 1, 1, 1, 4, 7), (196, 77)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_loads_are_those_of_the_machine_code(name):
    expression, block, thread, vthreads, unrolled, (multiply_adds, loads) = CASES[name]
    nest = partition(expression)[-1]
    geometry = Geometry.of(expression, nest.anchor, nest.inlined, nest.output)
    made = Tiled.of(geometry, block, thread, vthreads, unrolled, (1, 1), (0, 0))
    slots = shared_reads(made, 32)[0][0]
    points = 1
    for i in geometry.reduce:
        points *= unrolled[i]
    outputs = 1
    for i in geometry.spatial:
        outputs *= thread[i]
    assert (outputs * points, slots * points) == pytest.approx((multiply_adds, loads))


@pytest.mark.parametrize(("kind", "slots"), [
    ("fma", 1), ("mul", 1), ("add", 1), ("cmp", 1), ("cast", 1), ("exp", 32 / 8), ("sqrt", 32 / 8), ("special", 32 / 8),
])  # fmt: skip
def test_an_operation_takes_a_slot_and_a_special_function_those_of_a_quarter_of_the_lanes(kind, slots):
    """The CUDA guide's table: 128 lanes of an SM for arithmetic, 16 or 32 for special functions."""
    assert OPERATION_SLOTS[kind] == slots and OPERATION_SLOTS["div"] > slots


def test_each_further_buffer_gives_a_load_a_further_step_to_arrive_in():
    """Of one block's own chain; in the end its barriers and its computation remain."""
    geometry, v100 = Geometry.of(operator("matmul", m=4096, n=4096, k=4096), "matmul"), device("v100")
    chains = {}
    for stages in (1, 2, 3, 5, 100, 200):
        made = Tiled.of(geometry, (16, 16, 1), (2, 2, 1), (1, 1, 1), (1, 1, 1), (1, 1), (0, 0), stages=stages)
        told = quick_times(made, v100)
        chains[stages] = told.chain[0] * told.resident[0]
    rates = GpuRates.of(v100, "float32")
    assert chains[1] - chains[2] == pytest.approx(2 * rates.shared_latency)
    assert chains[2] > rates.dram_latency and chains[2] == pytest.approx(2 * chains[3]) == pytest.approx(4 * chains[5])
    assert chains[100] == pytest.approx(chains[200]) and 2 * rates.shared_latency < chains[100] < chains[5]


@pytest.mark.parametrize("name", ["v100", "k80", "ipu_mk1"])
def test_what_an_epilogue_reads_passes_the_farthest_level_once_behind_all_blocks(name):
    geometry, spec = Geometry.of(operator("matmul", m=512, n=512, k=512), "matmul"), load_device(name)
    extra = 1 << 30

    def told(geometry, on=spec):
        return quick_times(Tiled.of(geometry, (32, 32, 8), (4, 4, 1), (1, 1, 1), (1, 1, 8), (1, 1), (0, 0)), on)

    plain, more = told(geometry), told(replace(geometry, epilogue_bytes=extra))
    rates = GpuRates.of(spec, "float32")
    assert more.far[0] - plain.far[0] == pytest.approx(extra)
    assert more.seconds[0] - plain.seconds[0] == pytest.approx(extra / rates.dram / spec.units * rates.cycle)
    slow = replace(spec, launch_overhead_us=spec.launch_overhead_us + 5)
    assert told(geometry, slow).seconds[0] - plain.seconds[0] == pytest.approx(5e-6)
    assert plain.seconds[0] > 512 * 512 * 4 / (spec.far.bandwidth_gbps * 1e9)


@pytest.mark.parametrize("words", ["matmul m=512 n=512 k=512", "matmul m=512 n=512 k=512 dtype=float64"])
def test_a_step_takes_its_work_however_threads_share_it(words):
    """Twice as deep it is twice as long, in every pipe; of half the threads each has two tiles in turn."""
    geometry, v100 = Geometry.of(parse_operator(words.split()), "matmul"), device("v100")

    def told(depth, turns):
        made = Tiled.of(geometry, (64, 64, depth), (4, 4, 1), (1, 1, 1), (1, 1, 8), (1, 1), (0, 0))
        pipes = quick_times(replace(made, threads=made.threads // turns), v100).pipes
        return {name: cycles[0] for name, cycles in pipes.items() if turns == 1 or name != "dram"}

    once = told(16, 1)
    assert set(once) == {"compute", "issue", "shared", "l2", "dram"}
    assert told(32, 1) == pytest.approx({name: 2 * cycles for name, cycles in once.items()})
    assert told(16, 2) == pytest.approx({name: once[name] for name in once if name != "dram"})
