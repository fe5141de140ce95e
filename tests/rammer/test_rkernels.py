"""rKernels of plans: which elements a block of an rProgram writes."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature

import pytest

from roller_tvm.device import load_device
from roller_tvm.ir.operators import parse_operator
from roller_tvm.planner import construct
from roller_tvm.planner.plan_cache import NoCache, PlanCache
from roller_tvm.rammer.rkernels import phase, planned_rkernels, roperator, tiling_of
from roller_tvm.rammer.rtask import Tiling
from roller_tvm.roller.rprogram import RProgram
from roller_tvm.roller.rtile import RTile

# Two axes, groups and filters of a group, are one dimension of the output: 2 x (4 x 3) x 6 x 6.
GROUPED = parse_operator(["conv2d_nchw", "n=2", "c=8", "h=8", "w=8", "f=12", "k=3", "groups=4"])
REDUCE = {"c": 2, "kh": 3, "kw": 3}


def tiled(**tile: int) -> RProgram:
    shared = RTile("shared", tuple({**tile, **REDUCE}.items()))
    register = RTile("register", tuple(dict.fromkeys({**tile, **REDUCE}, 1).items()))
    return RProgram("gpu.tiled", "conv2d", "conv2d", (shared, register))


@pytest.mark.parametrize(
    ("tile", "expected"),
    [
        ({"n": 1, "f.o": 4, "f.i": 3, "oh": 6, "ow": 6}, Tiling((2, 12, 6, 6), run=12 * 36)),
        ({"n": 2, "f.o": 4, "f.i": 3, "oh": 6, "ow": 6}, Tiling((2, 12, 6, 6), run=2 * 12 * 36)),
        ({"n": 1, "f.o": 2, "f.i": 3, "oh": 6, "ow": 6}, None),
        ({"n": 1, "f.o": 4, "f.i": 3, "oh": 6, "ow": 3}, None),
    ],
)
def test_tiles_of_more_axes_than_dimensions_are_runs_or_unknown(tile: dict[str, int], expected: Tiling | None) -> None:
    assert tiling_of(GROUPED, tiled(**tile)) == expected


def test_a_block_of_lanes_writes_neighbours() -> None:
    relu = parse_operator(["relu", "shape=4x100"])
    tiles = (RTile("block", (("i0", 1), ("i1", 50))), RTile("register", (("i0", 1), ("i1", 2))))
    choices = (("threads", 16), ("items", 3), ("vector", 2))
    assert tiling_of(relu, RProgram("gpu.direct", "relu", "relu", tiles, (), (), choices)) == Tiling((4, 100), run=96)
    assert tiling_of(
        relu, replace(RProgram("gpu.direct", "relu", "relu", tiles), choices=(("threads", 64),))
    ) == Tiling((4, 100), run=64)


def test_a_blocks_share_of_its_units_time() -> None:
    """Three blocks on the busiest of 80 units, two at a time: a third of the time each, and two thirds alone.

    A block that waits for its own loads takes up its share of the pipes alone, where that is less.
    """
    v100 = load_device("v100")
    best = construct(parse_operator(["relu", "shape=4x100"]), v100, 1).best
    (program,), (estimate,) = best.plan.programs, best.estimate.programs
    net, launch = 6e-6, v100.launch_overhead_us * 1e-6
    busy = replace(estimate, seconds=net + launch, compute_seconds=1e-6, levels=(), blocks=201, occupancy=2)
    for bound, share in (("dram", net / 3), ("latency", 1e-6 * 80 / 201)):
        found = phase(best.plan, program, replace(busy, bound=bound), v100)
        assert (found.tasks, found.alone_seconds) == (201, pytest.approx(net / 3 * 2))
        assert found.unit_seconds == pytest.approx(share)
    waits = replace(busy, bound="latency", compute_seconds=9e-6)
    assert phase(best.plan, program, waits, v100).unit_seconds == pytest.approx(net / 3)


@pytest.mark.parametrize("planned", [construct, PlanCache.construct, NoCache.construct, planned_rkernels, roperator])
def test_ten_plans_are_asked_for_wherever_no_number_is_given(planned) -> None:
    """docs and command line say ten."""
    assert signature(planned).parameters["top"].default == 10


def test_an_operator_has_the_rkernels_of_ten_plans() -> None:
    product, v100 = parse_operator(["matmul", "m=64", "n=64", "k=64"]), load_device("v100")
    kernels = roperator("product", product, v100).kernels
    assert kernels == planned_rkernels(product, v100, 10) != planned_rkernels(product, v100, 11)
