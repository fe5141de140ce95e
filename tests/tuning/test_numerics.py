"""Inputs on which a reference says something of all its values."""

from types import SimpleNamespace

import numpy as np
import pytest

from roller_tvm.tuning.numerics import difference, load, make_inputs, reference_on, usable

PAIR = [SimpleNamespace(shape=(64, 401), dtype="float32")] * 2


@pytest.mark.parametrize("compute", [
    lambda given: [given[0] / given[1]],  # poles: the largest of many is a million times the typical one
    lambda given: [np.log(given[0])],  # half of them are no numbers
    lambda given: [given[0], np.sqrt(given[1])],
])  # fmt: skip
def test_values_are_positive_where_others_say_little(compute):
    with np.errstate(invalid="ignore", divide="ignore"):
        assert not usable(compute(make_inputs(PAIR)))
        inputs, expected = reference_on(PAIR, compute)
    assert all((value > 0).all() for value in inputs) and usable(expected)
    wrong = [e.copy() for e in expected]
    wrong[-1][0, :8] *= 1.05  # at an edge
    assert difference(wrong[-1], expected[-1], 1)


def test_values_of_both_signs_come_first():
    inputs, expected = reference_on(PAIR, lambda given: [np.maximum(given[0] + given[1], 0)])
    assert (inputs[0] < 0).any() and (expected[0] == 0).any()


def test_where_neither_is_good_the_one_with_more_numbers_is_taken():
    mask = np.where(np.tri(64, 401, dtype=bool), 0, -np.inf)
    inputs, _ = reference_on(PAIR, lambda given: [given[0] + mask])
    assert (inputs[0] < 0).any()  # as many of either: the first
    with np.errstate(invalid="ignore"):
        inputs, _ = reference_on(PAIR, lambda given: [np.sqrt(given[0]) + mask])
    assert (inputs[0] > 0).all()


def test_integers_always_say_something():
    whole = [SimpleNamespace(shape=(8,), dtype="int8")]
    inputs, expected = reference_on(whole, lambda given: [given[0].astype("int64") ** 5])
    assert usable(expected) and (inputs[0] < 0).any()


@pytest.mark.parametrize("far", [-1e9, -3.4e38])
def test_values_beside_what_a_mask_filled_are_judged_by_their_own_size(far):
    scores = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
    expected = np.where(scores > 0.2, np.float32(far), scores)
    assert not difference(expected * np.float32(1 + 2e-7), expected, 64)
    assert "magnitude" in difference(np.where(scores > 0.2, expected, 0), expected, 64)
    assert "magnitude" in difference(np.where(scores > 0.2, 0, expected), expected, 64)


def test_values_without_a_gap_are_judged_by_the_largest():
    expected = np.random.default_rng(1).standard_normal(100_000).astype(np.float32)
    off = expected + np.float32(1e-5)
    assert not difference(off, expected, 576) and difference(off, expected, 1)
    assert not difference(np.zeros(3, np.float32), np.zeros(3, np.float32), 1)
    assert difference(np.full(3, 1e-3, np.float32), np.zeros(3, np.float32), 1)


def test_bfloat16_comes_back(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(4).astype(ml_dtypes.bfloat16)
    np.save(tmp_path / "a.npy", array)
    assert np.load(tmp_path / "a.npy").dtype.kind == "V"
    assert (load(tmp_path / "a.npy", "bfloat16") == array).all()
