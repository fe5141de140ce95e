"""Fusion changes how the iterations are named, not what is computed or moved."""

import json
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from roller_tvm.ir import Access, Axis, Index, Stage, Tensor, TensorExpression, footprint
from roller_tvm.ir.fuse import fuse_axes
from roller_tvm.ir.operators import parse_operator

from ..sampling import examples
from .interpret import evaluate, random_arrays
from .strategies import operators


@settings(max_examples=examples(300), deadline=None)
@given(operators())
def test_the_same_is_computed(expression):
    fused = fuse_axes(expression)
    arrays = random_arrays(expression)
    reshaped = {t.name: arrays[t.name].reshape(t.shape) for t in fused.inputs}
    before, after = evaluate(expression, arrays), evaluate(fused, reshaped)
    for stage in expression.stages:
        # Sums are the same terms in the same order: not a bit may differ.
        np.testing.assert_array_equal(after[stage.name].ravel(), before[stage.name].ravel())


@settings(max_examples=examples(200), deadline=None)
@given(operators())
def test_work_and_traffic_stay(expression):
    fused = fuse_axes(expression)
    assert fused.flops == expression.flops
    assert fused.io_bytes == expression.io_bytes
    for stage in expression.stages:
        mine = fused.stage(stage.name)
        assert mine.output_elements == stage.output_elements and mine.points == stage.points
        for access, merged in zip(stage.reads, mine.reads, strict=True):
            assert merged.guarded == access.guarded
            shape, flat = (e.tensors[access.tensor].shape for e in (expression, fused))
            touched = footprint(access.indices, stage.extents, shape)
            assert footprint(merged.indices, mine.extents, flat) == touched


@settings(max_examples=examples(200), deadline=None)
@given(operators())
def test_fused_axes_name_every_source_loop_once_and_in_order(expression):
    fused = fuse_axes(expression)
    for stage in expression.stages:
        loops = [
            loop for a in fused.stage(stage.name).axes for loop in (a.fused_of or ((a.name, a.extent),))
        ]
        assert loops == [(a.name, a.extent) for a in stage.axes]


@settings(max_examples=examples(100), deadline=None)
@given(operators())
def test_nothing_is_left_to_fuse_and_json_keeps_it(expression):
    fused = fuse_axes(expression)
    assert fuse_axes(fused) is fused
    again = TensorExpression.from_json(json.loads(json.dumps(fused.to_json())))
    assert again == fused and again.digest() == fused.digest()


@pytest.mark.parametrize(
    ("words", "axes"),
    [
        ("relu shape=2x3x4x5", "i0*i1*i2*i3"),
        ("add shape=2x3x4x5 other=3x1x1", "i0 i1 i2*i3"),
        ("add shape=1x3x4x5 other=3x1x1", "i1 i2*i3"),  # an axis of one iteration is no obstacle
        ("max_pool2d n=2 c=3 h=8 w=8 k=2 stride=2", "n*c oh ow kh kw"),
        ("global_avg_pool n=2 c=3 h=8 w=8", "n*c kh*kw"),
        ("softmax shape=2x3x4x5", "i0*i1*i2 k"),
        ("softmax shape=2x3x4x5 axis=1", "i0 i2*i3 k"),
        ("reduce_sum shape=2x3x4x5 axis=1,2", "i0 i3 r1*r2"),
        ("reduce_sum shape=2x3x4x5 axis=0,2", "i1 i3 r0 r2"),
        ("transpose shape=2x3x4x5 perm=2,3,0,1", "i0*i1 i2*i3"),
        ("matmul m=4 n=4 k=4", "m n k"),
        ("conv2d_nchw n=1 c=4 h=4 w=4 f=3 k=1", "f oh*ow c"),  # a matrix product
        ("depthwise_conv2d_nhwc n=2 c=4 h=5 w=5 k=3", "n oh ow c kh kw"),
    ],
)
def test_axes_of_known_operators(words, axes):
    fused = fuse_axes(parse_operator(words.split()))
    assert [a.name for a in fused.anchor.axes if a.extent > 1] == axes.split()


def test_parts_of_an_axis_stay_apart():
    halves = (Axis("x.o", 3, part_of=("x", 4)), Axis("x.i", 4, part_of=("x", 1)))
    read = Access("in", (Index.axis("x.o"), Index.axis("x.i"), Index.axis("y"), Index.axis("z")))
    stage = Stage("s", (*halves, Axis("y", 5), Axis("z", 6)), (read,))
    expression = TensorExpression("e", (Tensor("in", (3, 4, 5, 6)),), (stage,), "s")
    assert fuse_axes(expression).output.shape == (12, 30)


def test_a_padded_dimension_of_one_element_is_kept():
    # Read at h - 1: outside of the only row most of the time.
    read = Access("in", (Index.axis("c"), Index.of({"h": 1}, -1), Index.axis("w")), guarded=True)
    stage = Stage("s", (Axis("c", 4), Axis("h", 3), Axis("w", 5)), (read,))
    expression = TensorExpression("e", (Tensor("in", (4, 1, 5)),), (stage,), "s")
    assert fuse_axes(expression) is expression


def test_part_of_a_dimension_is_not_fused():
    # Rows 0..2 of 4: the elements are not neighbours.
    read = Access("in", (Index.axis("h"), Index.axis("w")))
    stage = Stage("s", (Axis("h", 3), Axis("w", 4)), (read,))
    inner = replace(stage, axes=(Axis("h", 3), Axis("w", 3)))
    for shape, one, axes in (((4, 4), stage, ["h", "w"]), ((3, 4), stage, ["h*w"]), ((3, 4), inner, ["h", "w"])):
        fused = fuse_axes(TensorExpression("e", (Tensor("in", shape),), (one,), "s"))
        assert [axis.name for axis in fused.anchor.axes] == axes


def test_one_reader_that_disagrees_decides_for_all():
    rows, columns, at = Axis("h", 3), Axis("w", 4), (Index.axis("h"), Index.axis("w"))
    flat = Stage("flat", (rows, columns), (Access("in", at),))
    turned = Stage("turned", (columns, rows), (Access("flat", at),))
    expression = TensorExpression("e", (Tensor("in", (3, 4)),), (flat, turned), "turned")
    assert fuse_axes(expression) is expression


def test_a_fused_axis_must_be_its_loops():
    with pytest.raises(ValueError, match="12 iterations are not"):
        Axis("n*c", 12, fused_of=(("n", 3), ("c", 5)))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.data())
def test_boxes_of_fused_axes(lengths, data):
    axis = Axis("f", prod(lengths), fused_of=tuple((f"a{n}", e) for n, e in enumerate(lengths)))
    tile = data.draw(st.sampled_from([e for e in range(1, axis.extent + 1) if axis.extent % e == 0]))
    assume(axis.is_box(tile))
    for first in range(0, axis.extent, tile):
        points = np.unravel_index(np.arange(first, first + tile), lengths)
        assert prod(int(p.max() - p.min() + 1) for p in points) == tile


def test_tiles_that_straddle_rows_are_no_boxes():
    axis = Axis("f", 120, fused_of=(("a", 5), ("b", 4), ("c", 6)))
    # 2 rows of 4 are a box as well, but TVM would have to prove it through two divisions.
    boxes = [e for e in range(1, 121) if 120 % e == 0 and axis.is_box(e)]
    assert boxes == [1, 6, 24, 120]


def test_a_fused_input_knows_its_extents_in_memory():
    fused = fuse_axes(parse_operator(["softmax", "shape=2,3,1,5"]))
    (data,) = fused.inputs
    assert (data.shape, data.fused_of) == ((6, 5), ((2, 3, 1), (5,)))
    assert TensorExpression.from_json(json.loads(json.dumps(fused.to_json()))) == fused
    with pytest.raises(ValueError, match="is not fused of"):
        Tensor("x", (6, 5), fused_of=((2, 2), (5,)))
