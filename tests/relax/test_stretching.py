"""Pictures enlarged by linear interpolation: right in each way to number elements, and by two kernels."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.relax.pipeline import build, prepare  # noqa: E402

from .networks import LLVM, module, run, values  # noqa: E402

#: Way -> the place of a new element among the old ones.
PLACES = {
    "half_pixel": lambda i, old, new: (i + 0.5) * old / new - 0.5,
    "pytorch_half_pixel": lambda i, old, new: (i + 0.5) * old / new - 0.5 if new > 1 else 0.0 * i,
    "align_corners": lambda i, old, new: i * (old - 1) / (new - 1),
    "asymmetric": lambda i, old, new: i * old / new,
}


def resized(shape, size, way, method="linear"):
    def body(b, x):
        return b.emit(relax.op.image.resize2d(x, size, method=method, coordinate_transformation_mode=way))

    return module(body, shape)


def expected(x, size, way):
    x = x.astype("float64")
    for axis, new in zip((2, 3), size, strict=True):
        old = x.shape[axis]
        place = PLACES[way](np.arange(new), old, new)
        first = np.floor(place).astype(int)
        share = (place - first).reshape([-1, 1][: 4 - axis])
        low, high = (np.take(x, np.clip(first + n, 0, old - 1), axis) for n in (0, 1))
        x = low * (1 - share) + high * share
    return x


@pytest.mark.parametrize("way", PLACES)
@pytest.mark.parametrize("size", [(20, 48), (7, 3), (5, 9)])
def test_the_same_picture(way, size):
    x = values(2, 3, 5, 6)
    (found,) = run(build(resized(x.shape, size, way), LLVM), x)
    np.testing.assert_allclose(found, expected(x, size, way), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "method", "kernels"),
    [((40, 40), "linear", 2), ((4, 40), "linear", 1), ((40, 40), "cubic", 1), ((40, 40), "nearest_neighbor", 1)],
)
def test_rows_then_columns_where_no_row_is_left_out(size, method, kernels):
    made = prepare(resized((1, 3, 5, 6), size, "half_pixel", method), LLVM)
    assert sum(type(func).__name__ == "PrimFunc" for _, func in made.functions_items()) == kernels
