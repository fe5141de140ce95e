"""Roller's plans inside MetaSchedule: its task scheduler, with the user's builder and runner."""

import logging
import os
import sys
import tempfile
import types
import warnings
from pathlib import Path

import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")
from tvm.ir.utils import derived_object  # noqa: E402
from tvm.s_tir import meta_schedule as ms  # noqa: E402
from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder  # noqa: E402
from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerResult  # noqa: E402
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock  # noqa: E402
from tvm.support.tar import tar  # noqa: E402

from roller_tvm.errors import BadInput  # noqa: E402
from roller_tvm.relax import RollerSpace, RollerStrategy, components, tune_relax, tune_tir  # noqa: E402
from roller_tvm.tir.nodes import structurally_equal  # noqa: E402
from roller_tvm.tuning.checking import Workers  # noqa: E402
from roller_tvm.tuning.session import Limits  # noqa: E402

from . import modules as M  # noqa: E402


@derived_object
class Builder(PyBuilder):
    """Builds here: MetaSchedule's own takes half a minute of imports in a process of its own."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.built = folder, []

    def build(self, build_inputs):
        results = []
        for one in build_inputs:
            path = Path(tempfile.mkdtemp(dir=self.folder), "kernel.tar")  # MetaSchedule removes the folder
            tvm.compile(one.mod, one.target).export_library(str(path), fcompile=tar)
            self.built.append(one.mod)
            results.append(BuilderResult(str(path), None))
        return results


@derived_object
class Future(PyRunnerFuture):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def done(self):
        return True

    def result(self):
        return RunnerResult([self.seconds], None)


@derived_object
class Runner(PyRunner):
    """The later a plan comes, the better."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def run(self, runner_inputs):
        self.count += len(runner_inputs)
        return [Future(1.0 / (self.count - n)) for n in reversed(range(len(runner_inputs)))]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """MetaSchedule imports the tensor intrinsics of every GPU for any task: half a minute, nothing of it used here."""
    name = "tvm.s_tir.tensor_intrin"
    monkeypatch.setitem(sys.modules, name, sys.modules.get(name, types.ModuleType(name)))
    logging.getLogger("tvm.s_tir.meta_schedule").propagate = True  # pytest adds handlers of its own where it is not


def context_of(mod):
    return ms.TuneContext(mod, target=M.TARGET, task_name="matmul", space_generator=RollerSpace())


@pytest.fixture
def unchecked(monkeypatch):
    monkeypatch.setattr(components, "right_ones", lambda context, schedules: list(schedules))


def test_only_our_best_plans_are_measured_and_the_best_is_found(tmp_path, unchecked):
    builder, runner = Builder(tmp_path), Runner()
    database = ms.tune_tir(
        M.matmul(), M.TARGET, str(tmp_path), 4, num_trials_per_iter=3, builder=builder, runner=runner,
        cost_model="random", space=RollerSpace(), strategy=RollerStrategy(), num_tuning_cores=1,
    )  # fmt: skip
    assert runner.count == 4 and len(database) == 4
    mod = ms.tune_context._normalize_mod(M.matmul())
    best = database.query_schedule(mod, M.TARGET, "main").mod
    expected = context_of(mod).generate_design_space()[3].mod
    assert structurally_equal(best["main"].body, expected["main"].body), "the fourth, by this runner"


def test_with_relax_integration(tmp_path, unchecked):
    mod = M.network()
    database = ms.relax_integration.tune_relax(
        mod, {}, M.TARGET, str(tmp_path), 4, builder=Builder(tmp_path), runner=Runner(), num_trials_per_iter=2,
        cost_model="random", space=RollerSpace(), strategy=RollerStrategy(), task_scheduler="round-robin",
    )  # fmt: skip
    assert len(database) == 4
    with M.TARGET, database:
        applied = tvm.relax.transform.MetaScheduleApplyDatabase(enable_warning=True)(mod)
    funcs = [f for _, f in applied.functions_items() if type(f).__name__ == "PrimFunc"]
    assert all(f.attrs["tirx.is_scheduled"] for f in funcs)


@pytest.mark.nightly
def test_what_crashes_or_computes_something_else_never_reaches_the_runner(monkeypatch):
    monkeypatch.setattr(sys, "path", [os.getcwd(), *sys.path])
    mod = ms.tune_context._normalize_mod(M.matmul())
    context = context_of(mod)
    spaces = list(context.generate_design_space())[:6]
    workers = Workers("llvm", 1, "tests.line.faulty_worker", Limits(run_s=2.0))
    with workers.pool, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        monkeypatch.setattr(components, "_checkers", lambda threads: workers)
        kept = components.right_ones(context, spaces)
    assert kept == [spaces[0], spaces[4]]
    texts = " ".join(str(w.message) for w in told)
    assert "plan 1 of 'matmul' is left out: crash" in texts and "plan 3 of 'matmul' is left out: wrong answer" in texts


def test_right_ones_are_kept():
    mod = ms.tune_context._normalize_mod(M.matmul())
    context = context_of(mod)
    spaces = list(context.generate_design_space())[:3]
    assert components.right_ones(context, spaces) == spaces


def test_a_function_without_a_plan_leaves_the_others_alone(tmp_path, unchecked):
    already = M.matmul(8).with_attr("tirx.is_scheduled", True)
    mod = tvm.IRModule({"a": already, "b": M.matmul()})
    runner = Runner()
    with pytest.warns(UserWarning, match="TVM's own schedule stays: it is marked as scheduled"):
        database = ms.tune_tir(
            mod, M.TARGET, str(tmp_path), 2, builder=Builder(tmp_path), runner=runner, cost_model="random",
            space=RollerSpace(), strategy=RollerStrategy(), num_tuning_cores=1,
        )  # fmt: skip
    assert runner.count and not database.has_workload(ms.tune_context._normalize_mod(already))


def test_tune_tir_takes_a_builder_and_a_runner(tmp_path, unchecked):
    runner, mod = Runner(), M.network()
    folder = tmp_path / "records"
    database = tune_relax(mod, None, M.TARGET, folder, 5, builder=Builder(tmp_path), runner=runner, verbose=False)
    assert runner.count == 5 and len(database) == 5, "three for the one that is called twice"
    again = Runner()
    tune_relax(mod, None, M.TARGET, folder, 5, builder=Builder(tmp_path), runner=again, verbose=False)
    assert again.count == 0, "resumed"
    with pytest.raises(BadInput, match="0 plans"):
        tune_tir(M.matmul(), M.TARGET, tmp_path / "b", 0, runner=Runner(), verbose=False)


def test_arguments_without_effect_are_said_and_others_refused(tmp_path):
    with pytest.raises(BadInput, match="'space'"):
        tune_tir(M.matmul(), M.TARGET, tmp_path, 1, space="post-order-apply")
    with pytest.warns(UserWarning, match="cost_model, seed: without effect"):
        tune_tir(M.matmul(), M.TARGET, tmp_path, 0, cost_model="random", seed=1, verbose=False)


def test_runners_get_the_shapes_of_packed_weights(tmp_path, unchecked):
    mod = ms.tune_context._normalize_mod(M.matmul(n=32, m=64, k=48).with_attr("layout_free_buffers", [1]))
    shapes = []

    @derived_object
    class Looking(PyRunner):
        def run(self, runner_inputs):
            for one in runner_inputs:
                shapes.append([list(a.as_json()[2]) for a in one.args_info])
            return [Future(1.0) for _ in runner_inputs]

    builder = Builder(tmp_path)
    ms.tune_tir(
        mod, M.TARGET, str(tmp_path), 3, builder=builder, runner=Looking(), cost_model="random",
        space=RollerSpace(), strategy=RollerStrategy(), num_tuning_cores=1,
    )  # fmt: skip
    packed = 0
    for got, built in zip(shapes, builder.built, strict=True):
        wanted = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(built)["main"].params
        assert got == [[int(e) for e in p.shape] for p in wanted]
        packed += got[1] != [48, 64]
    assert packed


@pytest.mark.nightly
def test_over_rpc(tmp_path, unchecked):
    from tvm import rpc
    from tvm.rpc.tracker import Tracker

    tracker = Tracker("127.0.0.1", silent=True)
    server = rpc.Server("127.0.0.1", tracker_addr=("127.0.0.1", tracker.port), key="here", silent=True)
    try:
        runner = ms.runner.RPCRunner(
            ms.runner.RPCConfig("127.0.0.1", tracker.port, "here", session_timeout_sec=60),
            ms.runner.EvaluatorConfig(number=1, repeat=1, min_repeat_ms=1), max_workers=1,
        )  # fmt: skip
        database = tune_tir(
            M.matmul(), M.TARGET, tmp_path / "records", 2, builder=Builder(tmp_path), runner=runner, verbose=False
        )
        assert [len(r.run_secs) for r in database.get_all_tuning_records()] == [1, 1]
        assert all(0 < float(r.run_secs[0]) < 1 for r in database.get_all_tuning_records())
    finally:
        server.terminate()
        tracker.terminate()
