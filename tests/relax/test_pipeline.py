"""The pipeline "roller": builds what TVM's own pipeline builds, scheduled; says what to run first; takes records."""

import subprocess
import sys
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

import roller_tvm.relax  # noqa: E402, F401
from roller_tvm.errors import BadInput, RecordError  # noqa: E402
from roller_tvm.relax import ScheduleWithRoller  # noqa: E402
from roller_tvm.relax.lowered import NotFused, require_lowered  # noqa: E402
from roller_tvm.relax.own_memory import OWN_MEMORY  # noqa: E402
from roller_tvm.relax.pipeline import build, prepare, schedule  # noqa: E402
from roller_tvm.relax.rewrites import MARKS  # noqa: E402
from roller_tvm.relax.tasks import extract_tasks  # noqa: E402
from roller_tvm.relax.tuning import tune  # noqa: E402

from ..sampling import covering, sampled  # noqa: E402
from . import modules  # noqa: E402
from .networks import LLVM, classifier, default, module, run, values  # noqa: E402

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}).with_host("llvm")


def prim_funcs(mod):
    """PrimFuncs by name, without the numbers that passes give."""
    return {bare(v.name_hint): f for v, f in mod.functions_items() if type(f).__name__ == "PrimFunc"}


def bare(name):
    return str(name).rstrip("0123456789")


def with_matmul(mod, func):
    """The module with another matmul."""
    (var,) = (v for v in mod.get_global_vars() if bare(v.name_hint) == "matmul")
    changed = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    changed.update_func(var, func)
    return changed


@pytest.mark.parametrize("way", sampled(["named", "build", "in stages", "target in scope"], 2))
def test_computes_what_the_default_pipeline_computes(way):
    mod, x, target = classifier(2), values(2, 3, 12, 12), tvm.target.Target(LLVM)
    if way == "named":
        executable = tvm.compile(mod, target, relax_pipeline=relax.get_pipeline("roller"))
    elif way == "build":
        executable = build(mod, LLVM)
    elif way == "in stages":
        executable = build(prepare(mod, LLVM), LLVM)
    else:
        with target:
            executable = tvm.compile(mod, target, relax_pipeline=relax.get_pipeline("roller", top=1))
    np.testing.assert_allclose(run(executable, x)[0], default(mod, x)[0], rtol=1e-4, atol=1e-5)


def test_everything_of_a_small_network_is_scheduled():
    mod = classifier()
    prepared = prepare(mod, LLVM)
    # Whether a blocked layout pays is this machine's model's to say.
    plain = sorted(name.replace("_blocked", "") for name in prim_funcs(prepared))
    assert plain == ["fused_conv2d_add_relu", "matmul", "mean"]
    scheduled, report = schedule(prepared, LLVM)
    assert [bare(n.name) for n in report.scheduled] == sorted(prim_funcs(prepared)), report
    assert all(f.attrs["tirx.is_scheduled"] for f in prim_funcs(scheduled).values())


@pytest.mark.parametrize("first, second", sampled([("tvm", "roller_tvm.relax"), ("roller_tvm.relax", "tvm")], 2))
def test_the_name_is_known_whichever_is_imported_first(first, second):
    code = f"import {first}, {second}; from tvm import relax; relax.get_pipeline('roller', top=2)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          cwd=Path(__file__).resolve().parents[2])  # fmt: skip
    assert done.returncode == 0, done.stderr[-500:]


def test_views_stay_views():
    def body(builder, x):
        y = builder.emit(relax.op.reshape(x, (6, 4)))
        return builder.emit(relax.op.matmul(y, relax.const(values(4, 3))))

    mod = module(body, (2, 3, 4))
    assert sorted(prim_funcs(prepare(mod, LLVM))) == ["matmul"]
    x = values(2, 3, 4)
    np.testing.assert_allclose(run(build(mod, LLVM), x)[0], default(mod, x)[0], rtol=1e-5, atol=1e-6)


def mean_of_rows(builder, x):
    mean = builder.emit(relax.op.mean(x, axis=[-1], keepdims=True))
    return builder.emit(relax.op.subtract(x, mean))


def pooled(builder, x):
    return builder.emit(relax.op.mean(x, axis=[2, 3], keepdims=True))


def soft(builder, x):
    return builder.emit(relax.op.nn.softmax(x, axis=2))


@pytest.mark.parametrize(
    ("body", "shape"), [(mean_of_rows, (1, 128, 768)), (pooled, (1, 96, 40, 40)), (soft, (1, 40, 6625))]
)
def test_reductions_in_lanes(body, shape):
    """A reduction split in lanes and computed inside another nest, whose blocks have their axes in another order."""
    mod, x = module(body, shape), values(*shape, high=2.0)
    prepared = prepare(mod, LLVM)
    scheduled, report = schedule(prepared, LLVM)
    assert not report.left, report
    np.testing.assert_allclose(run(build(prepared, LLVM), x)[0], default(mod, x)[0], rtol=1e-4, atol=1e-5)


def test_weights_given_by_name():
    def body(builder, x, w):
        return builder.emit(relax.op.matmul(x, w))

    weight, x = values(4, 3), values(2, 4)
    executable = build(module(body, (2, 4), (4, 3)), LLVM, params={"x1": weight})
    np.testing.assert_allclose(run(executable, x)[0], x @ weight, rtol=1e-5)


@pytest.mark.parametrize(("batch", "arch"), covering([1, None], ["sm_80", "sm_90"]))
def test_cuda_without_a_gpu(arch, batch):
    mod = classifier(batch or tvm.tirx.Var("n", "int64"))
    executable = build(mod, {"kind": "cuda", "arch": arch}, buckets=None if batch else [4])
    sources, modules = [], [executable.mod]
    while modules:
        own = modules.pop()
        modules += list(own.imports)
        sources += [own.inspect_source()] if own.kind == "cuda" else []
    assert sources and all("__global__" in s for s in sources)


def test_products_of_float32_on_tensor_cores_where_that_is_asked_for():
    def body(builder, x):
        return builder.emit(relax.op.matmul(x, relax.const(values(256, 256))))

    mod = module(body, (256, 256))
    found = {}
    for tf32 in (False, True):
        _, report = schedule(prepare(mod, CUDA), CUDA, tf32=tf32)
        (found[tf32],) = (n.recipe for n in report.scheduled)
    assert "gpu.tensor" not in found[False] and found[True] == "gpu.tensor"


class TestWhatToRunFirst:
    def test_an_imported_module(self):
        with pytest.raises(BadInput) as error:
            schedule(classifier(), LLVM)
        assert "is not legalized: it calls relax.nn.conv2d (1x)" in error.value.what
        assert "FuseTIR" in error.value.remedy

    def test_a_module_fused_half(self):
        passes = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps()]
        with tvm.target.Target(LLVM):
            half = tvm.transform.Sequential([relax.transform.DecomposeOpsForInference(), *passes])(classifier())
        with pytest.raises(BadInput, match="fused half"):
            require_lowered(half)
        with tvm.target.Target(LLVM):
            require_lowered(relax.transform.FuseTIR()(half))

    @pytest.mark.parametrize("annotated", [True, False])
    def test_a_module_that_is_legalized_but_not_fused(self, annotated):
        passes = [relax.transform.DecomposeOpsForInference(), relax.transform.LegalizeOps()]
        passes += [relax.transform.AnnotateTIROpPattern()] if annotated else []
        with tvm.target.Target(LLVM):
            legal = tvm.transform.Sequential(passes)(classifier())
        with pytest.warns(NotFused, match=r"conv2d \+ .* Run AnnotateTIROpPattern, FuseOps and FuseTIR first"):
            ScheduleWithRoller(LLVM)(legal)
        with pytest.warns(NotFused, match="prepare"):
            extract_tasks(legal)

    def test_a_fused_module_is_not_warned_of(self):
        for fused in (prepare(classifier(), LLVM), modules.network()):
            with warnings.catch_warnings():
                warnings.simplefilter("error", NotFused)
                require_lowered(fused)
                require_lowered(relax.transform.AnnotateTIROpPattern()(fused))

    def test_no_relax_function(self):
        only = prim_funcs(prepare(classifier(), LLVM))["matmul"]
        with pytest.raises(BadInput, match="has no Relax function"):
            prepare(tvm.IRModule({"matmul": only}), LLVM)
        with pytest.raises(BadInput, match="has no Relax function"):
            build(only, LLVM)

    def test_prepared_twice_is_prepared_once(self):
        once = prepare(classifier(), LLVM)
        assert prepare(once, LLVM) is once
        with tvm.target.Target(LLVM):
            require_lowered(once)
        with pytest.raises(BadInput, match="prepared for llvm, not for cuda"):
            prepare(once, CUDA)
        with pytest.raises(BadInput, match="buckets"):
            build(once, LLVM, buckets=(1, 8))

    def test_a_kernel_in_bfloat16_that_tvm_cannot_build_gives_way_to_another(self):
        shape = relax.TensorType((8, 16), "bfloat16"), relax.TensorType((16, 32), "bfloat16")
        params = [relax.Var(name, ty) for name, ty in zip("xw", shape, strict=True)]
        builder = relax.BlockBuilder()
        with builder.function("main", params):
            builder.emit_func_output(builder.emit(relax.op.matmul(*params)))
        executable = build(builder.finalize(), LLVM)
        x, w = values(8, 16), values(16, 32)
        found = run(executable, *(a.astype(ml_dtypes.bfloat16) for a in (x, w)))[0]
        np.testing.assert_allclose(found.astype("float32"), x @ w, rtol=0.1, atol=0.1)


def test_a_normalisation_of_what_is_put_side_by_side_divides_nothing():
    """As in a DenseNet: no product is before it that could take its scale."""
    parts = [relax.const(values(6, low=0.5, high=1.5)) for _ in range(4)]

    def body(builder, x, y):
        both = builder.emit(relax.op.concat([x, y], 1))
        norm = builder.emit(relax.op.nn.batch_norm(both, *parts, axis=1, training=False))
        return builder.emit(relax.op.nn.relu(builder.emit(relax.TupleGetItem(norm, 0))))

    mod = module(body, (1, 2, 4, 4), (1, 4, 4, 4))
    (name,) = prim_funcs(prepare(mod, LLVM))
    assert "multiply" in name and "divide" not in name
    given = values(1, 2, 4, 4), values(1, 4, 4, 4)
    np.testing.assert_allclose(run(build(mod, LLVM), *given)[0], default(mod, *given)[0], rtol=1e-5, atol=1e-6)


class TestRecords:
    def test_a_function_already_scheduled_is_left_alone(self):
        prepared = prepare(classifier(), LLVM)
        by_hand = tvm.s_tir.Schedule(prim_funcs(prepared)["matmul"])
        block = by_hand.get_sblock("matmul")
        by_hand.split(by_hand.get_loops(block)[1], [None, 5])
        prepared = with_matmul(prepared, by_hand.mod["main"])
        scheduled, report = schedule(prepared, LLVM)
        assert "matmul" in [bare(n.name) for n in report.left]
        unmarked = prim_funcs(scheduled)["matmul"]
        for mark in (*MARKS.values(), OWN_MEMORY):
            unmarked = unmarked.without_attr(mark)
        assert unmarked.script() == prim_funcs(prepared)["matmul"].script()

    def test_records_come_before_our_plans(self, tmp_path):
        from tvm.s_tir import meta_schedule as ms

        prepared = prepare(classifier(), LLVM)
        tasks = ms.relax_integration.extract_tasks(prepared, tvm.target.Target(LLVM))
        (task,) = (t for t in tasks if bare(t.task_name) == "matmul")
        recorded = tvm.s_tir.Schedule(task.dispatched[0])
        loops = recorded.get_loops(recorded.get_sblock("matmul"))
        recorded.parallel(loops[1])
        database = ms.database.JSONDatabase(str(tmp_path / "database_workload.json"),
                                            str(tmp_path / "database_tuning_record.json"))  # fmt: skip
        workload = database.commit_workload(task.dispatched[0])
        arguments = ms.arg_info.ArgInfo.from_entry_func(task.dispatched[0])
        record = ms.database.TuningRecord(recorded.trace, workload, [1e-6], tvm.target.Target(LLVM), arguments)
        database.commit_tuning_record(record)
        x = values(1, 3, 12, 12)
        for given in (database, tmp_path, str(tmp_path)):
            scheduled, report = schedule(prepared, LLVM, given)
            assert "matmul" in [bare(n.name) for n in report.left], report
            (kernel,) = (k for k in report.kernels() if bare(k.kernel) == "matmul")
            assert kernel.how == "record", "a recorded function is one kernel of the report"
            assert "T.parallel(T.int64(5))" in prim_funcs(scheduled)["matmul"].script()
            np.testing.assert_allclose(
                run(build(prepared, LLVM, database=given), x)[0], default(prepared, x)[0], rtol=1e-4
            )

    @pytest.mark.parametrize("files", [[], ["database_workload.json"]])
    def test_a_folder_without_records(self, tmp_path, files):
        for name in files:
            (tmp_path / name).write_text("")
        with pytest.raises(RecordError, match="has no .*database_tuning_record.json"):
            schedule(prepare(classifier(), LLVM), LLVM, tmp_path)

    def test_records_that_cannot_be_read(self, tmp_path):
        for name in ("database_workload.json", "database_tuning_record.json"):
            (tmp_path / name).write_text("{ no json\n")
        with pytest.raises(RecordError, match="cannot be read"):
            schedule(prepare(classifier(), LLVM), LLVM, tmp_path)

    def test_half_a_last_line_is_left_out(self, tmp_path):
        mod = prepare(classifier(), LLVM)
        tune(mod, None, LLVM, tmp_path, max_trials_per_task=0)
        file = tmp_path / "database_tuning_record.json"
        whole = file.read_text()
        file.write_text(whole + whole.splitlines()[0][:100])
        _, report = schedule(mod, LLVM, tmp_path)
        assert len(report.left) >= whole.count("\n") and file.read_text().endswith(whole.splitlines()[0][:100])

    def test_records_of_another_target(self, tmp_path):
        other = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
        mod = prepare(classifier(), LLVM)
        tune(mod, None, other, tmp_path, max_trials_per_task=0, tasks=[0])
        with pytest.raises(RecordError, match="haswell"):
            schedule(mod, {"kind": "llvm", "mcpu": "x86-64-v3"}, tmp_path)
        schedule(mod, {"kind": "llvm"}, tmp_path)  # it names no CPU: TVM fills it in


def test_weights_are_packed_beside_functions_without_blocks():
    """A cumulative sum is loops alone, which TVM's pass that splits packings off does not take."""
    weight = values(24, 40)

    def body(builder, x):
        return builder.emit(relax.op.cumsum(builder.emit(relax.op.matmul(x, relax.const(weight))), axis=1))

    mod, x = module(body, (16, 24)), values(16, 24)
    np.testing.assert_allclose(run(build(mod, LLVM), x)[0], np.cumsum(x @ weight, 1), rtol=1e-4, atol=1e-4)
