"""Caches in the CPU's model, by hand: what a kernel finds there, what it writes, and runs that prefetchers follow."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from roller_tvm.ir import Access, Axis, Index, Stage, Tensor, TensorExpression
from roller_tvm.ir.operators import operator
from roller_tvm.ir.parts import share_parts
from roller_tvm.micro_perf.cold_weights import waiting
from roller_tvm.micro_perf.cpu import TileCost, register_use, tiled_times
from roller_tvm.micro_perf.cpu_caches import (
    Loops,
    entering,
    starting,
    storing,
    stream_cycles,
    touched_bytes,
    walking,
)
from roller_tvm.micro_perf.cpu_constants import BEFORE_FOUND, CACHE_SHARE, FROM_ANOTHER_CORE, PAGES, STORED
from roller_tvm.micro_perf.cpu_rates import CpuRates
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.micro_perf.other_cores import arriving, between_nests, chunk_order, torn
from roller_tvm.planner.construct import construct
from roller_tvm.recipes.cpu_direct import stage_cycles

from ..plan.devices import device

ONE = replace(device("avx512"), units=1)  # 32 kB, 1 MB, 4 MB of 16


def nest_of(geometry, chunk, orders, after=0):
    chunks, order = np.array(chunk).reshape(-1, 1), np.array(orders, np.int64).reshape(-1, 1)
    return Loops(geometry, CpuRates.of(ONE, geometry), chunks, order, after=after)


def test_what_a_cache_holds_comes_from_no_farther():
    small, large = (Geometry.of(operator("matmul", m=m, n=64, k=256), "matmul") for m in (256, 4096))
    for geometry, moves in ((small, False), (large, True)):
        nest = nest_of(geometry, geometry.extents, (0, 1))
        moved = [float(np.sum(entering(nest, at, np.array([[4], [16], [256]])))) for at in (1, 2)]
        assert moved[0] > 0 and (moved[1] > 0) is moves


@pytest.mark.parametrize("steps, orders, share", [
    (PAGES, (1, 0), 1 / 5), (PAGES, (0, 1), 1), (PAGES, (1, -1), 1), (2 * PAGES, (1, 0), 1),
])  # fmt: skip
def test_pages_are_known_while_inner_loops_read_them_again(steps, orders, share):
    """30 rows in tiles of 6 by 2048 columns, each step in another page: the loop over rows reads the same columns."""
    geometry = Geometry.of(operator("matmul", m=30, n=2048, k=steps), "matmul")
    nest = nest_of(geometry, (30, 2048, steps), orders)
    assert walking(nest, geometry.operands[1], np.array([[6], [16], [1]])) == pytest.approx([share])


def test_a_line_that_is_written_through_the_nearest_cache_counts_thrice():
    rates = CpuRates.of(ONE, Geometry.of(operator("relu", shape=(8, 64)), "relu"))
    expected = (6e5 + (STORED - 1) * 2e5) / rates.caches[1][2]
    assert STORED == 3 and stream_cycles(6e5, 2e5, rates, ONE) == ("l2", pytest.approx(expected))


def test_a_cache_loses_what_it_cannot_hold_little_by_little():
    rates = CpuRates.of(ONE, Geometry.of(operator("relu", shape=(8, 64)), "relu"))
    (_, capacity, near), (_, _, far) = rates.caches[1:]
    half = stream_cycles(1.5 * capacity, 0.0, rates, ONE)[1]
    assert half == pytest.approx(0.75 * capacity / near + 0.75 * capacity / far)


def plane(chunk, tile, orders):
    """Cycles for the runs of 64 channels in blocks of 16, at 56 x 56, from beyond a core's caches."""
    geometry = Geometry.of(blocked(), "conv")
    nest = nest_of(geometry, chunk, orders, after=64 * 56 * 56 * 4)
    return float(np.sum(starting(nest, np.array(tile).reshape(-1, 1), ONE, 44.0)))


def blocked():
    axes = (Axis("y", 56), Axis("x", 56), Axis("f", 16), Axis("o", 16, "reduce"), Axis("i", 16, "reduce"))
    reads = (Access("A", tuple(Index.axis(n) for n in "oyxi")), Access("W", tuple(Index.axis(n) for n in "oif")))
    stage = Stage("conv", axes, reads, "float32", (("fma", 1),), "sum")
    inputs = (Tensor("A", (16, 56, 56, 16), "float32"), Tensor("W", (16, 16, 16), "float32", constant=True))
    return TensorExpression("conv", inputs, (stage,), "conv")


def test_prefetchers_follow_tiles_along_rows():
    """Tiles of 1 x 14 pixels go on in the next; halves of rows do not; of 7 x 2 there are too many runs to follow."""
    whole, half = (plane((56, x, 16, 16, 16), (1, 14, 16, 1, 1), (0, 1)) for x in (56, 28))
    across = plane((56, 56, 16, 16, 16), (7, 2, 16, 1, 1), (0, 1))
    wait = BEFORE_FOUND * ONE.level("l3").latency_ns * ONE.clock_ghz
    assert whole == pytest.approx(wait)  # the tensor is one run
    assert half == pytest.approx(16 * 56 * wait)  # a run a row of each block of channels
    assert across == pytest.approx(16 * 56 * 56 / 2 / 7 * wait)  # every second line, of seven rows at a time


TWO = replace(device("avx512"), units=2)


def waited(chunk, tile, operand="B"):
    """Cycles in which a chunk of a product of 80 by 400 by 200 waits for the operand that is no constant."""
    geometry = of_weights(operator("matmul", m=80, n=400, k=200), operand)
    rates = CpuRates.of(TWO, geometry)
    chunks, tiles = np.array([*chunk, 200]).reshape(-1, 1), np.array([*tile, 1]).reshape(-1, 1)
    cost, number = TileCost.of(geometry, tiles, rates), geometry.covering(chunks)
    step = np.maximum(cost.arithmetic, cost.loads) / 200
    found = arriving(geometry, TWO, rates, chunks, tiles, cost.use.accumulators, step, number, geometry.spatial)
    return float(np.sum(found))


def test_a_core_waits_for_what_another_has_written_unless_it_shares_its_rows():
    """Rows of A are a core's own; of columns of B, of which it reads half, the other core has written half."""
    assert waited((40, 400), (5, 80), "A") == 0 < waited((80, 200), (5, 80), "A")
    latency = FROM_ANOTHER_CORE * TWO.level("l3").latency_ns * TWO.clock_ghz
    lines = 200 * 400 * 4 / 64 / 2  # of 320 kB, written by the other core
    assert waited((40, 400), (5, 80)) == pytest.approx(lines * latency / 16)  # as many as can be under way


def of_weights(expression, operand):
    """The geometry of an operator all of whose operands are constants but one."""
    inputs = tuple(replace(t, constant=t.name != operand) for t in expression.inputs)
    return Geometry.of(replace(expression, inputs=inputs), expression.stages[-1].name)


@pytest.mark.parametrize(
    "name, chunk, waits", [("conv2d_nhwc", (1, 14, 28, 64), False), ("conv2d_nchw", (1, 64, 14, 28), True)]
)
def test_blocks_of_channels_that_are_added_up_are_those_of_all_cores(name, chunk, waits):
    """Each core has written half of the channels, and reads half of the rows of all."""
    conv = operator(name, n=1, c=64, h=28, w=28, f=64, k=1)
    geometry = of_weights(conv, conv.inputs[0].name)
    one = np.ones((len(geometry.extents), 1), np.int64)
    chunks = np.array([*chunk, *(geometry.extents[i] for i in geometry.reduce)]).reshape(-1, 1)
    found = arriving(geometry, TWO, CpuRates.of(TWO, geometry), chunks, one, np.ones(1), np.ones(1),
                     geometry.covering(chunks), geometry.spatial)  # fmt: skip
    assert bool(np.sum(found) > 0) is waits


@pytest.mark.parametrize("held", [0.5, 16.0])
def test_a_core_waits_for_planes_that_other_cores_have_left_in_their_caches(held):
    """Of the 36 planes of a core's tiles of Winograd's products, the other core has written half."""
    text = Path(__file__).parent.parent.joinpath("plan", "read", "winograd_strips.json").read_text()
    expression = share_parts(TensorExpression.from_json(json.loads(text)))
    last = Geometry.of(expression, "winograd", ("back",))
    first = Geometry.of(expression, "transformed", ("padded", "there"))
    rates = CpuRates.of(TWO, last)
    (size,) = (op.source_bytes for op in last.operands if op.name == "product")
    near = replace(TWO, levels=tuple(
        replace(lv, capacity_bytes=int(size * held)) if lv.name == "l2" else lv for lv in TWO.levels))  # fmt: skip
    latency = FROM_ANOTHER_CORE * TWO.level("l3").latency_ns * TWO.clock_ghz
    kept = min(1.0, CACHE_SHARE * held * 2)
    expected = size / 2 / 2 * kept / 64 * latency / 16
    assert between_nests(last, near, CpuRates.of(near, last)) == pytest.approx(expected)
    assert between_nests(first, near, rates) == between_nests(last, ONE, rates) == 0.0  # pixels are another kernel's


@pytest.mark.parametrize("columns, chunk, share", [
    (72, (6400, 16), 1 / 2), (128, (6400, 16), 0), (128, (6400, 12), 3 / 4), (72, (1, 16), 0), (72, (1, 72), 0),
])  # fmt: skip
def test_cores_that_share_the_elements_of_rows_meet_within_lines(columns, chunk, share):
    """Rows of 288 bytes begin at a line or at half of one, where another core's part may begin, too."""
    g = Geometry.of(operator("relu", shape=(6400, columns)), "relu")
    latency = FROM_ANOTHER_CORE * TWO.level("l3").latency_ns * TWO.clock_ghz
    order = (0, 1)
    assert torn(g, TWO, CpuRates.of(TWO, g), chunk, order) == pytest.approx(6400 * share * latency / 2)
    assert torn(g, ONE, CpuRates.of(ONE, g), chunk, order) == 0.0


def weights_waited(chunk, order, rows=49):
    """Cycles in which a chunk waits for its part of 192 x 1152 weights, beside 7,000 a tile of 7 x 48."""
    geometry = of_weights(operator("matmul", m=rows, n=1152, k=192), "A")
    chunks, loops = np.array([*chunk, 192]).reshape(-1, 1), np.array(order, np.int64).reshape(-1, 1)
    nest = Loops(geometry, CpuRates.of(TWO, geometry), chunks, loops, units=2)
    tiles, computed = np.array([[7], [48], [1]]), np.full(1, 7000.0 * chunk[0] * chunk[1] / 7 / 48)
    found = waiting(nest, tiles, computed, geometry.covering(chunks), chunk_order(geometry))
    return float(np.sum(found)), nest.rates.far


def test_weights_come_while_a_kernel_computes_if_its_loops_ask_for_the_next_panel():
    """Walked once a row they are waited for in the first walk; panel by panel, the first one is."""
    (rows, rate), (panels, _) = weights_waited((49, 576), (0, 1)), weights_waited((49, 576), (1, 0))
    half, computed = 192 * 576 * 4 / rate, 7000 * 7 * 12
    assert rows == pytest.approx(half)
    assert panels == pytest.approx(half / 12 + math.hypot(computed, half * 11 / 12) - computed) and panels < half / 3
    once, _ = weights_waited((7, 576), (-1, 1), rows=7)  # a stream
    assert once == pytest.approx(math.hypot(computed / 7, half) - computed / 7)


def test_slices_find_their_weights_in_a_cache():
    geometry = of_weights(operator("matmul", m=64, n=64, k=64), "A")
    cold, kept = (tiled_times(geometry, TWO, (32, 64, 64), (4, 32, 1), (1, 0), cold=cold) for cold in (True, False))
    assert cold.seconds[0] > kept.seconds[0]


def test_chunks_of_the_largest_operand_stand_outside():
    few, many = (Geometry.of(operator("matmul", m=m, n=256, k=64), "matmul") for m in (64, 1024))
    assert chunk_order(few) == [1, 0] and chunk_order(many) == [0, 1]


def test_few_multiply_adds_a_line_keep_more_lines_under_way():
    """97 wait at a time: of 10 x 2 vectors those of 4.85 steps, with 9.7 lines; of 20 x 1 4.85."""
    wide, narrow = (waited((40, 400), tile) for tile in ((10, 32), (20, 16)))
    assert narrow == pytest.approx(2 * wide)


def test_one_check_serves_a_row_of_an_unrolled_window():
    """Tiles of 1 x 16 pixels: 16 loads, 4 for the checks, where each of 16 rows has its own."""
    conv = operator("conv2d_nhwc", n=1, c=3, h=64, w=64, f=16, k=3, padding=1)
    geometry = Geometry.of(conv, "conv2d", ["pad"])
    across, down = ((1, y, x, 16, 1, 1, 1) for y, x in ((1, 16), (16, 1)))
    more = [float(register_use(geometry, [np.array([e]) for e in t], 16).gathers[0]) for t in (across, down)]
    assert more == [4, 48]


def test_rows_that_are_looked_up_are_no_table():
    read = Access("T", (Index.whole(), Index.axis("c")))
    rows = Stage("take", (Axis("r", 128), Axis("c", 768)), (read,), "float32")
    table = TensorExpression("take", (Tensor("T", (30000, 768), "float32"),), (rows,), "take")
    geometry = Geometry.of(table, "take")
    assert touched_bytes(geometry, geometry.operands[0], 64) == 128 * 768 * 4
    assert construct(table, ONE).best.seconds < 1e-4


def test_of_a_slice_its_part_counts():
    read = Access("T", (Index.axis("r"), Index.axis("c")))
    part = Stage("part", (Axis("r", 128), Axis("c", 64)), (read,), "float32")
    geometry = Geometry.of(TensorExpression("part", (Tensor("T", (128, 2304), "float32"),), (part,), "part"), "part")
    assert touched_bytes(geometry, geometry.operands[0], 64) == 128 * 64 * 4


def test_vectors_that_fill_no_register_are_loaded_in_pieces():
    """8 elements of 120 at a time, in one piece, take less than 15, in four."""
    geometry = Geometry.of(operator("add", shape=(784, 120), other=(784, 120)), "add")
    rates = CpuRates.of(ONE, geometry)
    whole, pieces = (stage_cycles(geometry, rates, vector).instructions for vector in (8, 15))
    assert whole < pieces < 2 * whole


def test_of_a_concatenation_each_element_is_read_once():
    """However many parts it has: at one point one of them is read, behind one check."""

    def joined(parts):
        inputs = tuple(Tensor(f"t{n}", (64 // parts, 256), "float32") for n in range(parts))
        shifted = (replace(Index.axis("r"), const=-n * (64 // parts)) for n in range(parts))
        reads = tuple(Access(t.name, (row, Index.axis("c")), guarded=True)
                      for t, row in zip(inputs, shifted, strict=True))  # fmt: skip
        stage = Stage("y", (Axis("r", 64), Axis("c", 256)), reads, "float32")
        return Geometry.of(TensorExpression("y", inputs, (stage,), "y"), "y")

    few, many = (stage_cycles(g, CpuRates.of(ONE, g), 16).instructions for g in map(joined, (2, 16)))
    assert few == pytest.approx(many)


def test_passes_through_a_cache_wait_for_the_lines_that_come_into_it():
    """Weights from a slow memory: tiles of more rows pass through them less often, and memory does not hide that."""
    product = operator("batch_matmul", b=16, m=16, n=512, k=512)
    data, weights = product.inputs
    geometry = Geometry.of(replace(product, inputs=(data, replace(weights, constant=True))), "matmul")
    levels = tuple(replace(lv, bandwidth_gbps=12.0) if lv.name in ("l3", "dram") else lv for lv in ONE.levels)
    slow = replace(ONE, levels=levels)
    tiles = np.array([[1, 1], [4, 8], [32, 32], [1, 1]])  # 4 passes through the second cache, and 2
    chunks = np.array([[16, 16], [16, 16], [512, 512], [512, 512]])
    order = np.array([[0, 0], [2, 2], [1, 1]])
    four, two = tiled_times(geometry, slow, chunks, tiles, order, cold=False).seconds
    rates = CpuRates.of(slow, geometry)
    passes = 2 * weights.bytes / rates.caches[1][2] * rates.cycle
    assert four - two == pytest.approx(passes, rel=0.25)


def test_runs_of_outputs_that_leave_the_caches_take_time_to_begin():
    """With the loop over channels inside, a chunk's rows of pixels are one run; outside, each tile's vectors are."""
    conv = operator("conv2d_nhwc", n=1, c=64, h=56, w=56, f=256, k=1)
    geometry = of_weights(conv, conv.inputs[0].name)
    chunk, tile = (1, 28, 56, 256, 1, 1, 64), np.array([1, 1, 14, 32, 1, 1, 1]).reshape(-1, 1)
    inside, outside = (
        float(np.sum(storing(replace(nest_of(geometry, chunk, order, after=56 * 56 * 256 * 4), units=2), tile, TWO)))
        for order in ((1, 2, 3), (3, 1, 2))
    )
    assert outside == pytest.approx(inside * 56 * 256 / 32) and inside > 0
    small = Geometry.of(operator("conv2d_nhwc", n=1, c=64, h=7, w=7, f=64, k=1), "conv2d")
    assert np.sum(storing(nest_of(small, (1, 7, 7, 64, 1, 1, 64), (3, 1, 2)), tile // 2 + 1, TWO)) == 0
