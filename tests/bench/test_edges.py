"""The contract of an edge, which both lines pass: operators become tasks, tuners have kernels, kernels are timed."""

import json
from importlib import import_module

import pytest

pytestmark = pytest.mark.te
pytest.importorskip("tvm")

from roller_bench import whole  # noqa: E402
from roller_tvm.errors import BadInput  # noqa: E402
from roller_tvm.tvm_env import line  # noqa: E402

from ..relay.onnx_models import convolution  # noqa: E402
from .conftest import TARGET  # noqa: E402

#: Tuners that measure; MetaSchedule, which sets up its logging once a process, has a test of its own.
MEASURING = {"relay": ["autotvm", "roller"]}.get(line(), ["roller"])


def test_operators_become_tasks(jobs):
    assert all(not p["reason"] and p["flops"] > 0 and p["io_bytes"] > 0 for p in jobs.prepared.values())


@pytest.mark.one_line("relax")
@pytest.mark.slow
def test_roller_and_untuned_are_built_checked_and_timed(jobs):
    found = [jobs.tune("dense", "roller", 1), jobs.tune("dense", "untuned", 0)]
    assert [f["status"] for f in found] == ["ok", "ok"]
    assert found[0]["seconds"] > 0 and found[0]["tiles"].startswith("cpu.")
    assert [f["reason"] for f in found] == [jobs.edge.EDGE.built, ""]  # a peer's is built as TVM does, and that is told
    assert jobs.comes_again("dense", "roller", 1, found[0])
    assert jobs.comes_again("dense", "untuned", 0, found[1])
    rounds = jobs.edge.time([str(jobs.folder / f["kernel"]) for f in found], TARGET, 2)
    assert [len(kernel) for kernel in rounds] == [2, 2] and all(s > 0 for kernel in rounds for s in kernel)
    assert jobs.tune("norm", "roller", 1)["status"] == "ok"


@pytest.mark.nightly
def test_tvms_own_kernel_stays_where_it_is_faster(jobs, monkeypatch):
    from roller_tvm.tuning.measurer import Measurer
    from roller_tvm.tuning.session import Outcome, TaskResult

    given = []

    def measure(self, task, schedules, **more):
        given.append(more)
        return TaskResult([Outcome("ok", 2e-3, (2e-3,)) for _ in schedules], None, Outcome("ok", 1e-3), True)

    monkeypatch.setattr(Measurer, "measure", measure)
    found = jobs.tune("dense", "roller", 2)
    assert found["status"] == "ok" and "own kernel stays" in found["reason"] and found["claimed_s"] == 1e-3
    assert line() == "relax" or given[0]["default"]
    assert jobs.comes_again("dense", "roller", 2, found)
    assert found["kernel"] != jobs.tune("dense", "untuned", 0)["kernel"]  # built as Roller builds


@pytest.mark.nightly
@pytest.mark.parametrize("tuner", MEASURING)
def test_what_is_measured_is_claimed_and_comes_again(jobs, tuner):
    found = jobs.tune("dense", tuner, 4)
    assert found["status"] == "ok" and found["trials"] and found["claimed_s"] > 0 and found["schedule"]
    assert jobs.comes_again("dense", tuner, 4, found)


@pytest.mark.nightly
def test_the_search_over_rollers_plans(jobs):
    pytest.importorskip("xgboost")
    found = jobs.tune("dense", "xgboost", 8)
    assert found.get("status", "ok") == "ok" and found["claimed_s"] > 0 and found["tiles"].startswith("cpu.")
    assert jobs.comes_again("dense", "xgboost", 8, found)


@pytest.mark.nightly
def test_what_was_learned_of_others_ranks(jobs):
    pytest.importorskip("xgboost")
    jobs.tune("dense", "xgboost", 8)
    (measured,) = (jobs.folder / "work").glob("*.xgboost/measured.8.json")
    with pytest.raises(BadInput, match="nothing to learn from"):  # but of the operator itself
        jobs.tune("dense", "ranked", 0)
    other = json.loads(measured.read_text()) | {"operator": "dense m=8 n=32 k=16"}
    (measured.parent / "measured.of_another.json").write_text(json.dumps(other))
    found = jobs.tune("dense", "ranked", 0)
    assert found.get("status", "ok") == "ok" and found["trials"] == 0 and found["tiles"].startswith("cpu.")


@pytest.mark.one_line("relax")
@pytest.mark.slow
def test_a_whole_model(tmp_path):
    pytest.importorskip("onnxruntime")
    (prepared,) = whole.prepare([str(convolution(tmp_path / "c.onnx"))], None, str(tmp_path))
    assert not prepared["reason"]
    task, edge = str(tmp_path / prepared["file"]), f"roller_bench.{line()}"
    tuners = (("roller", 1), ("untuned", 0))
    found = [whole.tune(task, prepared["case"], *tuner, TARGET, str(tmp_path), edge) for tuner in tuners]
    assert [f["status"] for f in found] == ["ok", "ok"]
    assert all(0 < f["error"] < 1e-4 and f["build_s"] > 0 for f in found)  # the reference is onnxruntime's


def test_the_tasks_of_a_model(tmp_path):
    pytest.importorskip("onnx")
    edge, file = import_module(f"roller_bench.{line()}"), convolution(tmp_path / "c.onnx")
    found = edge.tasks(str(file), None, None, None, TARGET, str(tmp_path))
    assert any(p["flops"] > 0 for p in found)
    assert all(p["io_bytes"] > 0 and (tmp_path / p["file"]).exists() for p in found)
    assert {p["case"]["group"] for p in found} == {"c"} and all(p["case"]["task"] for p in found)
