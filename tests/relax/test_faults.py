"""Candidates that crash, hang, lie or do not build: the run goes on, and none of them is recorded."""

import os
import sys

import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from roller_tvm.errors import NothingTuned  # noqa: E402
from roller_tvm.measure.pool import Pool  # noqa: E402
from roller_tvm.measure.session import Limits  # noqa: E402
from roller_tvm.relax import tune  # noqa: E402
from roller_tvm.relax.devices import device_of  # noqa: E402
from roller_tvm.relax.measure import Measurer  # noqa: E402
from roller_tvm.relax.tasks import extract_tasks  # noqa: E402
from roller_tvm.tir.candidates import make_candidates  # noqa: E402

from ..sampling import sampled  # noqa: E402
from . import modules as M  # noqa: E402

WORKER = "tests.relax.faulty_worker"


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.setattr(sys, "path", [os.getcwd(), *sys.path])


def schedules(task, top):
    found = make_candidates(task.func, device_of(None, M.TARGET), top)
    return [schedule for _, schedule in found.schedules()]


@pytest.mark.parametrize("how", sampled(["time", "each"], always=("each",)))
def test_no_candidate_stops_the_others_or_is_believed(how):
    (task,) = extract_tasks(M.matmul())
    limits = Limits(run_s=3.0, margin=1.0)
    with Pool(2, 2, WORKER) as pool:
        result = Measurer(pool, M.TARGET, limits).measure(task, schedules(task, 6), how)
    kinds = [o.kind for o in result.outcomes]
    assert kinds == ["ok", "crash", "run timeout", "wrong answer", "ok", "build error"]
    assert result.winner in (0, 4)


@pytest.mark.parametrize("trials", [0, 2])
def test_nothing_that_fails_is_recorded(tmp_path, trials):
    with pytest.raises(NothingTuned, match="wrong answer"):
        tune(
            M.matmul(), target=M.TARGET, work_dir=tmp_path, max_trials_per_task=trials, max_trials_global=trials,
            worker="tests.relax.lying_worker",
        )  # fmt: skip
    assert (tmp_path / "database_tuning_record.json").read_text() == ""


def test_a_worker_that_cannot_start_is_said(tmp_path):
    with pytest.raises(Exception, match="cannot start"):
        tune(M.matmul(), target=M.TARGET, work_dir=tmp_path, max_trials_global=1, worker="tests.relax.no_such_worker")
