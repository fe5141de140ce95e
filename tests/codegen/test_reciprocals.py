"""Quotients of vectors by one number, on either TVM line: values, also of the least and largest numbers."""

import numpy as np
import pytest

pytestmark = [pytest.mark.te, pytest.mark.optimised]
pytest.importorskip("tvm.te")

from tvm import te  # noqa: E402

from roller_tvm.roller.steps import Split, Vectorize  # noqa: E402

from .kernels import built  # noqa: E402

COLUMNS = 16
#: 1 and its neighbours, ends of the normal numbers, less than these, and what is no number.
EDGES = np.array(
    [1.0, 1.5, -3.0, 7.0, 1.17549435e-38, 3.4028235e38, -3.4028235e38, 1e38, 1e-40, 1.4e-45, 0.0, -0.0, np.inf, -np.inf,
     np.nan], np.float32,
)  # fmt: skip


def quotients(rows, vectors=True, names=("vector_math",)):
    x = te.placeholder((rows, COLUMNS), name="x")
    s = te.placeholder((rows,), name="s")
    y = te.compute((rows, COLUMNS), lambda i, j: x[i, j] / s[i], name="y")
    return built([x, s, y], [Vectorize("y", "j")] if vectors else [], names)


def test_quotients_of_edges_are_those_of_a_division():
    divisors = np.repeat(EDGES, len(EDGES))
    given = np.zeros((len(divisors), COLUMNS), np.float32)
    given[:, :] = np.tile(EDGES, len(EDGES))[:, None]
    kernel = quotients(len(divisors))
    found = kernel(given.shape, given, divisors)
    with np.errstate(all="ignore"):
        expected = given / divisors[:, None]
    least = np.finfo(np.float32).tiny  # below, numbers lose digits, or are 0
    np.testing.assert_allclose(found, expected, rtol=2e-7, atol=2 * least)


def test_quotients_are_within_two_units_in_the_last_place():
    rng = np.random.default_rng(6)
    given = rng.standard_normal((4096, COLUMNS)).astype("float32")
    divisors = np.exp(rng.uniform(-60, 60, 4096)).astype("float32")
    found = quotients(4096)(given.shape, given, divisors)
    exact = given.astype("float64") / divisors[:, None].astype("float64")
    assert np.max(np.abs(found - exact) / np.spacing(np.abs(exact).astype("float32"))) <= 1.5


def test_the_loop_has_no_division():
    x = te.placeholder((8, 256), name="x")
    s = te.placeholder((8,), name="s")
    y = te.compute((8, 256), lambda i, j: x[i, j] / s[i], name="y")
    steps = [Split("y", "j", (16,), ("o", "v")), Vectorize("y", "v")]
    own, plain = built([x, s, y], steps, ("vector_math",)), built([x, s, y], steps, ())
    assert own.count("fdiv <16 x float>") == 0 < plain.count("fdiv <16 x float>")
