"""Stages that follow one whose axes are in parts."""

from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from roller_tvm.ir import Access, Axis, Index, Stage, Tensor, TensorExpression
from roller_tvm.ir.operators import operator, parse_operator
from roller_tvm.ir.parts import share_parts
from roller_tvm.roller.partition import partition

from ..sampling import examples
from .interpret import evaluate, random_arrays

GROUPED = [
    "conv2d_nchw n=2 c=8 h=6 w=6 f=12 k=3 groups=4 bias=1 relu=1",
    "conv2d_nhwc n=1 c=8 h=6 w=6 f=12 k=3 groups=4 bias=1",
    "depthwise_conv2d_nchw n=1 c=4 h=6 w=6 k=3 multiplier=2 bias=1 relu=1",
]


@pytest.mark.parametrize("words", GROUPED)
def test_epilogues_get_the_parts_and_compute_the_same(words):
    expression = parse_operator(words.split())
    shared = share_parts(expression)
    arrays = random_arrays(expression)
    before, after = evaluate(expression, arrays), evaluate(shared, arrays)
    for stage in expression.stages:
        np.testing.assert_array_equal(after[stage.name], before[stage.name])
    assert shared.flops == expression.flops and shared.io_bytes == expression.io_bytes
    assert share_parts(shared) is shared
    (nest,) = partition(shared)
    # One nest: everything after the convolution is computed on its tile.
    assert nest.output == expression.output.name
    extents = [[a.extent for a in shared.stage(name).spatial] for name in (nest.anchor, nest.output)]
    assert extents[0] == extents[1]


def test_without_parts_nothing_changes():
    expression = operator("conv2d_nchw", n=1, c=8, h=6, w=6, f=12, k=3, bias=1)
    assert share_parts(expression) is expression


def blocked_after_a_sum():
    """A sum over whole channels, then a stage that is in blocks of channels."""
    total = Stage("sum", (Axis("c", 8), Axis("k", 4, "reduce")), (Access("x", (Index.axis("c"), Index.axis("k"))),),
                  ops=(("add", 1),), combiner="sum")  # fmt: skip
    parts = (Axis("c.o", 2, part_of=("c", 4)), Axis("c.i", 4, part_of=("c", 1)))
    whole = Index.of({"c.o": 4, "c.i": 1})
    scaled = Stage("scaled", parts, (Access("sum", (whole,)), Access("s", (Index.axis("c.o"),))), ops=(("mul", 1),))
    return TensorExpression("e", (Tensor("x", (8, 4)), Tensor("s", (2,))), (total, scaled), "sum")


def test_a_stage_in_more_parts_than_its_sum_has_a_nest_of_its_own():
    expression = blocked_after_a_sum()
    assert share_parts(expression) is expression
    assert [n.anchor for n in partition(expression)] == ["sum", "scaled"]


@settings(max_examples=examples(200))
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_boxes_of_parts_have_no_gaps(lengths, data):
    strides = [prod(lengths[n + 1 :]) for n in range(len(lengths))]
    axes = [Axis(f"p{n}", e, part_of=("x", s)) for n, (e, s) in enumerate(zip(lengths, strides, strict=True))]
    tile = [data.draw(st.integers(1, e)) for e in lengths]
    points = sorted(
        sum(s * i for s, i in zip(strides, p, strict=True)) for p in np.ndindex(*tile)
    )  # fmt: skip
    gapless = points == list(range(points[0], points[0] + len(points)))
    assert Stage("s", tuple(axes), ()).is_box(tile) == gapless
    # Parts of two axes do not meddle with each other.
    assume(gapless)
    other = [Axis(f"q{n}", a.extent, part_of=("y", a.part_of[1])) for n, a in enumerate(axes)]
    assert Stage("s", (*axes, *other), ()).is_box([*tile, *tile])
