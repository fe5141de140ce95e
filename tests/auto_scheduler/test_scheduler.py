"""TaskScheduler, ours and TVM's own with our policies."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import auto_scheduler as ansor  # noqa: E402
from tvm import relay  # noqa: E402
from tvm.contrib import graph_executor  # noqa: E402

from roller_tvm import auto_scheduler  # noqa: E402
from roller_tvm.auto_scheduler import measuring  # noqa: E402

from .workloads import PATIENT, QUICK, TARGET, product_task  # noqa: E402

#: Small sizes of rounds, so that a test needs few trials.
SMALL = {"round": 2}


def options(trials, log=None, module=auto_scheduler, **more):
    callbacks = [module.RecordToFile(str(log))] if log else []
    return module.TuningOptions(
        trials, builder=module.LocalBuilder(timeout=PATIENT), runner=module.LocalRunner(timeout=PATIENT, **QUICK),
        measure_callbacks=callbacks, verbose=more.pop("verbose", 0), **more)  # fmt: skip


def records(log):
    """Those that are there whole: a line is a comment until all of it is written."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [json.loads(line) for line in lines if not line.startswith("#")]


def keys(log):
    return [r["i"][0][0] for r in records(log)]


@pytest.fixture(scope="module")
def tasks():
    return [product_task(n=64), product_task(n=48)]


@pytest.mark.nightly
def test_rounds_go_to_the_best_plans_of_every_task(tasks, tmp_path, capfd):
    log = tmp_path / "records.json"
    table = [auto_scheduler.task_scheduler.PrintTableInfo(),
             auto_scheduler.task_scheduler.LogEstimatedLatency(str(tmp_path / "latency.tsv"))]  # fmt: skip
    tuner = auto_scheduler.TaskScheduler(tasks, [1, 3], callbacks=table)
    tuner.tune(options(4, log, verbose=1), search_policy_params=SMALL)
    found = keys(log)
    assert len(found) == tuner.ct == 4 and found[:4] == [tasks[0].workload_key] * 2 + [tasks[1].workload_key] * 2
    assert all(c < 1 for c in tuner.best_costs)
    assert tuner.cur_score == pytest.approx(tuner.best_costs[0] + 3 * tuner.best_costs[1])
    said = capfd.readouterr().out
    assert "[ Task Scheduler ]" in said and "Estimated total latency" in said
    assert "EstimatedLatency(ms)" in (tmp_path / "latency.tsv").read_text()


@pytest.fixture
def alike(monkeypatch):
    """A runner for which every State takes as long, and what it was given."""
    seen = []

    def measure(self, task, states):
        seen.extend(states)
        result = auto_scheduler.MeasureResult([0.001], 0, "", 0.1, 1.0)
        return [auto_scheduler.measure.MeasureInput(task, s) for s in states], [result] * len(states)

    monkeypatch.setattr(measuring.Means, "measure", measure)
    return seen


@pytest.mark.nightly
def test_many_trials_end_when_nothing_is_gained(tasks, tmp_path, alike):
    log = tmp_path / "records.json"
    tuner = auto_scheduler.TaskScheduler(tasks, strategy="round-robin", callbacks=[])
    tuner.tune(options(20000, log), search_policy_params=SMALL)
    assert len(alike) == len(records(log)) == 2 * 4 and tuner.ct == 8
    again = auto_scheduler.TaskScheduler(tasks, load_log_file=str(log), callbacks=[])
    assert list(again.best_costs) == [1e10, 1e10]
    again.tune(options(20000, log), search_policy_params=SMALL)
    assert len(alike) == 8 and list(again.best_costs) == [0.001, 0.001]


@pytest.mark.nightly
def test_tvms_own_scheduler_with_our_policies(tasks, tmp_path, alike):
    log = tmp_path / "records.json"
    theirs = [product_task(ansor, n=64), product_task(ansor, n=48)]
    tuner = ansor.TaskScheduler(theirs, callbacks=[])
    policies = [auto_scheduler.RollerPolicy(t, SMALL, verbose=0) for t in theirs]
    tuner.tune(options(1000, log, ansor), search_policy=policies)
    assert set(keys(log)) == {t.workload_key for t in tasks} and len(alike) == len(records(log)) == 8
    assert len({json.dumps(r["i"]) for r in records(log)}) == len(records(log))


@pytest.mark.nightly
def test_no_trials_plan_and_few_go_to_the_costliest(tasks, tmp_path):
    log = tmp_path / "records.json"
    tuner = auto_scheduler.TaskScheduler(tasks, [1, 1000], callbacks=[])
    tuner.tune(options(0, log))
    assert sorted(keys(log)) == sorted(t.workload_key for t in tasks) and all(r["r"][0][0] >= 1 for r in records(log))
    assert all(c < 1 for c in tuner.best_costs) and tuner.ct == 0
    log.unlink()
    tuner = auto_scheduler.TaskScheduler(tasks, [1, 1000], callbacks=[])
    tuner.tune(options(1, log))
    measured = [r for r in records(log) if r["r"][2] > 0]
    assert [r["i"][0][0] for r in measured] == [tasks[1].workload_key] and len(records(log)) == 3


@pytest.mark.nightly
def test_early_stopping_counts_trials_without_a_gain(tasks, alike):
    tasks[0].tune(options(40, early_stopping=3, num_measures_per_round=2))
    assert len(alike) == 4  # the first, then three that bring nothing
    alike.clear()
    tasks[0].tune(options(5, num_measures_per_round=2))
    assert len(alike) == 5


KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
from tests.auto_scheduler.test_scheduler import options, product_task
from roller_tvm import auto_scheduler
from pathlib import Path
tuner = auto_scheduler.TaskScheduler([product_task(n=64), product_task(n=48)], callbacks=[])
tuner.tune(options(1000, Path(sys.argv[1])), search_policy_params={"round": 1, "gain": 0.0})
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_a_killed_run_is_resumed(tasks, tmp_path):
    log = tmp_path / "records.json"
    root = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])}
    with subprocess.Popen([sys.executable, "-c", KILLED, str(log), root], env=env) as run:
        deadline = time.time() + 100
        while run.poll() is None and time.time() < deadline and not (log.exists() and log.read_text().count("\n") > 1):
            time.sleep(0.05)
        run.kill()
    before = log.read_text()
    whole = len(records(log))
    assert whole >= 2
    with log.open("a") as file:
        file.write(before.splitlines()[0][:40])
    tuner = auto_scheduler.TaskScheduler(tasks, load_log_file=str(log), callbacks=[])
    tuner.tune(options(2, log), search_policy_params={"round": 1})
    assert log.read_text().startswith(before) and len(records(log)) > whole
    assert len({json.dumps(r["i"]) for r in records(log)}) == len(records(log))


def network():
    rng = np.random.default_rng(0)
    x, w, v = relay.var("x", shape=(1, 16, 16, 8)), relay.var("w", shape=(3, 3, 8, 16)), relay.var("v", shape=(10, 16))
    y = relay.nn.relu(relay.nn.conv2d(x, w, (1, 1), (1, 1), channels=16, kernel_size=(3, 3), data_layout="NHWC",
                                      kernel_layout="HWIO"))  # fmt: skip
    y = relay.nn.dense(relay.nn.batch_flatten(relay.nn.global_avg_pool2d(y, layout="NHWC")), v)
    params = {"w": rng.standard_normal((3, 3, 8, 16)) / 8, "v": rng.standard_normal((10, 16))}
    mod = tvm.IRModule.from_expr(relay.Function([x, w, v], y))
    return mod, {k: tvm.nd.array(p.astype("float32")) for k, p in params.items()}


@pytest.mark.slow
@pytest.mark.nightly
def test_a_network_from_extraction_to_a_build(tmp_path):
    log = tmp_path / "records.json"
    mod, params = network()
    tasks, weights = auto_scheduler.extract_tasks(mod["main"], params, TARGET)
    simple, _ = auto_scheduler.extract_tasks(mod["main"], params, TARGET, include_simple_tasks=True)
    theirs, _ = ansor.extract_tasks(mod["main"], params, TARGET)
    assert [t.workload_key for t in tasks] == [t.workload_key for t in theirs] and len(simple) >= len(tasks)
    assert all(type(t) is auto_scheduler.SearchTask for t in tasks)
    tuner = auto_scheduler.TaskScheduler(tasks, weights, callbacks=[])
    tuner.tune(options(len(tasks) * 2, log))
    assert {t.workload_key for t in tasks} == set(keys(log)) and math.isfinite(tuner.cur_score)
    config = {"relay.backend.use_auto_scheduler": True}
    with auto_scheduler.ApplyHistoryBest(str(log)), tvm.transform.PassContext(opt_level=3, config=config):
        tuned = relay.build(mod, target=TARGET, params=params)
    with tvm.transform.PassContext(opt_level=3):
        untuned = relay.build(mod, target=TARGET, params=params)
    data = np.random.default_rng(1).standard_normal((1, 16, 16, 8)).astype("float32")
    answers = []
    for library in (tuned, untuned):
        module = graph_executor.GraphModule(library["default"](tvm.cpu()))
        module.run(x=data)
        answers.append(module.get_output(0).numpy())
    np.testing.assert_allclose(*answers, rtol=1e-4, atol=1e-4)
