"""One task's candidates, by workers that answer as told."""

from contextlib import nullcontext

import pytest

from roller_tvm.tuning.session import CHECK, PACKED, Limits, Outcome, Session
from roller_tvm.tuning.supervise import Reply


class Answering:
    """A worker, and a pool of it, whose candidates are all right."""

    generation, alive = 1, True

    def call(self, function, args, limit_s):
        return Reply("ok", {"repeats": [], "pruned": False, "wrong": ""})

    def map(self, calls):
        return [(self, self.generation, Reply("ok", 0.1)) for _ in calls]

    def alone(self, worker):
        return nullcontext()


@pytest.mark.parametrize("pruned", [False, True])
def test_a_check_after_the_time_keeps_the_time(pruned):
    session = Session(Answering(), Limits(), {}, "task", PACKED, ["a plan"], {})
    session.outcomes = [Outcome("ok", seconds=2e-3, repeats=(2e-3,), pruned=pruned)]
    session.built[0, PACKED] = session.built[0, CHECK] = (session.pool, 1)
    result = session._first_right_of([0])
    assert result.winner == 0 and result.outcomes[0].checked and result.outcomes[0].seconds == 2e-3
