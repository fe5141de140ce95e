"""Tuning a small model from Relay to records, and what a user's plain TVM makes of them."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import relay  # noqa: E402

from roller_tvm.errors import BadInput, NothingTuned, RecordError, TargetError, UsageError  # noqa: E402
from roller_tvm.measure import table  # noqa: E402
from roller_tvm.measure.selection import select  # noqa: E402
from roller_tvm.relay import build, candidates, tune  # noqa: E402
from roller_tvm.relay.measure import Limits  # noqa: E402
from roller_tvm.relay.records import read_records  # noqa: E402

from .small_model import model, run  # noqa: E402

TARGET = "llvm -num-cores 2"
#: TVM's own kernel never stays for being faster: which one is, on operators this small, is chance.
OURS = Limits(margin=1.0)

PLAIN_TVM = """
import sys
import numpy as np
import tvm
from small_model import model, run
from tvm import auto_scheduler, relay

mod, params = model()
states = []
query = auto_scheduler.ApplyHistoryBest._query_inside
def spy(self, *args):
    found = query(self, *args)
    states.append(found is not None)
    return found
auto_scheduler.ApplyHistoryBest._query_inside = spy
with auto_scheduler.ApplyHistoryBest(sys.argv[1]):
    with tvm.transform.PassContext(opt_level=3, config={"relay.backend.use_auto_scheduler": True}):
        lib = relay.build(mod, "llvm -num-cores 2", params=params)
assert "roller_tvm" not in sys.modules
np.save(sys.argv[2], run(lib))
print(sum(states))
"""


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    log = tmp_path_factory.mktemp("tuned") / "records.json"
    mod, params = model()
    lines = []
    result = tune(mod, params, TARGET, log, trials=2, progress=lambda t, n: lines.append(table.row(t)), limits=OURS)
    return result, log, lines


@pytest.fixture(scope="module")
def expected():
    mod, params = model()
    return run(build(mod, params, TARGET, schedules="tvm"))


def test_every_task_has_a_record_or_a_reason(tuned):
    result, log, lines = tuned
    assert len(lines) == len(result.tasks) >= 5
    recorded = {r.workload_key for r in read_records(log)}
    for one in result.tasks:
        done = "measured" if one.task.weight else "planned"
        assert (one.status == done and one.task.key in recorded) or one.reason, one
    conv = next(t for t in result.tasks if "conv2d" in t.task.name)
    assert conv.status == "measured" and conv.checked and conv.seconds > 0 and conv.gflops > 0


def test_the_summary_names_what_matters(tuned):
    result, log, _ = tuned
    text = str(result)
    assert "conv2d" in text and "tasks:" in text and str(log) in text and f"{result.threads} threads" in text
    data = json.loads(json.dumps(table.to_json(result)))
    assert data["tasks"][0]["status"] in ("measured", "fallback")


def test_tvms_own_kernel_is_measured_beside_ours_and_stays_where_it_is_faster(tmp_path, monkeypatch):
    real = candidates.make_candidates

    def slow(*args):
        found = real(*args)
        state = args[0].search_task.compute_dag.get_init_state()  # loops as written, nothing parallel
        found.states = [(state, 0)]
        return found

    monkeypatch.setattr("roller_tvm.relay.tuning.make_candidates", slow)
    x, w = relay.var("x", shape=(1, 32, 28, 28)), relay.var("w", shape=(32, 32, 3, 3))
    y = relay.nn.conv2d(x, w, channels=32, kernel_size=(3, 3), padding=(1, 1))
    mod = tvm.IRModule.from_expr(relay.Function([x, w], y))
    params = {"w": tvm.nd.array(np.ones((32, 32, 3, 3), "float32"))}
    log = tmp_path / "r.json"
    result = tune(mod, params, TARGET, log, trials=1)
    conv = next(t for t in result.tasks if "conv2d" in t.task.name)
    assert conv.status == "fallback" and "it is faster" in conv.reason and conv.default_s == conv.seconds
    assert conv.task.key not in {r.workload_key for r in read_records(log)}
    again = tune(mod, params, TARGET, log, trials=1)
    assert next(t for t in again.tasks if "conv2d" in t.task.name).reason == conv.reason


@pytest.mark.nightly
def test_a_plain_tvm_in_a_fresh_process_gets_our_kernels(tuned, expected, tmp_path):
    result, log, _ = tuned
    code = tmp_path / "plain.py"
    code.write_text(PLAIN_TVM)
    here = os.path.dirname(__file__)
    paths = [here, *(p for p in sys.path if p and os.path.abspath(p) != os.getcwd())]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(code), str(log), str(tmp_path / "out.npy")]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) >= sum(t.status == "measured" for t in result.tasks)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=1e-4, atol=1e-5)


def test_our_build_gives_the_same_and_survives_a_half_line(tuned, expected, tmp_path):
    log = tmp_path / "cut.json"
    log.write_text(tuned[1].read_text() + '{"i": [["[\\"abc')
    mod, params = model()
    with pytest.warns(UserWarning, match="only half there"):
        lib = build(mod, params, TARGET, log)
    np.testing.assert_allclose(run(lib), expected, rtol=1e-4, atol=1e-5)


def test_tuning_again_resumes(tuned):
    result, log, _ = tuned
    before = log.read_text()
    mod, params = model()
    again = tune(mod, params, TARGET, log, trials=2)
    assert [t.status for t in again.tasks if t.status != "fallback"] == ["resumed"] * sum(
        t.status in ("measured", "planned") for t in result.tasks
    )
    assert log.read_text() == before


def test_zero_trials_plan_check_and_never_beat_a_measurement(tmp_path):
    mod, params = model()
    log = tmp_path / "r.json"
    result = tune(mod, params, TARGET, log, trials=0, tasks=[0, 1])
    done = [t for t in result.tasks if t.status == "planned"]
    assert done and all(t.checked and not math.isnan(t.predicted_s) for t in done)
    assert all(r.note.measured_s is None and r.cost >= 1 for r in read_records(log))
    more = tune(mod, params, TARGET, log, trials=1, tasks=[0, 1])
    assert {t.status for t in more.tasks} <= {"measured", "fallback"}


@pytest.mark.nightly
def test_wrong_and_crashing_candidates_do_not_stop_tuning(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [os.getcwd(), *sys.path])
    mod, params = model()
    limits = replace(OURS, run_s=1.0)
    log = tmp_path / "r.json"
    result = tune(mod, params, TARGET, log, 4, tasks=[2], limits=limits, worker="tests.relay.faulty_worker")
    assert {"crash", "run timeout", "wrong answer"} <= set(result.failures)
    assert any(t.status == "measured" for t in result.tasks)
    assert "wrong answer" in str(result)


def test_all_failing_is_loud(tmp_path, monkeypatch):
    def nothing(*args, **kwargs):
        raise RuntimeError("no rule fits")

    monkeypatch.setattr("roller_tvm.planner.construct", nothing)
    mod, params = model()
    told = "none of 1 tasks.*planner error: RuntimeError: no rule fits"
    with pytest.raises(NothingTuned, match=told) as caught:
        tune(mod, params, TARGET, tmp_path / "r.json", trials=1, tasks=[0])
    assert caught.value.exit_code == 1


def test_ctrl_c_leaves_the_records_of_finished_tasks(tmp_path):
    mod, params = model()
    log = tmp_path / "r.json"

    def interrupt(task, total):
        if task.status == "measured":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(mod, params, TARGET, log, trials=1, progress=interrupt)
    assert len(read_records(log)) == 1


@pytest.mark.parametrize("target, part", [
    ("cuda", "needs its architecture"), ("abacus -beads=7", "TVM does not know it"),
])  # fmt: skip
def test_targets_that_say_too_little(target, part):
    mod, params = model()
    with pytest.raises(TargetError, match=part) as caught:
        tune(mod, params, target)
    assert "sm_90" in caught.value.remedy


def test_bad_arguments_and_files(tmp_path):
    mod, params = model()
    with pytest.raises(BadInput, match="'trials'"):
        tune(mod, params, TARGET, trials=-1)
    (tmp_path / "r.json").write_text("nonsense\n")
    with pytest.raises(RecordError, match="r.json:1"):
        tune(mod, params, TARGET, tmp_path / "r.json")
    with pytest.raises(BadInput, match="no such record file"):
        build(mod, params, TARGET, tmp_path / "absent.json")
    x = relay.var("x", shape=(relay.Any(), 4))
    with pytest.raises(BadInput, match=r"'x' has a dynamic shape \(\?, 4\)"):
        tune(tvm.IRModule.from_expr(relay.Function([x], relay.nn.relu(x))), None, TARGET)


def test_what_tvm_makes_no_task_of_is_named():
    x = relay.var("x", shape=(1, 4, 8, 8))
    y = relay.concatenate([x, relay.sqrt(x)], axis=1)
    result = tune(tvm.IRModule.from_expr(relay.Function([x], relay.nn.max_pool2d(y, (2, 2)))), None, TARGET, trials=1)
    assert any("concatenate" in note for note in result.notes), result.notes


@pytest.mark.parametrize("text, part", [("9", "no task 9"), ("x", "not a task number"), ("1-", "not a task")])
def test_selections_that_make_no_sense(text, part):
    with pytest.raises(UsageError, match=part):
        select(text, 3)


def test_cuda_without_a_device_is_planned_and_built(tmp_path):
    x, w = relay.var("x", shape=(64, 32)), relay.var("w", shape=(48, 32))
    mod = tvm.IRModule.from_expr(relay.Function([x, w], relay.nn.relu(relay.nn.dense(x, w))))
    result = tune(mod, None, "cuda -arch=sm_80", tmp_path / "r.json", trials=2)
    if "no cuda device here" not in " ".join(result.notes):
        pytest.skip("there is a GPU here")
    assert [t.status for t in result.tasks] == ["planned"] and not result.tasks[0].checked
