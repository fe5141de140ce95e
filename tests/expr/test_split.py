import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from roller_tvm.ir.operators import operator
from roller_tvm.ir.split import split_reduction

from ..sampling import examples
from . import interpret
from .strategies import convolutions, pointwise, pools, products
from .test_operators import evaluate, random_inputs


@pytest.mark.parametrize("parts", [2, 3, 6])
def test_partial_sums_add_up(parts):
    whole = operator("matmul", m=3, n=4, k=6)
    split = split_reduction(whole, "matmul", "k", parts)
    arrays = random_inputs(whole)
    partial = evaluate(split, arrays)
    assert partial.shape == (parts, 3, 4)
    np.testing.assert_allclose(partial.sum(0), arrays["A"] @ arrays["B"])
    assert split.output.shape == (3, 4)
    assert [str(a) for a in split.output.reads] == ["matmul.rf[k.p, m, n]"]
    assert split.anchor.flops == whole.anchor.flops


def test_splitting_keeps_what_comes_after():
    conv = operator("conv2d_nchw", n=1, c=8, h=6, w=6, f=4, k=3, groups=2, bias=1, relu=1)
    split = split_reduction(conv, "conv2d", "c", 2)
    assert [s.name for s in split.stages] == ["conv2d.rf", "conv2d", "bias_add", "relu"]
    assert split.output.shape == conv.output.shape


def test_refusals():
    whole = operator("matmul", m=3, n=4, k=6)
    with pytest.raises(ValueError, match="do not divide the extent 6"):
        split_reduction(whole, "matmul", "k", 4)
    with pytest.raises(ValueError, match="'m' is not a reduction axis"):
        split_reduction(whole, "matmul", "m", 3)


@settings(max_examples=examples(150), deadline=None)
@given(st.one_of(pointwise(), pools(), products(), convolutions()), st.booleans(), st.data())
def test_a_split_changes_nothing_but_the_order_of_the_sum(whole, lanes, data):
    stages = [s for s in whole.reductions if any(a.extent > 1 for a in s.reduce)]
    assume(stages)
    stage = data.draw(st.sampled_from(stages))
    axis = data.draw(st.sampled_from([a for a in stage.reduce if a.extent > 1]))
    parts = data.draw(st.sampled_from([p for p in range(2, axis.extent + 1) if axis.extent % p == 0]))
    split = split_reduction(whole, stage.name, axis.name, parts, lanes)
    arrays = interpret.random_arrays(whole)
    before, after = interpret.evaluate(whole, arrays), interpret.evaluate(split, arrays)
    for s in whole.stages:
        np.testing.assert_allclose(after[s.name], before[s.name], atol=1e-9)
    partial = split.stage(f"{stage.name}.rf")
    # Each partial sum is over a part of its own: together they do the work once, and the merge a little more.
    assert partial.points == stage.points
    assert [a.name for a in partial.spatial][-1 if lanes else 0] == f"{axis.name}.p"


def test_lanes_are_neighbours_in_memory_and_parts_are_not():
    whole = operator("matmul", m=3, n=4, k=6, layout="NT")
    for lanes, step in ((True, 1), (False, 2)):
        partial = split_reduction(whole, "matmul", "k", 3, lanes).anchor
        assert {access.indices[-1].coefficient("k.p") for access in partial.reads} == {step}
