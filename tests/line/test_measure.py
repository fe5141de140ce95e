"""Candidates in worker processes: those that crash, hang or lie cost themselves alone."""

import pytest

pytestmark = pytest.mark.te
pytest.importorskip("tvm")

from roller_tvm.errors import MeasureError  # noqa: E402
from roller_tvm.tuning import worker as in_this_process  # noqa: E402
from roller_tvm.tuning.measurer import Measurer  # noqa: E402
from roller_tvm.tuning.supervise import WORKER, Failed, Pool  # noqa: E402

from ..sampling import sampled  # noqa: E402
from .subjects import quick  # noqa: E402


@pytest.mark.one_line("relax")
@pytest.mark.parametrize("how", sampled(["time", "each"], always=("time",)))
def test_every_kind_of_failure_is_counted_and_the_rest_measured(subject, workers_here, how):
    result = subject.measured("tests.line.faulty_worker", 6, how, quick(run_s=3.0))
    kinds = [o.kind for o in result.outcomes]
    assert kinds == ["ok", "crash", "run timeout", "wrong answer", "ok", "build error"]
    assert "SIGSEGV" in result.outcomes[1].text
    assert result.failures() == {"crash": 1, "run timeout": 1, "wrong answer": 1, "build error": 1}
    winner = result.outcomes[result.winner]
    assert winner.checked and (winner.seconds > 0 or how == "each")


@pytest.mark.slow
@pytest.mark.nightly
def test_no_candidate_stops_the_others_or_is_believed(subject, workers_here):
    limits = quick(run_s=5.0, build_s=8.0)  # a busy machine is not a hang
    result = subject.measured("tests.line.hostile_worker", 9, limits=limits)
    kinds = [o.kind for o in result.outcomes]
    assert kinds == ["ok", "crash", "ok", "crash", "crash", "run timeout", "crash", "build timeout", "ok"]
    texts = [o.text for o in result.outcomes]
    assert "SIGKILL" in texts[1] and "exit code 0" in texts[4] and "SIGKILL" in texts[6]
    assert "makes no sense" in texts[3]
    assert kinds[result.winner] == "ok" and result.outcomes[result.winner].checked


@pytest.mark.one_line("relax")
@pytest.mark.real_workers
def test_without_timing_the_first_right_one_wins(subject):
    result = subject.measured(WORKER, 2, "check")
    assert result.winner == 0 and result.outcomes[0].checked
    assert not result.outcomes[1].checked  # nobody needed it


def test_no_space_for_the_reference_is_a_reason(subject, monkeypatch):
    work, lines = subject.candidates(subject.tasks()[0], 1)
    with Pool(1, threads=1) as pool:
        real = pool.workers[0].call

        def call(function, args, limit_s):
            if function == "make_reference":
                args = (args[0], "/dev/full/no")  # where nothing can be written
            return real(function, args, limit_s)

        monkeypatch.setattr(pool.workers[0], "call", call)
        with pytest.raises(MeasureError, match="no reference to check against") as caught:
            Measurer(pool).measure(work, lines)
    assert caught.value.remedy and caught.value.where == work.name


def test_a_record_that_is_none_is_a_schedule_error(subject):
    work, _ = subject.candidates(subject.tasks()[0], 1)
    in_this_process.open_task(work.key, work.text, work.target, work.weights)
    with pytest.raises(Failed) as caught:
        in_this_process.build(work.key, 0, '[[[["Fuse", [], [], []]], []], [1.0], "", null]', 0)
    assert caught.value.kind == "schedule error"
    in_this_process.close_task(work.key)


def test_a_device_that_nobody_knows_is_not_there_and_one_that_breaks_is_no_answer(monkeypatch):
    assert in_this_process.device_present("llvm") and not in_this_process.device_present("abacus")
    side = in_this_process.worker_side()

    class Broken:
        @property
        def exist(self):
            raise RuntimeError("the driver is of another version")

    monkeypatch.setattr(type(side), "device", lambda self, kind: Broken())
    with pytest.raises(RuntimeError, match="another version"):
        in_this_process.device_present("cuda")
