"""Plans whose register tiles tell what is padding, built on the TVM line at hand: values, and whole vectors."""

import numpy as np
import pytest

pytestmark = [pytest.mark.te, pytest.mark.optimised]
pytest.importorskip("tvm.te")

from tvm import te, topi  # noqa: E402

from roller_tvm.planner.construct import construct  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.te import read_te  # noqa: E402

from ..plan.devices import device  # noqa: E402
from ..sampling import sampled  # noqa: E402
from .kernels import built  # noqa: E402

RNG = np.random.default_rng(8)


def convolved(x, w, stride, padding):
    wide = np.pad(x.astype("float64"), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, w.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwyx,fcyx->nfhw", windows, w.astype("float64"))


@pytest.mark.parametrize(
    ("channels", "pixels", "filters", "window", "stride", "padding"),
    sampled([(3, 64, 16, 3, 2, 1), (8, 28, 8, 3, 2, 1), (3, 64, 8, 5, 2, 2), (3, 48, 16, 3, 3, 1)], 4),
)
def test_convolutions_with_padding_in_place(channels, pixels, filters, window, stride, padding):
    x = te.placeholder((1, channels, pixels, pixels), name="x")
    w = te.placeholder((filters, channels, window, window), name="w")
    y = topi.nn.conv2d_nchw(x, w, stride, padding, 1)
    plans = construct(read_te([x, w, y]).expression, device("avx2"), top=20).plans
    inlined = [p.plan for p in plans if p.plan.programs[-1].recipe == "cpu.tiled" and p.plan.programs[-1].inlined]
    assert inlined, "no plan pads in place"
    given = [RNG.standard_normal(tuple(int(e) for e in t.shape)).astype("float32") for t in (x, w)]
    expected = convolved(*given, stride, padding)
    for plan in inlined[:2]:
        kernel = built([x, w, y], lower(plan), ("edge_vectors",))
        np.testing.assert_allclose(kernel(expected.shape, *given), expected, rtol=1e-4, atol=1e-4)
