"""How fast the CPU runs just now, over the fastest that is known."""

import contextlib
import math

import pytest

from roller_bench.quiet import Pace
from roller_tvm.errors import ProfileError

from ..plan.devices import device

PEAK = device("avx2").peak("float32")


def runner(rates, made=None):
    """In the place of the program: these GFLOP/s."""

    @contextlib.contextmanager
    def make(vector_bytes):
        if made is not None:
            made.append(vector_bytes)
        yield lambda requests: {requests[0]: list(rates)}

    return make


@pytest.mark.parametrize(
    "rates, fastest, share",
    [
        ((PEAK, PEAK, PEAK / 2), 0.0, 1.0), ((PEAK / 2,), 0.0, 0.5), ((PEAK,), 2 * PEAK, 0.5), ((PEAK,), PEAK / 2, 1.0),
        ((), 0.0, 0.0),  # all of them disturbed
    ],
)  # fmt: skip
def test_the_usual_rate_counts(rates, fastest, share):
    assert Pace(device("avx2"), fastest, runner(rates))() == pytest.approx(share)


def test_it_looks_until_something_was_undisturbed():
    looks = [[], [], [PEAK, PEAK / 2]]

    @contextlib.contextmanager
    def make(vector_bytes):
        yield lambda requests: {requests[0]: looks.pop(0)}

    assert Pace(device("avx2"), 0.0, make)() == pytest.approx(0.75) and not looks


def test_the_program_is_made_once():
    made = []
    pace = Pace(device("avx2"), 0.0, runner((PEAK,), made))
    assert pace() == pace() == 1.0 and made == [device("avx2").vector_bytes]
    pace.close()


def test_where_nothing_can_be_measured():
    def none(vector_bytes):
        raise ProfileError("no C compiler found", "here", "install one")

    assert math.isnan(Pace(device("avx2"), 0.0, none)())
    assert math.isnan(Pace(device("h200"), 0.0, runner((PEAK,)))())


def test_here():
    from roller_tvm.device import load_device

    share = Pace(load_device("cpu"))()
    assert math.isnan(share) or 0 <= share < 3
