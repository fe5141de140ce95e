"""Figures of an order of records, against what they are defined as."""

from itertools import combinations
from math import exp, log

import numpy as np
import pytest

from roller_bench.replay import judge as j


def test_a_perfect_and_a_reversed_order():
    measured = [0.5, 0.1, 0.3, 0.2]
    assert j.judge(measured, measured) == j.Figures(4, 1.0, 1.0, 1.0, 1.0)
    worst = j.judge([-m for m in measured], measured)
    assert worst.correlation == -1.0 and worst.top1 == 5.0 and worst.top10 == 1.0


def test_chance_is_the_mean_over_all_choices(monkeypatch):
    monkeypatch.setattr(j, "TOP", 3)
    measured = [1.0, 2.0, 2.0, 5.0, 7.0, 1.5]
    found = j.by_chance(measured)
    assert found.top1 == pytest.approx(exp(np.mean(np.log(measured))))
    every = [log(min(c)) for c in combinations(measured, 3)]
    assert found.top10 == pytest.approx(exp(np.mean(every)))


def test_what_does_not_fit_is_last_and_harms_no_figure():
    found = j.judge([1.0, float("inf"), 2.0], [0.1, 0.3, 0.2])
    assert found.correlation == 1.0 and found.top1 == 1.0 and found.ratio == pytest.approx(10.0)


def test_over_files_regrets_are_geometric_means():
    files = [j.Figures(2, 0.5, 1.0, 1.0, 0.5), j.Figures(3, 0.7, 4.0, 1.0, 2.0)]
    assert j.overall(files) == j.Figures(5, pytest.approx(0.6), 2.0, 1.0, 1.0)
