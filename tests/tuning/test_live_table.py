"""The live table of a tuning, and the times that its picture draws."""

import math
from types import SimpleNamespace

import pytest

from roller_tvm.explore.result import live_table
from roller_tvm.tuning.results import TunedTask, history, live_rows
from roller_tvm.tuning.session import Outcome


def tuned(name, weight, times, seconds):
    outcomes = [Outcome("ok", s, (s,)) if s else Outcome("crash") for s in times]
    return TunedTask(SimpleNamespace(name=name, weight=weight), "measured", None, outcomes, seconds=seconds)


def test_shares_gains_and_what_was_tried():
    tasks = [tuned("conv", 2, [4e-6, 3e-6, 0], 3e-6), tuned("dense", 1, [2e-6], 2e-6), tuned("left", 1, [], math.nan)]
    first, second, third = live_rows(tasks)
    assert (first.name, first.tried, first.options, second.name) == ("conv", 2, 3, "dense")
    assert (first.share, first.start_s, first.best_s) == pytest.approx((0.8, 8e-6, 6e-6))
    assert (third.start_s, third.best_s) == (0.0, 0.0)
    assert "1.33x" in live_table([first, second], {})
    assert history(tasks) == pytest.approx([10e-6, 8e-6, 8e-6, 8e-6])
