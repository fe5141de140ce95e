"""Lanes merged in halves and rows multiplied by a reciprocal, on either TVM line: values, and what stays as it is."""

import numpy as np
import pytest

pytestmark = [pytest.mark.te, pytest.mark.optimised]
pytest.importorskip("tvm.te")

from tvm import te  # noqa: E402

from roller_tvm.codegen.rewrites.row_ends import NORMAL  # noqa: E402
from roller_tvm.roller.steps import ComputeAt, RFactor, Split, Vectorize  # noqa: E402

from .kernels import built  # noqa: E402

ROWS, COLUMNS, LANES = 6, 96, 8
RNG = np.random.default_rng(4)


def quotient(dtype="float32", by=lambda sums, i, j: sums[i]):
    """x / d[i] in vectors of a row."""
    x, d = te.placeholder((ROWS, COLUMNS), dtype, name="x"), te.placeholder((ROWS,), dtype, name="d")
    y = te.compute((ROWS, COLUMNS), lambda i, j: x[i, j] / by(d, i, j), name="y")
    return [x, d, y], [Split("y", "j", (LANES,), ("o", "v")), Vectorize("y", "v")]


def in_units(got, exact):
    return np.abs(got.astype("float64") - exact) / np.spacing(np.abs(exact).astype("float32")).astype("float64")


def test_quotients_are_within_one_and_a_half_units():
    tensors, steps = quotient()
    kernel, plain = built(tensors, steps, ("vector_math",)), built(tensors, steps)
    assert "fmul" in kernel.text and "fmul" not in plain.text
    for _ in range(40):
        x = RNG.standard_normal((ROWS, COLUMNS)).astype("float32")
        d = (10.0 ** RNG.uniform(-20, 20, ROWS) * RNG.choice([1, -1], ROWS)).astype("float32")
        exact = x.astype("float64") / d.astype("float64")[:, None]
        assert in_units(kernel(x.shape, x, d), exact).max() <= 1.5


@pytest.mark.parametrize("divisor", [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 2e-39, 3e38, 1.0, -3.0, *NORMAL])
def test_numbers_of_every_kind_are_divided_as_before(divisor):
    """Where a reciprocal would overflow or lose digits, and for 0, infinities and NaN, the division stays."""
    tensors, steps = quotient()
    kernel = built(tensors, steps, ("vector_math",))
    some = np.float32([0.0, -0.0, 1.0, -2.5, 1e-45, 1e-38, 3e38, -3e38, np.inf, -np.inf, np.nan, 7.0])
    x = np.resize(some, (ROWS, COLUMNS))
    d = np.full(ROWS, divisor, "float32")
    with np.errstate(all="ignore"):
        exact = x / d[:, None]
    got = kernel(x.shape, x, d)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(exact))
    fine = np.isfinite(exact)
    np.testing.assert_allclose(got[fine], exact[fine], rtol=2**-22, atol=1e-44)
    np.testing.assert_array_equal(np.signbit(got[fine]), np.signbit(exact[fine]))


@pytest.mark.parametrize("name", ["float64", "each element"])
def test_other_divisions_stay(name):
    if name == "float64":
        tensors, steps = quotient("float64")
    else:
        x, d = (te.placeholder((ROWS, COLUMNS), name=n) for n in "xd")
        y = te.compute((ROWS, COLUMNS), lambda i, j: x[i, j] / d[i, j], name="y")
        tensors, steps = [x, d, y], [Split("y", "j", (LANES,), ("o", "v")), Vectorize("y", "v")]
    assert built(tensors, steps, ("vector_math",)).count("fdiv") == built(tensors, steps).count("fdiv")


@pytest.mark.parametrize("columns", [COLUMNS, 101])
@pytest.mark.parametrize("merge", ["sum", "max", "min"])
def test_lanes_are_merged_in_halves(merge, columns):
    x = te.placeholder((ROWS, columns), name="x")
    k = te.reduce_axis((0, columns), name="k")
    y = te.compute((ROWS,), lambda i: getattr(te, merge)(x[i, k], axis=k), name="y")
    steps = [Split("y", "k", (LANES,), ("o", "lane")), RFactor("y", "lane", 1, "y.rf"), Vectorize("y.rf", "lane"),
             ComputeAt("y.rf", "y", "i")]  # fmt: skip
    kernel, plain = (built([x, y], steps, names) for names in (("edge_vectors", "vector_math"), ("edge_vectors",)))
    given = RNG.integers(-9, 9, (ROWS, columns)).astype("float32")  # sums are exact in any order
    np.testing.assert_array_equal(kernel((ROWS,), given), getattr(np, merge)(given, axis=1))
    assert f"roller_{dict(sum='sum', max='most', min='least')[merge]}_x{LANES}" not in kernel.text, "written in place"
    assert kernel.count("shufflevector") > plain.count("shufflevector")


def test_sums_into_their_own_lanes_and_of_odd_lanes_stay():
    """lanes[0] += lanes[i], and 6 lanes: neither is halved."""
    x = te.placeholder((ROWS, 60), name="x")
    k = te.reduce_axis((0, 60), name="k")
    y = te.compute((ROWS,), lambda i: te.sum(x[i, k], axis=k), name="y")
    steps = [Split("y", "k", (6,), ("o", "lane")), RFactor("y", "lane", 1, "y.rf"), ComputeAt("y.rf", "y", "i")]
    kernel = built([x, y], steps, ("vector_math",))
    given = RNG.integers(-9, 9, (ROWS, 60)).astype("float32")
    np.testing.assert_array_equal(kernel((ROWS,), given), given.sum(axis=1))
