"""Padding that a register tile's place tells: whole vectors of inputs with a stride, no padded copy."""

import pytest

from roller_tvm.device import cpu_device
from roller_tvm.ir.operators import operator
from roller_tvm.micro_perf.cpu import register_use
from roller_tvm.micro_perf.cpu_rates import CpuRates
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.planner.construct import construct
from roller_tvm.recipes.cpu_readings import told_padding
from roller_tvm.recipes.recipe import Context

from .devices import device

AVX512 = device("avx512")


def nest_of(**extents):
    return Geometry.of(operator("conv2d_nchw", **extents), "conv2d", ["pad"])


def test_the_first_convolution_of_a_network_pads_in_place():
    """Three channels of 224x224, every other pixel: a padded copy would take as long as the convolution."""
    plan = construct(operator("conv2d_nchw", n=1, c=3, h=224, w=224, f=32, k=3, stride=2, padding=1), AVX512).best.plan
    (program,) = plan.programs
    assert (program.recipe, program.inlined) == ("cpu.tiled", ("pad",))
    tile, chunk = program.tile("register"), program.tile("l2")
    assert program.choice("unroll:kw") == 3, "the lanes of padding depend on the window's place"
    assert chunk["ow"] == 112 and tile["ow"] > 1, "a part of a row cannot tell where the row begins"


def test_rows_of_one_tile_pay_for_both_ends():
    nest = nest_of(n=1, c=8, h=28, w=28, f=8, k=3, padding=1)
    context = told_padding(Context(nest, cpu_device(), None, 0.0))
    rates = CpuRates.of(AVX512, nest)

    def loads(geometry, columns):
        tile = [1, 4, 1, columns, 1, 1, 1]
        use = register_use(geometry, tile, rates.lanes, rates.broadcasts, True)
        return float(use.vector_loads + use.gathers)

    assert loads(context.geometry, 14) < loads(nest, 14) / 4
    assert loads(context.geometry, 4) < loads(context.geometry, 14), "of 7 tiles two are at an end, of 2 both"


@pytest.mark.parametrize(
    ("changed", "why"),
    [({"k": 9, "padding": 4}, "a long window stays a loop"), ({"stride": 5}, "elements are far apart"),
     ({"padding": 0}, "there is no padding")],
)  # fmt: skip
def test_it_is_not_told(changed, why):
    nest = nest_of(**{"n": 1, "c": 8, "h": 28, "w": 28, "f": 8, "k": 3, "padding": 1, **changed})
    assert told_padding(Context(nest, cpu_device(), None, 0.0)) is None, why
