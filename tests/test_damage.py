"""Damaged files by rule: every reader ends with a typed error or what was written. No TVM."""

import pytest

from roller_check.damage.readers import READERS
from roller_check.damage.run import run


@pytest.mark.parametrize("name", READERS)
def test_no_traceback_no_hang_no_wrong_answer_no_silent_loss(name):
    tally = run(name, range(60))
    assert tally.inputs == 60 and not tally.faults, tally.faults[0]


@pytest.mark.nightly
@pytest.mark.parametrize("name", READERS)
def test_the_whole(name):
    tally = run(name, range(9100))
    assert not tally.faults, tally.faults[0]
