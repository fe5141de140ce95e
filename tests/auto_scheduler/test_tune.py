"""SearchTask.tune and RollerPolicy: what is measured, recorded, called, and said."""

import json

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import auto_scheduler as ansor  # noqa: E402

from roller_tvm import auto_scheduler  # noqa: E402

from .workloads import PATIENT, QUICK, check_product, product_task  # noqa: E402


def options(trials, log=None, module=auto_scheduler, callbacks=(), **more):
    found = [*callbacks, *([module.RecordToFile(str(log))] if log else [])]
    more.setdefault("verbose", 0)
    return module.TuningOptions(
        trials, builder=module.LocalBuilder(timeout=PATIENT), runner=module.LocalRunner(timeout=PATIENT, **QUICK),
        measure_callbacks=found, **more)  # fmt: skip


def records(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def steps(record):
    return json.dumps(record["i"][1][1])


class Seen(ansor.measure.PythonBasedMeasureCallback):
    """Remembers what it was called with."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def callback(self, policy, inputs, results):
        self.calls.append((policy, list(inputs), list(results)))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """Three trials."""
    log, seen = tmp_path_factory.mktemp("tuned") / "records.json", Seen()
    task = product_task()
    task.tune(options(3, log, callbacks=[seen]))
    return task, log, seen


def test_the_best_plans_are_measured_by_the_users_runner(tuned):
    task, log, seen = tuned
    found = records(log)
    assert len(found) == 3 == len({steps(r) for r in found})
    assert all(r["r"][1] == 0 and 0 < r["r"][0][0] < 1 and r["r"][2] > 0 for r in found)
    check_product(*task.apply_best(str(log)))


def test_every_callback_is_called_with_every_trial(tuned):
    task, log, seen = tuned
    assert [len(inputs) for _, inputs, _ in seen.calls] == [1, 1, 1]
    assert all(str(p.search_task.workload_key) == task.workload_key for p, _, _ in seen.calls)
    costs = [float(r[0].costs[0]) for _, _, r in seen.calls]
    assert costs == pytest.approx([r["r"][0][0] for r in records(log)], rel=1e-4)


@pytest.mark.nightly
def test_resuming_measures_what_was_not_measured(tuned, tmp_path):
    task, log, _ = tuned
    more = tmp_path / "more.json"
    policy = auto_scheduler.RollerPolicy(
        task, verbose=0, init_search_callbacks=[auto_scheduler.PreloadMeasuredStates(str(log))]
    )
    assert policy.trials == 3 and policy.best_s == min(r["r"][0][0] for r in records(log))
    task.tune(options(2, more), policy)
    assert len(records(more)) == 2 and not {steps(r) for r in records(more)} & {steps(r) for r in records(log)}


def test_zero_trials_record_one_plan_that_no_measurement_loses_to(tuned, tmp_path):
    task, log, _ = tuned
    planned = tmp_path / "planned.json"
    task.tune(options(0, planned))
    (record,) = records(planned)
    assert record["r"][0][0] >= 1 and record["r"][2] == 0
    check_product(*task.apply_best(str(planned)))
    both = tmp_path / "both.json"
    both.write_text(planned.read_text() + log.read_text())
    best, _ = auto_scheduler.load_best_record(str(both), task.workload_key)
    assert float(auto_scheduler.load_best_record(str(both))[1].costs[0]) < 1 and best is not None
    again = auto_scheduler.RollerPolicy(task, verbose=0, init_search_callbacks=[
        auto_scheduler.PreloadMeasuredStates(str(planned))])  # fmt: skip
    assert again.trials == 0  # a plan is no trial


@pytest.mark.nightly
def test_tvms_own_task_with_our_policy(tmp_path):
    log = tmp_path / "records.json"
    task = product_task(ansor)
    task.tune(options(2, log, ansor), search_policy=auto_scheduler.RollerPolicy(task, verbose=0))
    assert len(records(log)) == 2
    check_product(*task.apply_best(str(log)))


def test_our_options_given_to_tvms_own_task_mean_roller(tmp_path, monkeypatch):
    monkeypatch.setattr(ansor.search_task._ffi_api, "AutoSchedule", None, raising=False)
    task, log = product_task(ansor), tmp_path / "records.json"
    task.tune(options(0, log))
    assert len(records(log)) == 1


@pytest.mark.nightly
def test_what_is_said(capfd, tmp_path):
    product_task().tune(options(1, tmp_path / "r.json", verbose=1))
    said = capfd.readouterr().out
    assert "Get 1 programs to measure:" in said and "Time elapsed for measurement:" in said and "No: 1" not in said
    product_task().tune(options(1, tmp_path / "r.json", verbose=2))
    assert "No: 1\tGFLOPS:" in capfd.readouterr().out
    product_task().tune(options(1, tmp_path / "r.json", verbose=0))
    assert not capfd.readouterr().out


def test_auto_schedule_gives_a_schedule():
    task = auto_scheduler.create_task("scaled_product", (64, 64, 64), "llvm -num-cores 2")
    check_product(*auto_scheduler.auto_schedule(task, tuning_options=options(0)))
