"""Size of the code that LLVM is given: conditions of lanes are read, so that windows over padding stay vectors."""

import itertools
import operator

import numpy as np
import pytest

pytestmark = [pytest.mark.te, pytest.mark.optimised]
pytest.importorskip("tvm.te")

from roller_tvm.codegen.flat_conditions import below_zero  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.te import read_te  # noqa: E402
from roller_tvm.te.operators import te_operator  # noqa: E402
from roller_tvm.tvm_env import line  # noqa: E402

from ..plan.devices import device  # noqa: E402
from .kernels import built  # noqa: E402

if line() == "relay":
    from tvm import tir
else:
    from tvm import tirx as tir


#: TVM divides by what divides the rest, and rounds down to do so: functions of (tile, lane, division).
CONDITIONS = {
    "from padding on": lambda t, n, div: div(n, 2) + t * 5 >= 1,
    "neighbour": lambda t, n, div: div(n + 1, 2) + t * 5 >= 1,
    "up to the edge": lambda t, n, div: div(n + 3, 10) + t < 3,
    "quarters": lambda t, n, div: t * 4 + div(n, 4) < 9,
    "before": lambda t, n, div: div(n - 3, 4) + t * 2 > 2,
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_quotients_of_lanes_are_read_as_sums(name):
    tile, lane = tir.Var("tile", "int32"), tir.Var("lane", "int32")
    condition = CONDITIONS[name]
    made = condition(tile, lane, tir.floordiv)
    if type(made).__name__ in ("GT", "GE"):  # TVM's simplifier leaves none
        made = (tir.LT if type(made).__name__ == "GT" else tir.LE)(made.b, made.a)
    below = below_zero(made, {}, lane)
    assert below is not None
    for t, n in itertools.product(range(6), range(16)):
        value = below.number + below.of(tile) * t + below.of(lane) * n
        assert (value < 0) == condition(t, n, operator.floordiv), (t, n)


def test_lanes_beside_their_quotient_are_not_read():
    tile, lane = tir.Var("tile", "int32"), tir.Var("lane", "int32")
    assert below_zero(tir.LT(tir.floordiv(lane, 4) + lane, tile), {}, lane) is None
    assert below_zero(tir.LT(tir.floordiv(lane, 4) + tir.floordiv(lane, 2), tile), {}, lane) is None


@pytest.mark.one_line("relax")
def test_pooling_over_wide_padding_is_a_few_vectors():
    """One by one its elements were 8,000 to 30,000 instructions, 15 to 20 times those of TVM's own loops."""
    tensors = list(te_operator("avg_pool2d_nchw", n=1, c=3, h=28, w=28, k=3, stride=1, padding=2))
    expression = read_te(tensors).expression
    plan = construct(expression, device("avx512"), top=1).plans[0]
    kernel = built(tensors, tuple(lower(plan.plan)), ("edge_vectors",))
    assert kernel.count(r"\n  ") < 3000
    given = np.random.default_rng(0).standard_normal((1, 3, 28, 28)).astype("float32")
    around = np.pad(given, ((0, 0), (0, 0), (2, 2), (2, 2)))
    windows = np.lib.stride_tricks.sliding_window_view(around, (3, 3), (2, 3)).sum((-1, -2))
    ones = np.pad(np.ones_like(given), ((0, 0), (0, 0), (2, 2), (2, 2)))
    number = np.lib.stride_tricks.sliding_window_view(ones, (3, 3), (2, 3)).sum((-1, -2))
    np.testing.assert_allclose(kernel(windows.shape, given), windows / number, rtol=1e-4, atol=1e-5)
