"""Products with constant matrices, all of it in one thread: the terms of the estimate, by hand."""

import json
from dataclasses import replace
from math import ceil, prod
from pathlib import Path

import pytest

from roller_tvm.device.spec import FrozenMap
from roller_tvm.ir import TensorExpression
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.micro_perf.gpu import GpuRates, instructions
from roller_tvm.micro_perf.gpu_constants import BLOCK_CYCLES, LOAD_GUARD_OVERHEAD, LOAD_OVERHEAD, OUTPUT_OVERHEAD
from roller_tvm.recipes.gpu_unrolled import own_tile, unrolled_estimate, unrolled_registers
from roller_tvm.recipes.kinds import multiplies_constants
from roller_tvm.roller.partition import partition

from ..plan.devices import device

V100 = device("v100")


@pytest.fixture(scope="module")
def geometry():
    """Winograd's transform of the input: a thread computes 6 x 6 outputs of one tile and channel."""
    text = Path(__file__).parents[1].joinpath("plan", "read", "winograd_gpu.json").read_text()
    expression = TensorExpression.from_json(json.loads(text))
    made = (Geometry.of(expression, n.anchor, n.inlined, n.output) for n in partition(expression))
    return next(g for g in made if multiplies_constants(g))


def estimate(geometry, spec=V100, threads=64):
    own = own_tile(geometry)
    return unrolled_estimate(geometry, spec, own, threads), own


def test_work_and_traffic(geometry):
    found, own = estimate(geometry)
    rates = GpuRates.of(V100, geometry.stage.dtype)
    outputs, stored = (prod(e[i] for i in geometry.spatial) for e in (geometry.extents, own))
    blocks = ceil(outputs // stored / 64)
    assert (found.blocks, found.threads, found.shared_bytes) == (blocks, 64, 0)
    assert found.registers == unrolled_registers(geometry)
    multiplied = prod(own) * instructions(geometry) * 64 / rates.lanes
    assert found.compute_seconds == pytest.approx(multiplied * blocks / V100.units * rates.cycle)
    far = found.levels[0]
    read = sum(op.source_bytes for op in geometry.operands if not op.computed)
    assert far.bytes >= read + outputs * geometry.output_bytes
    assert far.seconds == pytest.approx(far.bytes / (V100.far.bandwidth_gbps * 1e9))


def test_issue_slots_bound_it_where_all_else_is_fast(geometry):
    """A multiply-add a point; an output and its epilogue, an address; a load, its address, guard and arithmetic."""
    geometry = replace(geometry, epilogue_flops=400)
    levels = tuple(replace(level, bandwidth_gbps=1e9 * level.bandwidth_gbps) for level in V100.levels)
    peaks = FrozenMap({dtype: 1e9 * peak for dtype, peak in V100.peak_gflops.items()})
    fast = replace(V100, levels=levels, peak_gflops=peaks)
    found, own = estimate(geometry, fast)
    read = [op for op in geometry.operands if not op.computed]
    each = [1 + LOAD_OVERHEAD + LOAD_GUARD_OVERHEAD * op.guarded + op.arithmetic for op in read]
    loads = sum(op.elements(own) * slots for op, slots in zip(read, each, strict=True))
    stored = prod(own[i] for i in geometry.spatial) * (1 + 400) + OUTPUT_OVERHEAD
    rates = GpuRates.of(fast, geometry.stage.dtype)
    slots = (prod(own) * instructions(geometry) + stored + loads) * 2  # two warps
    busiest = ceil(found.blocks / fast.units)
    cycles = busiest * (slots / rates.issue + BLOCK_CYCLES) + rates.dram_latency
    assert found.bound == "issue"
    assert found.seconds == pytest.approx(cycles * rates.cycle + fast.launch_overhead_us * 1e-6, rel=1e-6)


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_blocks_fit_as_their_registers_do_and_without_room_for_one_there_is_no_time(geometry, blocks):
    """Handed out by eights to each of 128 threads, a warp for each of four schedulers."""
    each = ceil(unrolled_registers(geometry) / 8) * 8 * 128
    for left_over in (1, each - 1):
        limits = replace(V100.limits, registers_per_unit=blocks * each + left_over)
        found, _ = estimate(geometry, replace(V100, units=1, limits=limits), 128)
        assert (found.occupancy if found else 0) == blocks
