"""Lanes merged in halves, on either TVM line: values, and what stays as it is."""

import numpy as np
import pytest

pytestmark = [pytest.mark.te, pytest.mark.optimised]
pytest.importorskip("tvm.te")

from tvm import te  # noqa: E402

from roller_tvm.roller.steps import ComputeAt, Fuse, RFactor, Split, Vectorize  # noqa: E402

from .kernels import built  # noqa: E402

ROWS, COLUMNS, LANES = 6, 96, 8
RNG = np.random.default_rng(4)


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


@pytest.mark.parametrize("columns", [1024, 32768])
def test_loops_longer_than_any_vector_stay(columns):
    """A sum as TVM left it is a loop over all of a row: no type of LLVM has so many lanes."""
    x = te.placeholder((ROWS, columns), name="x")
    k = te.reduce_axis((0, columns), name="k")
    y = te.compute((ROWS,), lambda i: te.sum(x[i, k], axis=k), name="y")
    given = RNG.integers(-9, 9, (ROWS, columns)).astype("float32")
    np.testing.assert_array_equal(built([x, y], [], ("vector_math",))((ROWS,), given), given.sum(axis=1))


def test_sums_of_odd_lanes_stay():
    x = te.placeholder((ROWS, 60), name="x")
    k = te.reduce_axis((0, 60), name="k")
    y = te.compute((ROWS,), lambda i: te.sum(x[i, k], axis=k), name="y")
    steps = [Split("y", "k", (6,), ("o", "lane")), RFactor("y", "lane", 1, "y.rf"), ComputeAt("y.rf", "y", "i")]
    kernel = built([x, y], steps, ("vector_math",))
    given = RNG.integers(-9, 9, (ROWS, 60)).astype("float32")
    np.testing.assert_array_equal(kernel((ROWS,), given), given.sum(axis=1))


def test_lanes_of_two_fused_axes_are_vectors_where_axes_of_one_element_stand_between():
    """A mean of pixels that keeps their axes: the loops of the lanes are those of TensorIR's block in another order."""
    x = te.placeholder((4, 8, 12), name="x")
    p, q = te.reduce_axis((0, 8), name="p"), te.reduce_axis((0, 12), name="q")
    y = te.compute((4, 1, 1), lambda i, a, b: te.sum(x[i, p, q], axis=[p, q]), name="y")
    steps = [
        Fuse("y", ("p", "q"), "pq"), Split("y", "pq", (LANES,), ("o", "lane")), RFactor("y", "lane", 3, "y.rf"),
        ComputeAt("y.rf", "y", "i"), Vectorize("y.rf", "lane"),
    ]  # fmt: skip
    kernel = built([x, y], steps, ("vector_math",))
    given = RNG.integers(-9, 9, (4, 8, 12)).astype("float32")
    np.testing.assert_array_equal(kernel((4, 1, 1), given), given.sum((1, 2), keepdims=True))
    assert kernel.count(f"load <{LANES} x float>") and kernel.count(f"fadd <{LANES} x float>")
