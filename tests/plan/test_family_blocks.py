"""Families of blocks: which block serves which number of elements, and which operators have them."""

from dataclasses import replace
from math import ceil

import pytest

from roller_tvm.ir.operators import operator
from roller_tvm.planner.construct import construct
from roller_tvm.planner.family import _Planning
from roller_tvm.planner.family_blocks import SQUARES, block_family
from roller_tvm.planner.family_values import EACH, TOLERATED
from roller_tvm.roller.features import NO_FEATURES

from .devices import device

CPU = device("avx2")


def taking(seconds):
    """A plan of so many seconds; blocks look at packings and times alone."""
    ranked = construct(operator("relu", shape="8x8"), CPU, 1).best
    (program,) = ranked.estimate.programs
    return replace(ranked, estimate=replace(ranked.estimate, programs=(replace(program, seconds=seconds),)))


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("each", [(16.0, 5.0, 2.0), (12.0, 4.0, 1.1), (40.0, 4.0, 1.0)])
def test_a_number_of_elements_has_the_block_that_keeps_the_busiest_core_shortest(cores, each):
    seconds = dict(zip(SQUARES, each, strict=True))
    family = block_family("t", lambda size: [taking(2 * seconds[size]), taking(seconds[size])], cores)
    assert family.parallel
    for elements in range(1, EACH + 9):
        times = {s: ceil(ceil(elements / s) / cores) * t for s, t in seconds.items() if s <= elements}
        (own,) = family.member([elements]).extents
        assert times[own] <= TOLERATED * min(times.values()) * (1 + 1e-9) or elements > EACH


@pytest.mark.parametrize("without", SQUARES)
def test_each_block_needs_a_plan(without):
    assert block_family("t", lambda size: [] if size == without else [taking(1.0)], 2) is None


def test_one_sum_has_no_blocks():
    planning = _Planning(lambda e: operator("matmul", m=e[0], n=64, k=64), ("m",), (True,), CPU, NO_FEATURES)
    assert planning.blocks() is None
