"""The names of tvm.auto_scheduler, and what importing ours changes in TVM's own."""

import json
import os
import pickle
import subprocess
import sys

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import auto_scheduler as ansor  # noqa: E402

from roller_tvm import auto_scheduler  # noqa: E402

from .workloads import TARGET, product_task  # noqa: E402


def test_every_public_name_is_there():
    missing = {n for n in dir(ansor) if not n.startswith("__")} - set(dir(auto_scheduler))
    assert not missing
    for module in ("search_task", "task_scheduler", "search_policy", "measure", "relay_integration", "cost_model"):
        names = {n for n in dir(getattr(ansor, module)) if not n.startswith("__")}
        assert all(hasattr(getattr(auto_scheduler, module), n) for n in names), module


def test_vectors_stand_over_no_edge_where_a_users_builder_builds():
    """It is TVM's, which computes such vectors element by element."""
    policy = auto_scheduler.RollerPolicy(product_task(n=61), verbose=0)
    programs = [plan.plan.programs[-1] for plan in (candidate.plan for candidate in policy.queue.planned)]
    columns = [program.tile("register").extents[-2][1] for program in programs]
    assert programs and all(61 % n == 0 for n in columns)


def test_modules_can_be_imported_from():
    from roller_tvm.auto_scheduler.measure import LocalRunner

    from roller_tvm.auto_scheduler.search_task import SearchTask, register_task_input_buffer

    assert LocalRunner is ansor.LocalRunner is auto_scheduler.LocalRunner
    assert SearchTask is auto_scheduler.SearchTask
    assert register_task_input_buffer is ansor.search_task.register_task_input_buffer
    assert auto_scheduler.measure is ansor.measure


def test_importing_the_package_imports_no_tvm():
    code = "import sys, roller_tvm; assert 'tvm' not in sys.modules"
    path = os.pathsep.join([os.getcwd(), *sys.path])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})


def test_a_task_is_tvms_own():
    task = product_task()
    theirs = product_task(ansor)
    assert isinstance(task, ansor.SearchTask) and task.workload_key == theirs.workload_key
    again = pickle.loads(pickle.dumps(task))
    assert type(again) is auto_scheduler.SearchTask and again.workload_key == task.workload_key
    made = auto_scheduler.measure.MeasureInput(task, task.compute_dag.get_init_state())
    result = auto_scheduler.MeasureResult([1.0], 0, "", 0.5, 1.0)
    line = auto_scheduler.measure_record.dump_record_to_string(made, result)
    other = auto_scheduler.measure.MeasureInput(theirs, theirs.compute_dag.get_init_state())
    assert line == auto_scheduler.measure_record.dump_record_to_string(other, result)


def test_a_gpu_that_is_not_here_is_described_by_its_target():
    if tvm.cuda(0).exist:
        pytest.skip("there is a GPU here: TVM asks it")
    task = product_task(target="cuda -arch=sm_80")
    assert task.hardware_params.warp_size == 32 and task.hardware_params.max_threads_per_block == 1024


def test_what_tvms_own_tune_does_with_other_policies_is_unchanged(monkeypatch):
    """Only a policy with a Python `search` is asked itself."""
    asked = []
    monkeypatch.setattr(ansor.search_task._ffi_api, "AutoSchedule", lambda *a: asked.append(a), raising=False)
    # The default policy's cost model asks for xgboost, which this is not about.
    monkeypatch.setattr(ansor.search_task, "XGBModel", lambda **options: ansor.RandomModel())
    task, options = product_task(ansor), ansor.TuningOptions(0, verbose=0)
    policy = ansor.EmptyPolicy(task)
    task.tune(options, policy)
    assert asked == [(policy, options)]
    task.tune(options)  # Ansor's default policy
    assert type(asked[1][0]) is ansor.SketchPolicy
    ours = product_task()
    ours.tune(options, ansor.SketchPolicy(ours, verbose=0))
    assert type(asked[2][0]) is ansor.SketchPolicy


@pytest.mark.parametrize("params, part", [
    ({"plan": 3}, "no parameter 'plan'"), ({"fallback": "pray"}, "'fallback'"), ({"plans": 0}, "'plans'"),
])  # fmt: skip
def test_parameters_that_make_no_sense(params, part):
    from roller_tvm.errors import UsageError

    with pytest.raises(UsageError, match=part):
        auto_scheduler.RollerPolicy(product_task(), params)
    assert auto_scheduler.RollerPolicy(product_task(), {"eps_greedy": 0.1}).params.plans == 64  # Ansor's, no use here


def test_a_sketch_rule_is_refused_by_name():
    from roller_tvm.errors import UsageError

    rule = auto_scheduler.PreloadCustomSketchRule(lambda *a: 0, lambda *a: [], "mine")
    with pytest.raises(UsageError, match="no PreloadCustomSketchRule can be given to Roller"):
        auto_scheduler.RollerPolicy(product_task(), init_search_callbacks=[rule])


def test_half_a_line_ends_no_script(tmp_path):
    log = tmp_path / "records.json"
    task = product_task()
    made = auto_scheduler.measure.MeasureInput(task, task.compute_dag.get_init_state())
    auto_scheduler.save_records(str(log), [made], [auto_scheduler.MeasureResult([1.0], 0, "", 0.5, 1.0)])
    with log.open("a") as file:
        file.write('{"i": [["[\\"abc')
    with pytest.warns(UserWarning, match="only half there"), auto_scheduler.ApplyHistoryBest(str(log)) as context:
        assert context.query(tvm.target.Target(TARGET), task.workload_key, True, task.compute_dag, "") is not None
    auto_scheduler.RecordToFile(log)
    assert [json.loads(line)["v"] for line in log.read_text().splitlines()] == ["v0.6"]
