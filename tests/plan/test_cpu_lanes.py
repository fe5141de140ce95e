"""Reductions in lanes: which are merged in the tile that filled them, in how many steps, and what that costs."""

from dataclasses import replace

import pytest

from roller_tvm.ir.operators import matmul, operator, softmax
from roller_tvm.micro_perf.cpu import TileCost
from roller_tvm.micro_perf.cpu_rates import CpuRates
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.planner import construct
from roller_tvm.recipes.cpu_lanes import lanes_cost
from roller_tvm.recipes.lane_nests import LaneNest, lane_nests, lane_splits, merge_splits
from roller_tvm.roller.features import Features
from roller_tvm.roller.partition import partition

from .devices import device


def split(expression, on="avx512"):
    splits = merge_splits(lane_splits(expression, device(on)))
    for each in splits:
        expression = each.apply(expression)
    return expression, splits


def test_weights_that_lie_along_the_reduction_are_multiplied_in_lanes_that_never_leave_the_tile():
    plan = construct(matmul(m=128, n=768, k=768, layout="NT"), device("avx512")).best.plan
    (program,) = plan.programs  # else the partial sums, sixteen times the output, go through memory
    assert (program.recipe, program.anchor, program.output) == ("cpu.lanes", "matmul.rf", "matmul")
    assert program.staged == ("matmul.rf2", "matmul")
    assert [(s.axis, s.parts) for s in plan.split_reductions] == [("k", 16), ("k.p", 4)]
    register = program.tile("register")
    assert register["k.p"] == 16 and register["m"] * register["n"] >= 8  # sums enough to hide their latency


@pytest.mark.parametrize("on, parts", [("avx512", [16, 4]), ("avx2", [8, 4])])
def test_sums_of_rows_are_one_parallel_loop(on, parts):
    plan = construct(operator("reduce_sum", shape=(1024, 768), axis=(1,)), device(on)).best.plan
    assert [p.recipe for p in plan.programs] == ["cpu.lanes"]
    assert [s.parts for s in plan.split_reductions] == parts


def test_few_lanes_are_merged_one_by_one():
    splits = lane_splits(softmax(shape=(64, 20)), device("avx512"))
    assert [s.parts for s in splits] == [4, 4] and merge_splits(splits) == splits


def test_every_reduction_of_rows_becomes_a_nest_with_its_merges():
    expression, _ = split(softmax(shape=(64, 1024)))
    nests = lane_nests(expression, partition(expression))
    found = [(n.anchor, n.merges) for n in nests if isinstance(n, LaneNest)]
    assert found == [("max.rf", ("max.rf2", "max")), ("sum.rf", ("sum.rf2", "sum"))]
    assert [n.anchor for n in nests if not isinstance(n, LaneNest)] == ["norm"]


def test_without_an_axis_beside_the_lanes_there_is_no_tile_to_merge():
    plans = construct(operator("reduce_sum", shape=(4096,), axis=(0,)), device("avx512")).plans
    assert all(p.recipe != "cpu.lanes" for ranked in plans for p in ranked.plan.programs)


def test_merging_costs_what_it_adds_and_what_its_epilogue_calls():
    spec = device("avx512")
    expression, _ = split(matmul(m=16, n=64, k=512, layout="NT"))
    geometry = Geometry.of(expression, "matmul.rf")
    rates = CpuRates.of(spec, geometry)
    merges = [Geometry.of(expression, name) for name in ("matmul.rf2", "matmul")]
    tile = (2, 8, 16, 1)
    cost, plain = lanes_cost(geometry, merges, tile, rates), TileCost.of(geometry, tile, rates)
    # 16 sums, 4 additions of vectors and 4 one by one each.
    assert cost.other - plain.other == pytest.approx(16 * (4 + 4) / min(rates.fma, rates.loads))
    called = [*merges[:-1], replace(merges[-1], epilogue_functions=(("special", 1),))]
    assert lanes_cost(geometry, called, tile, rates).other > cost.other


@pytest.mark.parametrize(
    "width, even, odd", [(197, 0, 16), (40, 8, 16), (24, 8, 8), (20, 4, 8), (64, 16, 16), (37, 0, 16)]
)
def test_lanes_that_divide_nothing_where_schedules_can_say_so(width, even, odd):
    for uneven, lanes in ((False, even), (True, odd)):
        found = {split.parts for split in lane_splits(softmax(shape=(64, width)), device("avx512"), uneven)}
        assert found == ({lanes} if lanes else set())


def test_products_have_whole_lanes():
    """Their rows have other plans, which keep all sums in registers."""
    assert lane_splits(matmul(m=8, n=8, k=203, layout="NT"), device("avx512"), uneven=True) == ()


def test_who_can_say_it():
    cpu = device("avx512")
    for of in (Features.of_te, Features.of_tensor_ir):
        assert of(cpu).uneven_lanes and not of(cpu.built_by_tvm()).uneven_lanes
        assert not of(device("v100")).uneven_lanes
