import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller_tvm.ir import Access, Axis, Index, Stage, Tensor, TensorExpression
from roller_tvm.ir.operators import OPERATORS, operator

from ..sampling import examples
from .examples import EXAMPLES


@pytest.mark.parametrize("words", EXAMPLES)
def test_json_round_trip(words):
    expression = operator(words[0], **words[1])
    again = TensorExpression.from_json(json.loads(json.dumps(expression.to_json())))
    assert again == expression
    assert again.digest() == expression.digest() == replace(expression, name="other").digest()
    assert str(again) == str(expression)


def test_every_operator_has_an_example():
    assert {name for name, _ in EXAMPLES} == set(OPERATORS)


def test_digests_tell_operators_apart():
    digests = {operator(name, **params).digest() for name, params in EXAMPLES}
    assert len(digests) == len(EXAMPLES)


# -- composition of access maps ----------------------------------------------------------------


@st.composite
def chains(draw):
    """A stage 'top' that reads a stage 'mid' that reads an input; 'mid' may have a dimension in parts."""
    outer, inner = draw(st.integers(1, 4)), draw(st.integers(2, 5))
    width = draw(st.integers(1, 6))
    parts = draw(st.booleans())
    if parts:
        halves = (Axis("x.o", outer, part_of=("x", inner)), Axis("x.i", inner, part_of=("x", 1)))
        axes = (*halves, Axis("y", width))
        reads = (Index.axis("x.o"), Index.axis("x.i"), Index.of({"y": 2}, -1))
    else:
        axes = (Axis("x", outer * inner), Axis("y", width))
        reads = (Index.axis("x"), Index.of({"x": 1, "y": 1}), Index.of({"y": 2}, -1))
    mid = Stage("mid", axes, (Access("in", reads, guarded=draw(st.booleans())),))
    # Strides and offsets that stay inside mid's first dimension.
    step, run = draw(st.sampled_from([(inner, inner), (inner, 1), (1, 1), (2, 2)]))
    count = max(1, (outer * inner - (run - 1)) // step)
    run = min(run, outer * inner - step * (count - 1))
    top_axes = (Axis("p", count), Axis("q", run), Axis("r", width))
    top = Stage("top", top_axes, (Access("mid", (Index.of({"p": step, "q": 1}), Index.axis("r"))),))
    return TensorExpression("chain", (Tensor("in", (99, 99, 99)),), (mid, top), "top")


@settings(max_examples=examples(300), deadline=None)
@given(chains(), st.data())
def test_inlining_reads_what_the_stages_read_one_after_the_other(expression, data):
    mid, top = expression.stage("mid"), expression.stage("top")
    (composed,) = expression.resolve(top, ["mid"])
    point = {a.name: data.draw(st.integers(0, a.extent - 1)) for a in top.axes}
    dims = [index.value(point) for index in top.reads[0].indices]
    if "x" in mid.extents:
        middle = {"x": dims[0], "y": dims[1]}
    else:
        inner = mid.extents["x.i"]
        middle = {"x.o": dims[0] // inner, "x.i": dims[0] % inner, "y": dims[1]}
    assert composed.guarded == mid.reads[0].guarded
    for index, expected in zip(composed.indices, mid.reads[0].indices, strict=True):
        if not index.opaque:
            assert index.value(point) == expected.value(middle)


def test_inlining_keeps_parts_that_line_up():
    expression = split_dimension()
    (composed,) = expression.resolve(expression.stage("top"), ["mid"])
    assert composed.indices == (Index.axis("p"), Index.axis("q"))


def test_inlining_gives_up_where_digits_carry():
    expression = split_dimension(rows=8, run=3, step=3)  # 3*p + q crosses the boundary of parts of 4
    (composed,) = expression.resolve(expression.stage("top"), ["mid"])
    assert all(index.opaque for index in composed.indices)


def split_dimension(rows=6, run=4, step=4):
    axes = (Axis("x.o", 6, part_of=("x", 4)), Axis("x.i", 4, part_of=("x", 1)))
    mid = Stage("mid", axes, (Access("in", (Index.axis("x.o"), Index.axis("x.i"))),))
    top = Stage("top", (Axis("p", rows), Axis("q", run)), (Access("mid", (Index.of({"p": step, "q": 1}),)),))
    assert mid.shape == (24,)
    return TensorExpression("split", (Tensor("in", (6, 4)),), (mid, top), "top")


# -- what an expression refuses ----------------------------------------------------------------


def test_stages_refuse_inconsistency():
    with pytest.raises(ValueError, match="axis names must differ"):
        Stage("s", (Axis("i", 2), Axis("i", 3)), ())
    with pytest.raises(ValueError, match="spatial axes come before"):
        Stage("s", (Axis("k", 2, "reduce"), Axis("i", 3)), (), combiner="sum")
    with pytest.raises(ValueError, match="combiner goes with reduction"):
        Stage("s", (Axis("i", 3),), (), combiner="sum")
    with pytest.raises(ValueError, match="uses axes \\['j'\\]"):
        Stage("s", (Axis("i", 3),), (Access("t", (Index.axis("j"),)),))
    with pytest.raises(ValueError, match="extent must be a positive integer"):
        Axis("i", 0)
    with pytest.raises(ValueError, match="float31"):
        Tensor("t", (1,), "float31")


def test_expressions_refuse_inconsistency():
    stage = Stage("s", (Axis("i", 3),), (Access("t", (Index.axis("i"),)),))
    with pytest.raises(ValueError, match="which is no input and no earlier stage"):
        TensorExpression("e", (), (stage,), "s")
    with pytest.raises(ValueError, match="has 1 indices, the tensor 2"):
        TensorExpression("e", (Tensor("t", (3, 3)),), (stage,), "s")
    with pytest.raises(ValueError, match="anchor 'x' is not a stage"):
        TensorExpression("e", (Tensor("t", (3,)),), (stage,), "x")


def test_stages_before_and_after_the_anchor():
    expression = operator("conv2d_nchw", n=1, c=4, h=8, w=8, f=4, k=3, padding="SAME", bias=1, relu=1)
    assert [s.name for s in expression.prologues] == ["pad"]
    assert [s.name for s in expression.epilogues] == ["bias_add", "relu"]
    assert [s.name for s in expression.outputs] == ["relu"]
    assert expression.io_bytes == 4 * (4 * 8 * 8 + 4 * 4 * 9 + 4 + 4 * 8 * 8)
