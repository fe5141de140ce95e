"""Each function's error over a sample of float32 is within its stated bound; nightly, over all of it."""

import pytest

pytest.importorskip("tvm")
pytestmark = pytest.mark.te

from roller_check import ulp  # noqa: E402


@pytest.mark.parametrize("name", ulp.BOUNDS)
def test_sampled(name):
    assert ulp.worst(name, 4099)[0] <= ulp.BOUNDS[name]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ulp.BOUNDS)
def test_all_of_float32(name):
    assert ulp.worst(name, 1)[0] <= ulp.BOUNDS[name]
