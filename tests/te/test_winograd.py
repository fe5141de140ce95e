"""Winograd's transforms: they compute the convolution, and as exactly as their docstring says."""

import numpy as np
import pytest

from roller_tvm.te.winograd import POINTS, WINDOW, matrices, transformed_weights

#: Largest error allowed, in those of the direct computation in float32 (both beside float64).
WORSE = {2: 2, 4: 20}


@pytest.mark.parametrize("tile", POINTS)
def test_the_transforms_compute_a_convolution(tile):
    a, b, g = matrices(tile)
    rng = np.random.default_rng(tile)
    image, window = rng.standard_normal((tile + 2, tile + 2)), rng.standard_normal((WINDOW, WINDOW))
    made = a.T @ ((g @ window @ g.T) * (b @ image @ b.T)) @ a
    wanted = [[(image[y : y + 3, x : x + 3] * window).sum() for x in range(tile)] for y in range(tile)]
    np.testing.assert_allclose(made, wanted, rtol=1e-12, atol=1e-12)
    assert not (b % 1).any()  # whole numbers: images lose nothing to rounded constants


def test_weights_are_transformed_in_double_precision():
    weights = np.random.default_rng(0).standard_normal((5, 4, 3, 3)).astype("float32")
    g = matrices(4)[2]
    made = transformed_weights(weights, 4)
    assert made.shape == (6, 6, 5, 4) and made.dtype == np.float32
    np.testing.assert_array_equal(made[:, :, 3, 2], (g @ weights[3, 2].astype("float64") @ g.T).astype("float32"))


@pytest.mark.parametrize("tile", POINTS)
@pytest.mark.parametrize("channels", [8, 64, 512])
def test_errors_stay_within_what_is_said(tile, channels):
    a, b, _ = (m.astype("float32") for m in matrices(tile))
    rng = np.random.default_rng(channels)
    image = rng.standard_normal((channels, tile + 2, tile + 2)).astype("float32")
    weights = rng.standard_normal((16, channels, 3, 3)).astype("float32")
    moved = np.einsum("xp,cpq,yq->xyc", b, image, b)
    product = np.einsum("xyc,xyoc->xyo", moved, transformed_weights(weights, tile))
    made = np.einsum("ru,rso,sv->ouv", a, product, a)
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(1, 2))
    right = np.einsum("cuvpq,ocpq->ouv", windows.astype("float64"), weights.astype("float64"))
    direct = np.zeros(right.shape, "float32")  # one term after the other, as a kernel adds them
    for c, p, q in np.ndindex(channels, 3, 3):
        direct += windows[c, :, :, p, q] * weights[:, c, p, q, None, None]
    error, usual = (np.sqrt(np.mean((found - right) ** 2)) for found in (made, direct))
    assert error <= WORSE[tile] * usual
