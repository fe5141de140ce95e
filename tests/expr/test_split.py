import numpy as np
import pytest

from roller_tvm.expr.operators import operator
from roller_tvm.expr.split import split_reduction

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
