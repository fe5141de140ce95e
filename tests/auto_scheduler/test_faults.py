"""What goes wrong: candidates that crash, hang or lie, devices that are not here, operators that cannot be planned."""

import os
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import auto_scheduler as ansor  # noqa: E402

from roller_tvm import auto_scheduler  # noqa: E402
from roller_tvm.auto_scheduler import measuring  # noqa: E402
from roller_tvm.auto_scheduler.search_policy import RollerWarning  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.relay.worker_side import work_of  # noqa: E402
from roller_tvm.tuning import checking  # noqa: E402

from .test_scheduler import keys, options, records  # noqa: E402
from .workloads import TARGET, check_product, looked_up, product_task  # noqa: E402


@pytest.fixture
def faulty(monkeypatch, tmp_path):
    """Worker processes in which the first three candidates do not work."""
    monkeypatch.setenv("FAULTY_MARKS", str(tmp_path))
    monkeypatch.setattr(sys, "path", [os.getcwd(), *sys.path])
    workers = checking.Workers("llvm", 2, "tests.auto_scheduler.faulty")
    workers.measurer.limits = replace(workers.measurer.limits, run_s=3.0)
    monkeypatch.setattr(checking.Workers, "shared", lambda *args: workers)
    yield workers
    workers.pool.close()


def quickly(monkeypatch, error_no=0):
    """A runner that answers at once."""

    def answer(self, task, states):
        given = [auto_scheduler.MeasureResult([0.001 + n / 1e6], error_no, "", 0.1, 1.0) for n in range(len(states))]
        return [auto_scheduler.MeasureInput(task, s) for s in states], given

    monkeypatch.setattr(measuring.Means, "measure", answer)


def test_what_crashes_hangs_or_answers_wrongly_is_never_recorded(faulty, monkeypatch, tmp_path):
    quickly(monkeypatch)
    task, log = product_task(), tmp_path / "records.json"
    policy = auto_scheduler.RollerPolicy(task, verbose=0)
    first = [c.steps for c in list(policy.queue.todo)[:3]]
    task.tune(options(4, log), policy)
    assert sorted(policy.rejected[:3]) == ["crash", "run timeout", "wrong answer"]
    from roller_tvm.auto_scheduler.history import steps_of

    found = [steps_of(line) for line in log.read_text().splitlines()]
    assert len(found) == 4 and not set(first) & set(found)


@pytest.mark.nightly
def test_a_crash_tells_of_the_machine_only_where_nothing_has_run_here(faulty, tmp_path):
    """Where another machine will measure: code for that one may not run on this."""
    task = product_task()
    line = next(iter(auto_scheduler.RollerPolicy(task, verbose=0).queue.todo)).line

    def told(is_local):
        (tmp_path / "0").unlink(missing_ok=True)  # it crashes once more
        return [o.kind for o in faulty.checked(work_of(task), [line], task.target, is_local)]

    assert told(True) == ["crash"] and told(False) == ["ok"]
    outcomes = faulty.checked(work_of(task), [line], task.target, False)
    assert [o.kind for o in outcomes] == ["ok"] and faulty.have_run(str(task.target))
    assert told(False) == ["crash"]


@pytest.mark.nightly
def test_trials_that_fail_are_told_and_the_best_plan_recorded(monkeypatch, tmp_path):
    quickly(monkeypatch, error_no=6)
    task, log = product_task(), tmp_path / "records.json"
    with pytest.warns(RollerWarning, match="all 2 trials failed, e.g. build timeout"):
        task.tune(options(2, log))
    assert [r["r"][1] for r in records(log)] == [6, 6, 0] and records(log)[-1]["r"][2] == 0
    check_product(*task.apply_best(str(log)))


def test_a_gpu_that_is_not_here_is_planned_for(tmp_path, recwarn):
    if tvm.cuda(0).exist:
        pytest.skip("there is a GPU here")
    log = tmp_path / "records.json"
    tasks = [product_task(n=n, target="cuda -arch=sm_80") for n in (64, 96)]
    tuner = auto_scheduler.TaskScheduler(tasks, callbacks=[])
    tuner.tune(options(100, log))
    told = [w for w in recwarn if issubclass(w.category, RollerWarning)]
    assert len(told) == 1 and "no device here runs code for 'cuda" in str(told[0].message)
    assert keys(log) == [t.workload_key for t in tasks] and all(r["r"][2] == 0 for r in records(log))
    schedule, args = tasks[0].apply_best(str(log))
    assert "threadIdx.x" in str(tvm.lower(schedule, args))


@pytest.mark.nightly
def test_what_cannot_be_planned_keeps_tvms_own_schedule(tmp_path):
    log = tmp_path / "records.json"
    lengths, a = np.arange(8, dtype="int32"), np.random.default_rng(0).standard_normal((8, 16)).astype("float32")
    task = auto_scheduler.SearchTask(func=looked_up, args=(8, 16), target=TARGET)
    with pytest.warns(RollerWarning, match="it keeps TVM's own schedule"):
        task.tune(options(4, log))
    with pytest.warns(RollerWarning, match="an untuned schedule instead"):
        schedule, args = task.apply_best(str(log))
    out = tvm.nd.empty((8,))
    tvm.build(schedule, args, TARGET)(tvm.nd.array(lengths), tvm.nd.array(a), out)
    np.testing.assert_allclose(out.numpy(), [a[n, :n].sum() for n in lengths], rtol=1e-5, atol=1e-5)
    tuner = auto_scheduler.TaskScheduler([task, product_task()], callbacks=[])
    with pytest.warns(RollerWarning, match="looked_up"):
        tuner.tune(options(4, log))
    assert len(records(log)) == 4 and set(keys(log)) == {product_task().workload_key}


def test_ansor_searches_where_the_user_lets_it(monkeypatch):
    asked = []
    monkeypatch.setattr(ansor._ffi_api, "AutoSchedule", lambda *a: asked.append(a), raising=False)
    task = auto_scheduler.SearchTask(func=looked_up, args=(8, 16), target=TARGET)
    with pytest.warns(RollerWarning, match="Ansor's search instead"):
        task.tune(options(4), auto_scheduler.RollerPolicy(task, {"fallback": "ansor"}, verbose=0))
    assert isinstance(asked[0][0], ansor.SketchPolicy)


def test_a_cpu_of_another_kind_needs_its_description(tmp_path):
    log, target = tmp_path / "records.json", "llvm -mtriple=aarch64-linux-gnu"
    task = product_task(target=target)
    assert not checking.same_machine(task.target) and checking.same_machine(tvm.target.Target(TARGET))
    with pytest.warns(RollerWarning, match="is not this machine"):
        task.tune(options(0, log))
    assert not records(log)
    described = load_device("cpu")
    task.tune(options(0, log), auto_scheduler.RollerPolicy(task, {"device": described}, verbose=0))
    assert len(records(log)) == 1 and records(log)[0]["i"][0][1] == str(task.target)


@pytest.mark.nightly
def test_ctrl_c_while_the_runner_is_at_work_ends_the_tuning(monkeypatch, tmp_path):
    import signal

    log = tmp_path / "records.json"

    class Stop(ansor.measure.PythonBasedMeasureCallback):
        def callback(self, policy, inputs, results):
            os.kill(os.getpid(), signal.SIGINT)

    given = options(4, log)
    given = auto_scheduler.TuningOptions(4, num_measures_per_round=1, verbose=0, runner=given.runner,
                                         measure_callbacks=[auto_scheduler.RecordToFile(log), Stop()])  # fmt: skip
    with warnings.catch_warnings(), pytest.raises(KeyboardInterrupt):
        product_task().tune(given)
    assert len(records(log)) == 1 and not checking.Workers._shared


def test_ctrl_c_while_the_runner_is_at_work_loses_no_trial(monkeypatch, tmp_path):
    """What it measured is recorded, what its processes lost with Ctrl-C is not."""
    import signal

    def answer(self, task, states):
        os.kill(os.getpid(), signal.SIGINT)
        given = [auto_scheduler.MeasureResult([0.001], 4 * (n > 0), "", 0.1, 1.0) for n in range(len(states))]
        return [auto_scheduler.MeasureInput(task, s) for s in states], given

    monkeypatch.setattr(measuring.Means, "measure", answer)
    log = tmp_path / "records.json"
    with warnings.catch_warnings(), pytest.raises(KeyboardInterrupt):
        product_task().tune(options(4, log))
    assert [r["r"][1] for r in records(log)] == [0]


def test_a_trial_without_flops_proves_that_the_device_is_there():
    """One of a transpose's candidates fails on the device, the other works: nothing is wrong with the runner."""
    from tvm import te

    a = te.placeholder((4, 8), name="A")
    dag = ansor.ComputeDAG([a, te.compute((8, 4), lambda i, j: a[j, i], name="out")])
    assert dag.flop_ct == 0
    task = auto_scheduler.SearchTask(compute_dag=dag, workload_key="turned", target=TARGET)
    given = [ansor.MeasureResult([1e-6], 0, "", 0.1, 1.0),
             ansor.MeasureResult([1e10], ansor.measure.MeasureErrorNo.RUNTIME_DEVICE, "no", 0.1, 1.0)]  # fmt: skip

    class Answering:
        def build(self, inputs, verbose):
            return []

        def run(self, inputs, built, verbose):
            return given

    means = measuring.Means(Answering(), Answering(), [], 0)
    means.measure(task, [dag.get_init_state()] * 2)
    assert means.proven and not means.broken


def test_arguments_are_remembered_in_their_order_however_they_are_given():
    from roller_tvm.auto_scheduler.hooks import made_with

    builder, runner = auto_scheduler.LocalBuilder(), auto_scheduler.LocalRunner()
    measurer = ansor.measure.ProgramMeasurer(verbose=0, callbacks=[], runner=runner, builder=builder)
    assert made_with(measurer)[:4] == (builder, runner, [], 0)


def test_that_answers_from_far_away_are_not_compared_is_said_once(monkeypatch, capfd):
    quickly(monkeypatch)
    task = product_task(target="llvm -mtriple=aarch64-linux-gnu")
    policy = auto_scheduler.RollerPolicy(task, {"device": load_device("cpu")}, verbose=0)
    means = measuring.Means(None, None, [], 1)
    for _ in range(2):
        assert policy.measure_round(1, means)[1]
    policy.close()
    assert capfd.readouterr().out.count("answers are not compared") == 1
