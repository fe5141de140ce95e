"""Whether a kernel is timed or given up, by a clock that only kernels and calls move."""

import math

import numpy as np
import pytest

from roller_tvm.tuning import timing
from roller_tvm.tuning.session import Limits
from roller_tvm.tuning.timing import Kernel, run_timed

#: Seconds that a call costs beside the kernel.
CALL = 5e-6


@pytest.fixture
def timed(monkeypatch):
    clock, asked = [0.0], []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])

    def run(kernel_s, best=math.inf, first_s=0.0, nothing=True):
        def call(*_, seconds=kernel_s):
            clock[0] += CALL + seconds

        def evaluate(number, repeats):
            asked.append((number, repeats))
            return [kernel_s] * repeats

        free = (lambda *_: call(seconds=0.0)) if nothing else None
        kernel = Kernel(call, [np.zeros(1)], lambda: None, evaluate, (), free)
        found = run_timed(kernel, best, Limits().options(), {}, np.asarray, first_s)
        return found["pruned"], found["repeats"], asked

    return run


@pytest.mark.parametrize(("kernel_s", "pruned"), [(0.4e-6, False), (1.4e-6, False), (9e-6, True), (1e-3, True)])
def test_what_a_call_costs_gives_no_short_kernel_up(timed, kernel_s, pruned):
    """Beside a kernel of half a microsecond, which a call takes ten times as long as."""
    assert timed(kernel_s, best=0.5e-6)[0] == pruned


def test_runs_fill_a_repeat_whatever_a_call_costs(timed):
    pruned, repeats, asked = timed(1e-6)
    assert not pruned and set(repeats) == {1e-6}
    assert asked[0] == (pytest.approx(Limits().repeat_s / 1e-6, rel=0.01), Limits().repeats)


def test_far_from_the_best_is_given_up(timed):
    assert timed(2e-3, best=1e-3)[0] is False
    pruned, repeats, asked = timed(4e-3, best=1e-3)
    assert pruned and repeats == [pytest.approx(4e-3)] and len(asked) == 1


def test_a_first_run_of_seconds_is_not_repeated(timed):
    pruned, repeats, asked = timed(2.0, best=1e-3, first_s=2.0)
    assert (pruned, repeats, asked) == (True, [2.0], [])


def test_without_a_function_that_does_nothing_calls_count(timed):
    assert timed(0.4e-6, best=0.5e-6, nothing=False)[0]
