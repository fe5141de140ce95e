"""Transposed convolutions: which nests they are, and that products with zeros are left out and not counted."""

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from roller_tvm.ir.parts import share_parts  # noqa: E402
from roller_tvm.micro_perf.geometry import Geometry, in_memory  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.recipes.cpu_dilated import live_share  # noqa: E402
from roller_tvm.recipes.dilated_nests import TurnedNest, strides, turned  # noqa: E402
from roller_tvm.roller.partition import partition, store_packed  # noqa: E402

from ..lower.kernels import reading_of  # noqa: E402
from ..lower.test_cpu import conv_nchw, transposed, with_epilogue  # noqa: E402
from .devices import device  # noqa: E402


def nests_of(tensors):
    expression = share_parts(reading_of(tensors).expression)
    return expression, partition(expression, store_packed)


def test_the_steps_are_those_of_the_elements():
    expression, nests = nests_of(transposed())
    product = next(n for n in nests if expression.stage(n.anchor).reduce)
    g = in_memory(Geometry.of(expression, product.anchor, product.inlined), product.inlined)
    assert {g.axes[i]: step for i, step in strides(g).items()} == {"oh": 2, "ow": 2, "kh": 2, "kw": 2}
    assert live_share(g) == 1 / 4


def test_weights_are_stored_and_what_is_guarded_is_not():
    expression, nests = nests_of(transposed())
    assert [n.anchor for n in nests] == ["kernel_vec", "conv2d_NCHWc", "output_unpack"]


def test_unpacking_joins_the_product():
    expression, nests = nests_of(with_epilogue(transposed()))
    fused = turned(expression, nests)
    assert [type(n) is TurnedNest for n in fused] == [False, True]
    assert fused[-1].output == nests[-1].output and "output_unpack" in fused[-1].inlined


def test_a_plain_convolution_is_none_of_it():
    expression, nests = nests_of(with_epilogue(conv_nchw()))
    assert turned(expression, nests) is None


@pytest.mark.parametrize("channels, columns", [(12, 0), (1, 1)])
def test_tiles_are_whole_steps_and_windows_unrolled(channels, columns):
    expression, _ = nests_of(with_epilogue(transposed(f=channels, h=16)))
    program = construct(expression, device("avx512")).best.plan.programs[-1]
    assert program.recipe == "cpu.dilated" and program.choice("columns") == columns
    tile = program.tile("register")
    assert tile["oh"] % 2 == tile["ow"] % 2 == 0
    assert program.choices_of("unroll")["kh"] == program.choices_of("unroll")["kw"] == 2


def test_a_size_that_steps_do_not_divide_is_planned_otherwise():
    expression, _ = nests_of(transposed(k=3, pad=1))
    plans = [r.plan for r in construct(expression, device("avx512")).plans]
    assert all(p.recipe != "cpu.dilated" for plan in plans for p in plan.programs)
