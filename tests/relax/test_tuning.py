"""tune_tir and tune_relax: what is measured, recorded, kept and said."""

import json
import math
import os
import signal

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")
from tvm import relax  # noqa: E402

from roller_tvm.errors import BadInput  # noqa: E402
from roller_tvm.relax import build, pipeline, prepare, tune, tune_relax, tune_tir, tuning  # noqa: E402
from roller_tvm.relax.database import REPORT  # noqa: E402
from roller_tvm.relax.record_lines import check_replay  # noqa: E402
from roller_tvm.relax.reference import default_module, default_schedule  # noqa: E402
from roller_tvm.relax.tasks import Task, extract_tasks, normalized, without_names  # noqa: E402
from roller_tvm.tir.nodes import structurally_equal  # noqa: E402
from roller_tvm.tuning.selection import shares  # noqa: E402
from roller_tvm.tuning.session import Limits  # noqa: E402

from . import modules as M  # noqa: E402

#: TVM's own kernel never stays for being faster: which one is, on operators this small, is chance.
OURS = Limits(margin=1.0)
GPU = tvm.target.Target(
    {"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152,
     "thread_warp_size": 32}
).with_host(M.TARGET)  # fmt: skip


def test_the_best_is_recorded_and_a_second_run_resumes(tmp_path, monkeypatch, capsys):
    mod = M.network()
    monkeypatch.setattr(tuning, "Limits", lambda: OURS)
    database = tune_relax(mod, None, M.TARGET, str(tmp_path / "new" / "records"), 1000, 2)
    said = capsys.readouterr().out
    assert "2 measured" in said and "2/2" in said and "GFLOPS" in said
    assert len(database) == 2
    assert all(0 < float(r.run_secs[0]) < 0.1 for r in database.get_all_tuning_records())
    x = np.random.default_rng(5).standard_normal((16, 24)).astype("float32")
    with M.TARGET, database:
        applied = relax.transform.MetaScheduleApplyDatabase()(mod)
    np.testing.assert_allclose(M.answer(applied, x), M.answer(mod, x), rtol=1e-4, atol=1e-4)
    assert "2 measured" in (tmp_path / "new" / "records" / REPORT).read_text()
    _, again = tune(mod, target=M.TARGET, work_dir=tmp_path / "new" / "records", max_trials_per_task=2)
    assert [t.status for t in again.tasks] == ["resumed"] * 2
    assert all(not math.isnan(t.default_s) for t in again.tasks)


@pytest.mark.nightly
def test_where_tvm_s_own_kernel_is_faster_it_stays_and_it_is_said(tmp_path):
    always = Limits(margin=-1e9)  # TVM's own wins, however slow
    mod = M.network()
    database, result = tune(mod, target=M.TARGET, work_dir=tmp_path, max_trials_global=2, tasks=[0], limits=always)
    (task,) = result.tasks
    assert task.kept and "it is faster" in str(result)
    (record,) = database.get_all_tuning_records()
    assert float(record.run_secs[0]) == pytest.approx(task.default_s)
    _, again = tune(mod, target=M.TARGET, work_dir=tmp_path, max_trials_global=2, tasks=[0])
    assert again.tasks[0].kept and not again.tasks[0].outcomes, "and not measured again"
    for given in (database, tmp_path):
        scheduled, report = pipeline.schedule(mod, M.TARGET, given)
        assert [n.name for n in report.left] == [task.task.name] and len(report.scheduled) == 1
        own = next(f for v, f in scheduled.functions_items() if v.name_hint == task.task.name)
        assert own.script().count("T.vectorized") == own.script().count("T.parallel") == 0
    x = np.random.default_rng(5).standard_normal((16, 24)).astype("float32")
    np.testing.assert_allclose(M.answer(scheduled, x), M.answer(mod, x), rtol=1e-4, atol=1e-4)


def test_inputs_without_an_axis_stay_without_one(tmp_path):
    limit, x = tvm.te.placeholder((), name="limit"), tvm.te.placeholder((64, 48), name="x")
    y = tvm.te.compute((64, 48), lambda i, j: tvm.te.min(x[i, j], limit()), name="y")
    func = tvm.te.create_prim_func([x, limit, y], index_dtype_override="int64")
    _, result = tune(func, target=M.TARGET, work_dir=tmp_path, max_trials_per_task=1, limits=OURS)
    assert [t.status for t in result.tasks] == ["measured"], str(result)


def test_what_tvm_has_for_a_gpu_can_be_recorded_too():
    mod = normalized(M.matmul(64, 64, 64))
    schedule = default_schedule(mod, GPU)
    check_replay(mod, schedule, GPU, "matmul")
    assert "threadIdx.x" in schedule.mod["main"].script()
    assert structurally_equal(
        without_names(schedule.mod["main"]),
        without_names(default_module(mod, GPU)["main"].without_attr("tirx.is_scheduled")),
    )


def test_a_module_that_is_not_lowered_says_what_to_run(tmp_path):
    with pytest.raises(BadInput, match="relax.matmul") as caught:
        tune_relax(M.unfused(), None, M.TARGET, tmp_path, 1)
    assert "LegalizeOps" in caught.value.remedy and "FuseTIR" in caught.value.remedy
    with pytest.raises(BadInput, match="an IRModule"):
        tune_tir(3, M.TARGET, tmp_path, 1)
    with pytest.raises(BadInput, match="max_trials_global"):
        tune_tir(M.matmul(), M.TARGET, tmp_path, -1)


@pytest.mark.nightly
def test_scheduled_functions_are_left_alone_and_op_names_select(tmp_path):
    mod = tvm.IRModule({"matmul_done": M.matmul(8).with_attr("tirx.is_scheduled", True), "matmul": M.matmul()})
    _, result = tune(mod, target=M.TARGET, work_dir=tmp_path, max_trials_global=0)
    assert {t.task.name: t.status for t in result.tasks} == {"matmul_done": "fallback", "matmul": "planned"}
    assert "marked as scheduled" in str(result)
    _, result = tune(mod, target=M.TARGET, max_trials_global=0, database="memory", op_names=["_done", "nothing"])
    assert [t.task.name for t in result.tasks] == ["matmul_done"]


def test_open_extents_leave_a_function_to_tvm_with_the_reason(tmp_path):
    builder, n = relax.BlockBuilder(), tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 24), "float32"))
    weight = relax.const(np.ones((24, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.matmul(x, weight))
        builder.emit_func_output(out)
    mod = builder.get()
    with M.TARGET:
        mod = tvm.transform.Sequential(M.FUSE)(mod)
    mod["static"] = M.matmul()
    _, result = tune(mod, target=M.TARGET, work_dir=tmp_path, max_trials_global=0)
    assert {t.task.name: t.status for t in result.tasks} == {"matmul": "fallback", "static": "planned"}
    assert next(t.reason for t in result.tasks if t.task.name == "matmul")


def test_weights_are_told_from_activations():
    by_name = {t.name: t for t in extract_tasks(M.network())}
    assert sorted(t.weight for t in by_name.values()) == [1, 2]
    assert all(0 not in t.constants and 1 in t.constants for t in by_name.values()), "x is no constant, weights are"
    assert all(t.constants == () for t in extract_tasks(M.matmul())), "nothing is known of a function alone"


@pytest.mark.parametrize("total, expected", [(None, [4, 4, 4]), (100, [4, 4, 4]), (7, [2, 3, 2]), (2, [1, 1, 0])])
def test_trials_are_spread_over_the_tasks(total, expected):
    tasks = [Task(n, "t", weight, None, ()) for n, weight in enumerate((2, 9, 1))]
    assert shares(tasks, total, 4) == expected


def test_a_prediction_is_recorded_in_nanoseconds(tmp_path):
    database, result = tune(M.matmul(64, 64, 64), target=GPU, work_dir=tmp_path, max_trials_global=8)
    (record,) = database.get_all_tuning_records()
    assert result.tasks[0].status == "planned"
    assert float(record.run_secs[0]) == pytest.approx(result.tasks[0].predicted_s * 1e9, rel=1e-5)


def test_ctrl_c_keeps_what_was_recorded(tmp_path):
    def stop(tuned, count):
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        tune(M.network(), target=M.TARGET, work_dir=tmp_path, max_trials_global=0, progress=stop)
    _, result = tune(M.network(), target=M.TARGET, work_dir=tmp_path, max_trials_global=0)
    assert [t.status for t in result.tasks] == ["resumed", "planned"]
    notes = (tmp_path / "roller_tvm.jsonl").read_text().splitlines()
    assert len([line for line in notes if '"sum"' not in line]) == 3
    assert json.loads((tmp_path / "roller_tvm.jsonl").read_text().splitlines()[0])["target"] == str(M.TARGET)


def convolution():
    """relu(conv2d(x, w) + b), NCHW, as importers make it."""
    builder, rng = relax.BlockBuilder(), np.random.default_rng(2)
    x = relax.Var("x", relax.TensorType((1, 16, 10, 10), "float32"))
    weights, bias = (relax.const(rng.standard_normal(s).astype("float32")) for s in ((32, 16, 3, 3), (1, 32, 1, 1)))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = relax.op.nn.relu(relax.op.add(relax.op.nn.conv2d(x, weights, padding=1), bias))
            out = builder.emit_output(builder.emit(made))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.nightly
def test_packed_weights_are_timed_packed_checked_and_folded_by_the_pipeline(tmp_path):
    mod = convolution()
    prepared = prepare(mod, M.TARGET)
    database, result = tune(
        prepared, target=M.TARGET, work_dir=tmp_path, max_trials_per_task=2, op_names=["conv2d"], limits=OURS
    )
    (task,) = result.tasks
    assert task.status == "measured" and task.checked, str(result)
    assert any("layout_rewrite_preproc" in str(r.trace) for r in database.get_all_tuning_records())
    x = np.random.default_rng(5).standard_normal((1, 16, 10, 10)).astype("float32")
    machine = relax.VirtualMachine(build(mod, M.TARGET, database=tmp_path), tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, M.answer(mod, x), rtol=1e-4, atol=1e-4)
