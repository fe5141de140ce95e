"""Rows of the next tile asked for while sums are computed, on the TVM line at hand: same values, lines asked for."""

import numpy as np
import pytest

pytestmark = pytest.mark.te
pytest.importorskip("tvm.te")

from tvm import te  # noqa: E402

from .kernels import ASKED, planned  # noqa: E402


def product(rows, terms, columns):
    a, b = te.placeholder((rows, terms), name="a"), te.placeholder((terms, columns), name="b")
    k = te.reduce_axis((0, terms), name="k")
    return [a, b, te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")]


def in_blocks(channels, size, filters, window=1):
    """A convolution whose tensors stand in blocks of 16 channels."""
    x = te.placeholder((channels // 16, size, size, 16), name="x")
    w = te.placeholder((filters // 16, channels // 16, window, window, 16, 16), name="w")
    ro, ri = te.reduce_axis((0, channels // 16), name="ro"), te.reduce_axis((0, 16), name="ri")
    ry, rx = te.reduce_axis((0, window), name="ry"), te.reduce_axis((0, window), name="rx")
    out = size - window + 1
    return [x, w, te.compute((filters // 16, out, out, 16), lambda c, i, j, v: te.sum(
        x[ro, i + ry, j + rx, ri] * w[c, ro, ry, rx, ri, v], axis=[ro, ry, rx, ri]), name="c")]  # fmt: skip


def of_product(a, b):
    return a.astype("float64") @ b


def of_blocks(x, w):
    window = w.shape[2]
    out = x.shape[1] - window + 1
    parts = (np.einsum("rijk,crkv->cijv", x[:, i : i + out, j : j + out], w[:, :, i, j], dtype="float64")
             for i in range(window) for j in range(window))  # fmt: skip
    return sum(parts)


@pytest.mark.parametrize(("tensors", "expected", "asks"), [
    (product(4096, 256, 64), of_product, True),  # a line is 16 steps of one loop
    (product(4099, 253, 48), of_product, True),  # tiles over an edge, lines that rows share
    (product(512, 512, 64), of_product, False),  # a core's caches keep it
    (product(2048, 512, 64), of_product, False),  # rows of half a page
    (in_blocks(256, 56, 64), of_blocks, True),  # a line is the innermost loop
    (in_blocks(128, 80, 64, 3), of_blocks, True),
    (in_blocks(64, 56, 64), of_blocks, False),
], ids=["product", "uneven", "small", "long rows", "blocks", "window", "small blocks"])  # fmt: skip
def test_rows_that_memory_has_are_asked_for_a_tile_ahead(tensors, expected, asks):
    made, plan = planned(tensors)
    rng = np.random.default_rng(5)
    *given, out = (tuple(int(n) for n in tensor.shape) for tensor in tensors)
    arrays = [rng.standard_normal(shape).astype("float32") for shape in given]
    np.testing.assert_allclose(made(out, *arrays), expected(*arrays), rtol=1e-4, atol=2e-4)
    assert bool(made.count(ASKED)) == asks, plan
