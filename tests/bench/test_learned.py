"""The learned model that ours is held against: its features, and that it never sees what it predicts."""

import numpy as np
import pytest

from roller_bench.learned import KERNEL_NAMES, kernel_features, left_out
from roller_tvm.device import load_device
from tests.replay.examples import AVERAGE_POOLING, CROSS_THREAD, matmul_record
from tests.replay.test_describe import kernels


@pytest.mark.parametrize("line", [matmul_record(), AVERAGE_POOLING, CROSS_THREAD])
def test_every_kind_of_kernel_has_a_row_of_finite_numbers(line):
    row = kernel_features(kernels(line), load_device("v100"))
    assert row.shape == (len(KERNEL_NAMES),) and np.isfinite(row).all() and row.any()


def test_a_group_is_predicted_from_the_others_alone():
    pytest.importorskip("xgboost", reason="needs xgboost")
    rows = np.arange(60.0).reshape(60, 1) % 20
    groups = [g for g in "abc" for _ in range(20)]
    # The third group's times are a thousand times those of the others: nobody who has not seen it can know.
    slow = np.where(np.array(groups) == "c", 1000.0, 1.0) * (1 + rows[:, 0])
    told = left_out(groups, rows, slow)
    assert (told[40:] < 100).all() and np.isfinite(told).all()
    assert np.isnan(left_out(["a"] * 60, rows, slow)).all()
