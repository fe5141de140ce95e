"""Depthwise convolutions and pooling: which nests are windows, and what limits their register tiles."""

from dataclasses import replace

import pytest

from roller_tvm.ir.operators import operator
from roller_tvm.micro_perf.cpu import CALL
from roller_tvm.micro_perf.cpu_rates import CpuRates
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.planner import construct
from roller_tvm.recipes.cpu_window import run_length, tile_cycles, window_use
from roller_tvm.recipes.kinds import slides_only
from roller_tvm.roller.features import NO_FEATURES, Features

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
    both = window_use(g, tuple(tile.get(a, 1) for a in g.axes), CpuRates.of(device("avx512"), g))
    # 6 rows of 3 shifted vectors, and 9 weights; 4 rows one by one would load 12 of each.
    assert both.sums == 4 and both.loads == 6 * 3 + 9


def test_tiles_whose_windows_leave_the_registers_cost_more_an_output():
    g = geometry(depthwise(h=56, w=64))
    rates = CpuRates.of(device("avx512"), g)
    more = replace(rates, registers=2 * rates.registers)

    def cycles(rows, rates=rates):
        tile = tuple({"oh": rows, "ow": 16}.get(a, 1) for a in g.axes)
        return sum(tile_cycles(g, tile, window_use(g, tile, rates), rates)) / rows

    assert cycles(4) < cycles(1)
    assert cycles(4) == cycles(4, more) and cycles(14) > cycles(14, more)


def test_elements_behind_a_check_of_their_own_are_loaded_one_by_one():
    padded = depthwise(h=56, w=56)
    checked = Geometry.of(padded, padded.anchor_name, [s.name for s in padded.stages if not s.reduce][:1])
    rates = replace(CpuRates.of(device("avx2"), checked), edge_vectors=False)  # built by TVM alone

    def tile(rows):
        return tuple({"oh": rows, "ow": 8}.get(a, 1) for a in checked.axes)

    def use(g, rows):
        return window_use(g, tile(rows), rates)

    def loads(rows):
        return tile_cycles(checked, tile(rows), use(checked, rows), rates)[1] / use(checked, rows).checked

    assert use(geometry(padded), 1).checked == 0
    assert use(checked, 1).checked == 3 * 3 * 8 and use(checked, 1).loads == 9  # weights have no border
    assert loads(1) < 1.5 < loads(8)  # vectors put together in memory


def test_vectors_into_padding_are_loaded_whole_where_a_loop_tells_which_those_are():
    padded = depthwise(h=56, w=56)
    g = Geometry.of(padded, padded.anchor_name, [s.name for s in padded.stages if not s.reduce][:1])
    rates = CpuRates.of(device("avx2"), g)
    tile = tuple({"oh": 4, "ow": 8}.get(a, 1) for a in g.axes)
    whole = tuple(g.extents)
    part = tuple(28 if a == "ow" else e for a, e in zip(g.axes, g.extents, strict=True))
    told = window_use(g, tile, rates, whole)
    assert told == window_use(g, tile, rates) and (told.checked, told.loads) == (0, 6 * 3 + 9)
    assert window_use(g, tile, rates, part).checked == 6 * 3 * 8


@pytest.mark.parametrize("stride, slots", [(1, 1), (2, 4), (3, 6), (5, 8)])
def test_elements_near_each_other_are_picked_out_of_vectors_of_neighbours(stride, slots):
    g = geometry(operator("max_pool2d_nchw", n=1, c=8, h=64, w=64 * stride, k=1, stride=stride))
    rates = CpuRates.of(device("avx2"), g)
    tile = tuple(8 if i == g.vector_axis else 1 for i in range(len(g.extents)))
    assert window_use(g, tile, rates).loads == slots
    alone = window_use(g, tile, replace(rates, edge_vectors=False))
    assert alone.loads == (1 if stride == 1 else 8)


@pytest.mark.parametrize("name", ["epilogue_functions", "functions"])
def test_functions_that_are_called_cost_what_they_take(name):
    """Before and after the window: a logarithm an element is more than the window itself."""
    g = geometry(depthwise())
    tile = tuple({"oh": 4, "ow": 16}.get(a, 1) for a in g.axes)
    rates = CpuRates.of(device("avx512"), g)
    log = (("special", 1),)
    if name == "functions":
        changed = replace(g, operands=(replace(g.operands[0], functions=log), *g.operands[1:]))
        elements = g.operands[0].elements(tuple(e if i in g.reduce else tile[i] for i, e in enumerate(g.extents)))
    else:
        changed, elements = replace(g, epilogue_functions=log), 4 * 16

    def cycles(g):
        return sum(tile_cycles(g, tile, window_use(g, tile, rates), rates))

    assert cycles(changed) == pytest.approx(cycles(g) + CALL * elements)


@pytest.mark.parametrize("channels, order, elements", [
    (32, ("i", "j", "c"), 28 * 32), (32, ("j", "i", "c"), 32), (16, ("i", "j", "c"), 16), (32, ("c", "i", "j"), 8),
])  # fmt: skip
def test_rows_that_are_whole_go_on_in_the_next(channels, order, elements):
    g = geometry(operator("depthwise_conv2d_nhwc", n=1, c=32, h=28, w=28, k=3, padding=1))
    names = dict(zip("ijc", g.spatial[-3:], strict=True))
    sizes = {names["i"]: 28, names["j"]: 28, names["c"]: channels}
    chunk = tuple(sizes.get(i, 1) for i in range(len(g.axes)))
    tile = tuple(8 if i == names["c"] else 1 for i in range(len(g.axes)))
    assert run_length(g, chunk, tile, tuple(names[a] for a in order)) == elements


@pytest.mark.parametrize("on", ["avx2", "avx512"])
@pytest.mark.parametrize("words", [("max_pool2d", dict(n=1, c=32, h=28, w=28, k=3, stride=2, padding=1)), None])
def test_every_window_is_unrolled_whole(words, on):
    expression = operator(words[0], **words[1]) if words else depthwise()
    plans = [p.plan for p in construct(expression, device(on)).plans]
    programs = [p for plan in plans for p in plan.programs if p.recipe == "cpu.window"]
    assert programs
    for program in programs:
        assert sorted(program.choices_of("unroll").values()) == [3, 3]


def test_open_sides_store_the_padding():
    """Whether a load is inside is known at run time alone: in a window it would be a branch, and hundreds of them."""
    expression = depthwise(h=56, w=64, k=7, padding=3)

    def inlined(features):
        plans = construct(expression, device("avx512"), top=6, features=features).plans
        return {"pad" in program.inlined for ranked in plans for program in ranked.plan.programs}

    assert inlined(Features(open_sides=True)) == {False} and True in inlined(NO_FEATURES)
