"""Statistics that every report shares, against what they are defined as."""

import math

import numpy as np
import pytest

from roller_tvm import stats


def test_correlation_with_ties_is_pearsons_of_mean_ranks():
    left, right = np.array([1.0, 1, 2, 3, 3, 3]), np.array([2.0, 1, 1, 4, 5, 3])
    a, b = np.array([0.5, 0.5, 2, 4, 4, 4]), np.array([2.0, 0.5, 0.5, 4, 5, 3])
    assert stats.spearman(left, right) == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert stats.spearman(np.ones(3), np.arange(3.0), flat=0.0) == 0.0
    assert math.isnan(stats.spearman([1.0, 1.0], [1.0, 2.0])) and math.isnan(stats.spearman([], []))


def test_of_nothing():
    assert math.isnan(stats.geomean([])) and math.isnan(stats.at_time([(1.0, 5.0)], 0.5))
