"""Each function's error over a sample of float32 is within its stated bound; nightly, over all of it."""

import pytest

pytest.importorskip("tvm")
pytestmark = pytest.mark.te

from roller_check import ulp  # noqa: E402


@pytest.mark.one_line
@pytest.mark.parametrize("name", ulp.FUNCTIONS)
def test_sampled(name):
    assert ulp.worst(name, 4099)[0] <= ulp.BOUND


@pytest.mark.nightly
@pytest.mark.parametrize("name", ulp.FUNCTIONS)
def test_all_of_float32(name):
    assert ulp.worst(name, 1)[0] <= ulp.BOUND


@pytest.mark.one_line
@pytest.mark.parametrize("name", ulp.FAST)
def test_fast_ones_are_chosen_and_within_their_bound(name):
    assert ulp.BOUND < ulp.worst(name, 16411, fast=True)[0] <= ulp.FAST[name]
