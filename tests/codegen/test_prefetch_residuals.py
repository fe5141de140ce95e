"""Residuals asked for before a tile's sums, on the TVM line at hand: the same values, a prefetch a line of a tile."""

import numpy as np
import pytest

pytestmark = pytest.mark.te
pytest.importorskip("tvm.te")

from tvm import te  # noqa: E402

from .kernels import ASKED, planned  # noqa: E402


def kernel(rows, columns, residual=True, terms=24):
    """A product of few terms with another tensor added, and its plan."""
    a, b = te.placeholder((rows, terms), name="a"), te.placeholder((terms, columns), name="b")
    r = te.placeholder((rows, columns) if residual else (columns,), name="r")
    k = te.reduce_axis((0, terms), name="k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    d = te.compute((rows, columns), lambda i, j: c[i, j] + (r[i, j] if residual else r[j]), name="d")
    return planned([a, b, r, d])


def values(rows, columns, residual, terms=24):
    rng = np.random.default_rng(5)
    shapes = (rows, terms), (terms, columns), (rows, columns) if residual else (columns,)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


@pytest.mark.parametrize(("rows", "columns", "residual", "asks"), [
    (1024, 1024, True, True),
    (1000, 1040, True, True),  # vectors that begin inside of lines, tiles over an edge
    (256, 256, True, False),  # a core's caches keep it
    (1024, 1024, False, False),  # one row for all
])  # fmt: skip
def test_what_memory_has_is_asked_for_before_the_sums(rows, columns, residual, asks):
    made, plan = kernel(rows, columns, residual)
    a, b, r = given = values(rows, columns, residual)
    np.testing.assert_allclose(made((rows, columns), *given), a @ b + r, rtol=1e-4, atol=1e-4)
    assert bool(made.count(ASKED)) == asks, plan


def test_rows_that_the_sums_read_themselves_are_not_asked_for():
    x, k = te.placeholder((2000, 512), name="x"), te.reduce_axis((0, 512), name="k")
    mean = te.compute((2000,), lambda i: te.sum(x[i, k], axis=k), name="mean")
    y = te.compute((2000, 512), lambda i, j: x[i, j] - mean[i], name="y")
    made, plan = planned([x, y])
    given = np.random.default_rng(6).standard_normal((2000, 512)).astype("float32")
    expected = given - given.sum(1, keepdims=True, dtype="float64")
    np.testing.assert_allclose(made((2000, 512), given), expected, rtol=1e-4, atol=1e-4)
    assert not made.count(ASKED), plan
