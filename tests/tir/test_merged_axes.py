"""Functions with neighbouring axes as one: which, and that they compute the same."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import te, topi  # noqa: E402

from roller_tvm.relax.arrangement import Convolution, blocked_convolution  # noqa: E402
from roller_tvm.tir.merged_axes import merged_function  # noqa: E402

TARGET = tvm.target.Target("llvm")


def answer(func, arrays, shape):
    out = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    tvm.compile(func, TARGET)(*map(tvm.runtime.tensor, arrays), out)
    return out.numpy()


def tensors(*shapes):
    return [te.placeholder(shape, name=f"x{n}") for n, shape in enumerate(shapes)]


def one_pixel(n=2, c=5, o=3, h=4, w=7):
    x, weights, bias, other = tensors((n, c, h, w), (o, c, 1, 1), (1, o, 1, 1), (n, o, h, w))
    out = topi.nn.relu(topi.add(topi.add(topi.nn.conv2d(x, weights, 1, 0, 1), bias), other))
    return [x, weights, bias, other, out], ((n, c, h * w), (o, c), (o,), (n, o, h * w), (n, o, h * w))


def in_blocks(n=1, c=8, o=12, h=3, w=5):
    conv = Convolution((n, c, h, w), (o, c, 1, 1), (1, 1), (0,) * 4, (1, 1), 1, "float32", "float32")
    x, weights = tensors((n, c // 4, h, w, 4), (o, c, 1, 1))
    pixels = (o // 4, h * w, 4)
    return [x, weights, blocked_convolution(x, weights, conv, 4)], ((c // 4, h * w, 4), (o, c), pixels)


def rows_of_a_batch():
    x, weights = tensors((2, 3, 8), (8, 4))
    k = te.reduce_axis((0, 8), name="k")
    out = te.compute((2, 3, 4), lambda b, i, j: te.sum(x[b, i, k] * weights[k, j], axis=[k]), name="product")
    return [x, weights, out], ((6, 8), (8, 4), (6, 4))


@pytest.mark.parametrize("case", [one_pixel, in_blocks, rows_of_a_batch])
def test_merged_functions_compute_the_same(case):
    args, shapes = case()
    func = te.create_prim_func(args, index_dtype_override="int64")
    found = merged_function(func, [1])
    assert found.shapes == shapes
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([int(e) for e in t.shape]).astype("float32") for t in args[:-1]]
    views = [a.reshape(shape) for a, shape in zip(arrays, found.shapes, strict=False)]
    expected = answer(func, arrays, [int(e) for e in args[-1].shape])
    np.testing.assert_allclose(
        answer(found.func, views, shapes[-1]), expected.reshape(shapes[-1]), rtol=1e-5, atol=1e-5
    )


def test_other_functions_are_left():
    x, w, a, b = tensors((1, 4, 6, 6), (4, 4, 3, 3), (8, 8), (8, 8))
    one = te.placeholder((4, 4, 1, 1), name="one")
    window, strided = topi.nn.conv2d(x, w, 1, 1, 1), topi.nn.conv2d(x, one, 2, 0, 1)
    others = [x, w, window], [x, one, strided], [a, b, topi.matmul(a, b)], [x, topi.nn.relu(x)]
    assert all(merged_function(te.create_prim_func(args)) is None for args in others)
