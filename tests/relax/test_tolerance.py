"""How far answers may be apart, by the types in which a function keeps its sums."""

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.relax

from tvm import te, topi  # noqa: E402

from roller_tvm.relax.tasks import reduction_terms  # noqa: E402
from roller_tvm.tuning.numerics import tolerance  # noqa: E402


def test_padding_rounds_nothing_and_a_sum_in_float16_rounds_as_one():
    x = te.placeholder((1, 512, 6, 6), "float16", name="x")
    w = te.placeholder((8, 512, 3, 3), "float16", name="w")
    wide = topi.nn.conv2d_nchw(x, w, 1, 1, 1, "float32")
    assert reduction_terms(te.create_prim_func([x, w, wide])) == 4608
    half = topi.nn.conv2d_nchw(x, w, 1, 1, 1, "float16")
    cast = topi.cast(half, "float32")
    terms = reduction_terms(te.create_prim_func([x, w, cast]))
    assert tolerance("float32", terms) == pytest.approx(tolerance("float16", 4608))
