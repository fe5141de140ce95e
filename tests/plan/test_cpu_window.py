"""Depthwise convolutions and pooling: which nests are windows, and what limits their register tiles."""

from dataclasses import replace

import pytest

from roller_tvm.expr.operators import operator
from roller_tvm.model.cpu import CpuRates
from roller_tvm.model.cpu_window import tile_cycles, window_use
from roller_tvm.model.geometry import Geometry
from roller_tvm.plan import construct
from roller_tvm.plan.cpu_window import slides_only

from .devices import device


def depthwise(**sizes):
    return operator("depthwise_conv2d_nchw", **(dict(n=1, c=32, h=28, w=28, k=3, stride=1, padding=1) | sizes))


def geometry(expression):
    return Geometry.of(expression, expression.anchor_name)


def test_a_convolution_over_channels_is_no_window():
    conv = operator("conv2d_nchw", n=1, c=8, h=8, w=8, f=8, k=3)
    assert not slides_only(geometry(conv)) and slides_only(geometry(depthwise()))
    assert not slides_only(geometry(operator("global_avg_pool", n=1, c=8, h=7, w=7)))


def test_windows_that_overlap_share_their_loads():
    g = geometry(depthwise())
    tile = {"n": 1, "c": 1, "oh": 4, "ow": 16}
    both = window_use(g, tuple(tile.get(a, 1) for a in g.axes), 16)
    # 6 rows of 3 shifted vectors, and 9 weights; 4 rows one by one would load 12 of each.
    assert both.sums == 4 and both.loads == 6 * 3 + 9


def test_tiles_whose_windows_leave_the_registers_cost_more_an_output():
    g = geometry(depthwise(h=56, w=64))
    rates = CpuRates.of(device("avx512"))
    more = replace(rates, registers=2 * rates.registers)

    def cycles(rows, rates=rates):
        use = window_use(g, tuple({"oh": rows, "ow": 16}.get(a, 1) for a in g.axes), rates.lanes)
        return sum(tile_cycles(g, use, rates)) / rows

    assert cycles(4) < cycles(1)
    assert cycles(4) == cycles(4, more) and cycles(14) > cycles(14, more)


@pytest.mark.parametrize("on", ["avx2", "avx512"])
@pytest.mark.parametrize("words", [("max_pool2d", dict(n=1, c=32, h=28, w=28, k=3, stride=2, padding=1)), None])
def test_every_window_is_unrolled_whole(words, on):
    expression = operator(words[0], **words[1]) if words else depthwise()
    plans = [p.plan for p in construct(expression, device(on)).plans]
    programs = [p for plan in plans for p in plan.programs if p.recipe == "cpu.window"]
    assert programs
    for program in programs:
        assert sorted(program.choices_of("unroll").values()) == [3, 3]
