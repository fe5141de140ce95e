import pytest

from roller_tvm.ir import Access, Axis, Index, Stage
from roller_tvm.ir.operators import operator, parse_operator
from roller_tvm.ir.pattern import choose_anchor, is_contraction, pattern


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("conv2d_nchw n=1 c=4 h=8 w=8 f=6 k=3 padding=SAME bias=1 relu=1", "contraction"),
        ("conv2d_nchw n=1 c=4 h=8 w=8 f=8 k=3 groups=2", "contraction"),
        ("dense m=1 n=5 k=6", "contraction"),
        ("batch_matmul b=3 m=4 n=5 k=6", "contraction"),
        ("depthwise_conv2d_nchw n=1 c=6 h=9 w=9 k=3", "depthwise"),
        ("depthwise_conv2d_nhwc n=1 c=6 h=9 w=9 k=3 padding=1", "depthwise"),
        ("conv2d_nchw n=1 c=8 h=8 w=8 f=8 k=3 groups=8", "depthwise"),
        ("max_pool2d n=1 c=3 h=8 w=8 k=3 stride=2", "pooling"),
        ("avg_pool2d n=1 c=3 h=8 w=8 k=2 stride=2", "pooling"),
        ("global_avg_pool n=1 c=3 h=8 w=8", "reduction"),
        ("reduce_max shape=3x4x5 axis=0,2", "reduction"),
        ("softmax shape=3x4x5", "softmax"),
        ("relu shape=3x4", "injective"),
        ("transpose shape=3x4", "injective"),
    ],
)
def test_patterns(words, expected):
    assert pattern(parse_operator(words.split())) == expected


def test_depth_multiplier_reuses_data_along_its_copies():
    # Each input channel feeds two outputs: the copies are absent from the data, rows from the weights.
    assert pattern(operator("depthwise_conv2d_nchw", n=1, c=6, h=9, w=9, k=3, multiplier=2)) == "contraction"


def gather(tensor):
    axes = (Axis("i", 4), Axis("j", 4), Axis("k", 9, "reduce"))
    looked_up = Access(tensor, (Index.whole(), Index.axis("k")))
    weight = Access("w", (Index.axis("j"), Index.axis("k")))
    return Stage("g", axes, (looked_up, weight), combiner="sum", ops=(("fma", 1),))


def test_a_gather_promises_no_reuse():
    assert not is_contraction(gather("x"))


def test_the_contraction_is_the_anchor_even_if_a_reduction_does_more():
    product = operator("matmul", m=4, n=4, k=4).anchor
    heavy = Stage("heavy", (Axis("i", 999), Axis("r", 999, "reduce")), (), ops=(("add", 1),), combiner="sum")
    assert choose_anchor([heavy, product]) == choose_anchor([product, heavy]) == "matmul"
    assert choose_anchor([heavy, gather("x")]) == "g"


def test_without_reduction_the_last_stage_is_the_anchor():
    stages = [Stage(n, (Axis("i", 4),), ()) for n in "abc"]
    assert choose_anchor(stages) == "c"
    with pytest.raises(ValueError, match="at least one stage"):
        choose_anchor([])
