"""Sums of pixels whose channels are neighbours: each core sums up pixels that lie together, on either TVM line."""

import numpy as np
import pytest

pytestmark = pytest.mark.te
pytest.importorskip("tvm.te")

from tvm import te  # noqa: E402

from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.te import read_te  # noqa: E402

from ..plan.devices import device  # noqa: E402
from .kernels import built  # noqa: E402


def means(pixels, channels, images=1):
    x = te.placeholder((images, pixels, pixels, channels), name="x")
    p, q = te.reduce_axis((0, pixels), name="p"), te.reduce_axis((0, pixels), name="q")
    total = te.compute((images, channels), lambda n, c: te.sum(x[n, p, q, c], axis=[p, q]), name="total")
    return x, te.compute((images, channels), lambda n, c: total[n, c] * (1.0 / pixels**2), name="mean")


def plans(tensors, top=9):
    return [ranked.plan for ranked in construct(read_te(list(tensors)).expression, device("avx2"), top=top).plans]


def test_cores_share_the_pixels_of_few_channels():
    tensors = means(40, 24)
    best, *others = plans(tensors, 99)
    (split,) = best.split_reductions
    assert (split.axis, split.parts, split.lanes) == ("p*q", device("avx2").units, False)
    assert any(not plan.split_reductions for plan in others), "both are ranked"
    given = np.random.default_rng(0).standard_normal((1, 40, 40, 24)).astype("float32")
    found = built(tensors, lower(best), ("vector_math",))((1, 24), given)
    np.testing.assert_allclose(found, given.mean((1, 2)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", [(40, 8192), (5, 24), (45, 24)], ids=["many channels", "few pixels", "an odd number"])
def test_other_sums_stay_whole(case):
    assert not any(plan.split_reductions for plan in plans(means(*case)))
