"""Tuning on either line: what is measured, recorded, resumed, kept and said."""

import json
import math
import os
import signal

import pytest

pytestmark = pytest.mark.te
pytest.importorskip("tvm")

from roller_tvm.errors import MeasureError, NothingTuned  # noqa: E402
from roller_tvm.internal import InternalError  # noqa: E402
from roller_tvm.planner import plan_cache  # noqa: E402
from roller_tvm.tuning import candidates, results  # noqa: E402
from roller_tvm.tuning.supervise import Reply, Worker  # noqa: E402

from .subjects import THEIRS, quick  # noqa: E402


def statuses(result):
    """Statuses of the tasks that a build of ours looks for."""
    return [t.status for t in result.tasks if t.task.weight]


@pytest.fixture(scope="module")
def tuned(subject, tmp_path_factory):
    place = tmp_path_factory.mktemp("tuned") / subject.file
    lines = []
    result = subject.tune(place, 2, progress=lambda t, n: lines.append((results.row(t), n)))
    return result, place, lines


def test_every_task_is_measured_and_checked(tuned):
    result, _, lines = tuned
    assert statuses(result) == ["measured"] * 2
    assert [n for _, n in lines] == [len(result.tasks)] * len(result.tasks)
    for one in (t for t in result.tasks if t.task.weight):
        assert one.checked and 0 < one.seconds < 0.1 and one.gflops > 0 and one.default_s > 0
        assert one.plan is not None and one.predicted_s > 0


def test_the_summary_names_what_matters(tuned):
    result, place, lines = tuned
    text = str(result)
    tried = next(len(t.outcomes) for t in result.tasks if t.task.weight)  # the Relay line has some plans in two forms
    assert "2 measured" in text and f" {tried}/{tried}\n" in text and str(place) in text
    assert f"{result.threads} threads" in text
    assert all(line in text for line, _ in lines)
    data = json.loads(json.dumps(results.to_json(result)))
    assert data["tasks"][0]["status"] == "measured" and data["tasks"][0]["plan"]
    assert set(data["seconds"]) == {"extract", "plan", "build", "reference", "run", "total"}


def test_a_second_run_resumes_and_plans_nothing(subject, tuned, monkeypatch):
    result, place, _ = tuned

    def never(*_args, **_keywords):
        raise AssertionError("planned again")

    monkeypatch.setattr(plan_cache, "construct", never)
    again = subject.tune(place, 2)
    assert {t.status for t in again.tasks} == {"resumed"}
    for old, new in zip(result.tasks, again.tasks, strict=True):
        assert new.seconds == pytest.approx(old.seconds, rel=1e-3) and new.checked == old.checked


@pytest.mark.one_line("relax")
def test_more_trials_than_were_made_tune_again(subject, tmp_path):
    place = tmp_path / subject.file
    for trials, status in ((0, "planned"), (1, "measured"), (1, "resumed"), (0, "resumed")):
        result = subject.tune(place, trials, tasks=[0])
        assert statuses(result) == [status], (trials, str(result))
        assert all(t.checked and not math.isnan(t.predicted_s) for t in result.tasks)


@pytest.mark.one_line("relax")
def test_where_tvm_s_own_kernel_is_faster_it_stays_and_is_not_measured_again(subject, tmp_path):
    place = tmp_path / subject.file
    subject.tune(place, 0, tasks=[0])  # what is recorded so far is withdrawn
    (task,) = subject.tune(place, 2, tasks=[0], limits=THEIRS).tasks
    assert task.status == "fallback" and task.kept and "it is faster" in task.reason
    assert task.default_s == task.seconds > 0
    (again,) = subject.tune(place, 2, tasks=[0]).tasks
    assert again.kept and not again.outcomes and again.reason == task.reason


@pytest.mark.nightly
def test_wrong_and_crashing_candidates_do_not_stop_tuning(subject, tmp_path, workers_here):
    place, worker = tmp_path / subject.file, "tests.line.faulty_worker"
    result = subject.tune(place, 4, tasks=[1], limits=quick(run_s=3.0), worker=worker)
    assert {"crash", "run timeout", "wrong answer"} <= set(result.failures)
    assert statuses(result) == ["measured"] and "wrong answer" in str(result)


@pytest.mark.one_line("relax")
@pytest.mark.parametrize("trials", [0, 2])
def test_nothing_that_is_wrong_is_recorded(subject, tmp_path, workers_here, trials):
    place = tmp_path / subject.file
    with pytest.raises(NothingTuned, match="wrong answer") as caught:
        subject.tune(place, trials, tasks=[0], top=2, worker="tests.line.lying_worker")
    assert "doctor" in caught.value.remedy and caught.value.exit_code == 1
    records = subject.line.records(place, subject.target)
    assert records.known(subject.tasks()[0], 0) is None
    records.close()


def test_a_worker_that_cannot_start_is_said(subject, tmp_path, workers_here):
    with pytest.raises(MeasureError, match="cannot start") as caught:
        subject.tune(tmp_path / subject.file, 1, worker="tests.line.no_such_worker")
    assert "doctor" in caught.value.remedy


def test_a_bug_of_the_planner_is_an_internal_error_with_its_operator(subject, tmp_path, monkeypatch):
    def nothing(*_args, **_keywords):
        raise KeyError("no rule fits")

    monkeypatch.setattr(plan_cache, "construct", nothing)
    with (
        pytest.warns(InternalError, match=r"planner error: KeyError: 'no rule fits'.*\n  of: ") as told,
        pytest.raises(NothingTuned, match="none of 1 tasks.*planner error: KeyError: 'no rule fits'"),
    ):
        subject.tune(tmp_path / subject.file, 1, tasks=[0])
    (text,) = (str(one.message) for one in told if one.category is InternalError)  # a pool of one CPU warns too
    assert "16" in text and "24" in text, "the operator is attached"


def test_a_bug_of_one_recipe_costs_its_plan_and_the_next_is_used(subject, tmp_path, monkeypatch):
    real, plans = candidates.lower, []

    def buggy(plan):
        plans.append(plan)
        if len(plans) == 1:
            raise IndexError("no such loop")
        return real(plan)

    monkeypatch.setattr(candidates, "lower", buggy)
    with pytest.warns(InternalError, match="(?s)lowering error: IndexError: no such loop .*the next choice is used"):
        result = subject.tune(tmp_path / subject.file, 0, tasks=[0])
    assert statuses(result) == ["planned"] and result.failures["schedule error"] == 1
    assert result.tasks[0].plan.plan.digest() != plans[0].digest()


def test_such_a_bug_fails_the_tests(subject, monkeypatch):
    monkeypatch.setattr(candidates, "lower", lambda plan: 1 / 0)
    with pytest.raises(InternalError, match="ZeroDivisionError"):
        subject.candidates(subject.tasks()[0], 1)


def test_without_a_device_plans_are_built_and_recorded_with_their_prediction(subject, tmp_path):
    place = tmp_path / subject.file
    result = subject.tune(place, 8, target=subject.gpu, tasks=[0])
    if "no cuda device here" not in str(result):
        pytest.skip("there is a GPU here")
    (task,) = result.tasks
    assert task.status == "planned" and not task.checked and task.outcomes[-1].ok
    assert task.seconds == task.predicted_s and "neither measured nor checked" in str(result)
    again = subject.tune(place, 8, target=subject.gpu, tasks=[0])
    assert [t.status for t in again.tasks] == ["resumed"] and again.tasks[0].seconds == pytest.approx(task.seconds)


@pytest.mark.one_line("relax")
def test_a_broken_driver_is_no_missing_device(subject, tmp_path, monkeypatch):
    real = Worker.call

    def call(self, function, args, limit_s):
        if function == "device_present":
            return Reply("build error", text="the driver is of another version")
        return real(self, function, args, limit_s)

    monkeypatch.setattr(Worker, "call", call)
    result = subject.tune(tmp_path / subject.file, 1, tasks=[0])
    assert "the llvm device cannot be asked (the driver is of another version)" in str(result)
    assert statuses(result) == ["planned"]


@pytest.mark.one_line("relax")
def test_no_task_is_started_once_time_is_up(subject, tmp_path):
    result = subject.tune(tmp_path / subject.file, 0, seconds=1e-9)
    assert len(result.tasks) == 1 and any("time was up" in note for note in result.notes)
    most = max(subject.tasks(), key=lambda t: t.flops * t.weight)
    assert result.tasks[0].task.key == most.key


@pytest.mark.one_line("relax")
def test_ctrl_c_keeps_what_was_recorded(subject, tmp_path):
    place = tmp_path / subject.file
    with pytest.raises(KeyboardInterrupt):
        subject.tune(place, 0, progress=lambda tuned, count: os.kill(os.getpid(), signal.SIGINT))
    told = [t.status for t in subject.tune(place, 0).tasks]
    assert told[0] == "resumed" and set(told[1:]) == {"planned"}
