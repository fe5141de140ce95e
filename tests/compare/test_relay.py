"""The Relay line's edge: operators as Relay has them, and each tuner on a small one."""

import json

import pytest

pytestmark = pytest.mark.tvm
pytest.importorskip("tvm.relay")

from roller_tvm.compare import relay as edge  # noqa: E402
from roller_tvm.compare.relay import autotvm as autotvm_edge  # noqa: E402
from roller_tvm.compare.relay.ansor import best_record, read_back  # noqa: E402
from roller_tvm.compare.relay.functions import relay_function  # noqa: E402
from roller_tvm.compare.relay.tasks import open_task  # noqa: E402
from roller_tvm.compare.relay.untuned import relay_kernels  # noqa: E402
from roller_tvm.compare.relay.whole import names_with_digits  # noqa: E402
from roller_tvm.compare.suite import Case, load_suite  # noqa: E402
from roller_tvm.errors import BadInput, UnsupportedOperator  # noqa: E402

from ..expr.examples import EXAMPLES  # noqa: E402
from ..relay.onnx_models import convolution  # noqa: E402

#: One core: the tests run beside others.
TARGET = "llvm -mcpu=core-avx2 -num-cores=1"
CASES = [Case("dense", "dense", "m=4 n=32 k=16 bias=1 relu=1"), Case("norm", "layer_norm", "shape=4x16")]


@pytest.mark.parametrize(("name", "params"), EXAMPLES)
def test_relay_has_the_same_operator(name, params):
    case = Case("x", name, " ".join(f"{k}={v}" for k, v in params.items()))
    if name == "layer_norm":
        with pytest.raises(UnsupportedOperator, match="splits"):
            relay_function(case)
        return
    mod, weights = relay_function(case)
    assert tuple(int(e) for e in mod["main"].ret_type.shape) == case.expression().output.shape
    inputs = {p.name_hint: tuple(int(e) for e in p.type_annotation.shape) for p in mod["main"].params}
    assert sorted(inputs.values()) == sorted(t.shape for t in case.expression().inputs)
    assert bool(weights) == (case.weighted or "bias" in params)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("comparison")


@pytest.fixture(scope="module")
def prepared(folder):
    return {p["case"]["id"]: p for p in edge.prepare([c.to_json() for c in CASES], TARGET, str(folder))}


def tuned(folder, prepared, case, tuner, trials):
    task = str(folder / prepared[case]["file"])
    return edge.tune(task, prepared[case]["case"], tuner, trials, TARGET, str(folder))


def comes_again(folder, prepared, case, tuner, trials, found):
    """Whether the kernel of a schedule is the same file when it is built from what results tell."""
    task, kernel = str(folder / prepared[case]["file"]), folder / found["kernel"]
    kernel.unlink()
    again = edge.build_again(task, prepared[case]["case"], tuner, trials, found["schedule"], TARGET, str(folder))
    return again == found["kernel"] and kernel.exists()


def test_operators_become_tasks(prepared, folder):
    assert all(not p["reason"] and p["flops"] > 0 and p["io_bytes"] > 0 for p in prepared.values())
    told = {case: json.loads((folder / p["file"]).read_text()) for case, p in prepared.items()}
    assert told["dense"]["default"] and not told["norm"]["default"]  # several kernels in Relay, one here


@pytest.mark.nightly
def test_ansor_can_pack_the_weights_of_every_operator(folder):
    cases = [c for c in load_suite("cpu") if c.weighted]
    assert any(c.operator == "dense" for c in cases)  # Relay calls its axes i0 and i1
    for prepared in edge.prepare([c.to_json() for c in cases], TARGET, str(folder)):
        opened = open_task(folder / prepared["file"], prepared["case"], TARGET, folder)
        assert not names_with_digits(opened.dag), prepared["case"]["id"]


@pytest.mark.slow
def test_roller_and_untuned_are_built_checked_and_timed(prepared, folder):
    found = [tuned(folder, prepared, "dense", "roller", 1), tuned(folder, prepared, "dense", "untuned", 0)]
    assert [f["status"] for f in found] == ["ok", "ok"]
    assert found[0]["seconds"] > 0 and found[0]["tiles"].startswith("cpu.")
    assert [f["reason"] for f in found] == [edge.BUILT, ""]  # a peer's is built as TVM does, and that is told
    assert comes_again(folder, prepared, "dense", "roller", 1, found[0])
    assert comes_again(folder, prepared, "dense", "untuned", 0, found[1])
    rounds = edge.time([str(folder / f["kernel"]) for f in found], TARGET, 2)
    assert [len(kernel) for kernel in rounds] == [2, 2] and all(s > 0 for kernel in rounds for s in kernel)
    with pytest.raises(UnsupportedOperator, match="no single kernel"):
        tuned(folder, prepared, "norm", "untuned", 0)
    assert tuned(folder, prepared, "norm", "roller", 1)["status"] == "ok"


@pytest.mark.parametrize(
    ("operator", "params", "computing", "moving"),
    [
        ("dense", "m=4 n=32 k=16 bias=1 relu=1", ["fused_nn_contrib_dense_pack_add_nn_relu"], 0),
        ("batch_matmul", "b=2 m=8 n=8 k=16 layout=NT", ["fused_nn_batch_matmul"], 0),
        ("conv2d_nhwc", "n=1 c=8 h=8 w=8 f=16 k=3 padding=1 relu=1", ["fused_nn_conv2d_nn_relu"], 0),
        ("conv2d_nchw", "n=1 c=8 h=8 w=8 f=16 k=3 padding=1", ["fused_nn_contrib_conv2d_NCHWc"], 2),
        ("transpose", "shape=4x8 perm=1x0", [], 1),
    ],
)
def test_untuned_is_what_relay_build_makes(operator, params, computing, moving):
    import tvm

    target = tvm.target.Target(TARGET)
    found = relay_kernels(*relay_function(Case("x", operator, params)), target)
    assert [k.name for k in found if not k.moves] == computing and sum(k.moves for k in found) == moving
    if operator == "dense":  # its own schedule, whose innermost loop is of vectors; auto_scheduler's is plain loops
        assert "T.Broadcast(" in str(tvm.lower(found[0].schedule, found[0].args))


@pytest.mark.nightly
def test_ansor_goes_on_where_it_was(prepared, folder):
    found = tuned(folder, prepared, "dense", "ansor", 4)
    assert found["status"] == "ok" and found["trials"] == 4 and found["curve"]
    work = next((folder / "work").glob("*.ansor"))
    records = (work / "records.4.json").read_text()
    again = tuned(folder, prepared, "dense", "ansor", 4)
    assert comes_again(folder, prepared, "dense", "ansor", 4, found)
    assert again["schedule"] == found["schedule"] and (work / "records.4.json").read_text() == records
    opened = open_task(folder / prepared["dense"]["file"], prepared["dense"]["case"], TARGET, folder)
    line, seconds, count = best_record(work / "records.4.json", opened.key)
    assert count == 4 and seconds > 0 and read_back(line, opened.dag)[0] == found["tiles"] != ""


@pytest.mark.slow
def test_autotvms_kernels_take_weights_packed_as_while_they_were_tuned(prepared, folder):
    from tvm import autotvm

    opened = open_task(folder / prepared["dense"]["file"], prepared["dense"]["case"], TARGET, folder)
    (task,) = (t for t in autotvm_edge._templates(opened.case, opened.target) if t.name == "dense_pack.x86")
    kernel = autotvm_edge._build(opened, task, task.config_space.get(0), "its first")
    told = json.loads(kernel.with_suffix(".json").read_text())
    assert not told["wrong"] and sorted(len(shape) for shape, _ in told["args"]) == [2, 2, 3]
    assert not autotvm.GLOBAL_SCOPE.in_tuning


@pytest.mark.slow
def test_tvms_own_kernel_stays_where_it_is_faster(prepared, folder, monkeypatch):
    from roller_tvm.tuning.session import Measurer, Outcome, TaskResult

    given = []

    def measure(self, work, lines, how="time", default=""):
        given.append(default)
        return TaskResult([Outcome("ok", 2e-3, (2e-3,)) for _ in lines], None, Outcome("ok", 1e-3), True)

    monkeypatch.setattr(Measurer, "measure", measure)
    found = tuned(folder, prepared, "dense", "roller", 2)
    assert found["status"] == "ok" and "own kernel stays" in found["reason"] and found["claimed_s"] == 1e-3 and given[0]
    assert comes_again(folder, prepared, "dense", "roller", 2, found)
    assert found["kernel"] != tuned(folder, prepared, "dense", "untuned", 0)["kernel"]  # built as Roller builds


@pytest.mark.nightly
@pytest.mark.parametrize("tuner", ["autotvm", "roller"])
def test_the_others(prepared, folder, tuner):
    found = tuned(folder, prepared, "dense", tuner, 4)
    assert found["status"] == "ok" and found["trials"] and found["claimed_s"] > 0 and found["tiles"]
    assert comes_again(folder, prepared, "dense", tuner, 4, found)


@pytest.mark.nightly
@pytest.mark.parametrize("tuner", ["xgboost", "xgbregression"])
def test_the_search_over_rtiles(prepared, folder, tuner):
    pytest.importorskip("xgboost")
    found = tuned(folder, prepared, "dense", tuner, 8)
    assert found.get("status", "ok") == "ok" and found["claimed_s"] > 0 and found["tiles"].startswith("cpu.")
    assert comes_again(folder, prepared, "dense", tuner, 8, found)


@pytest.mark.nightly
def test_what_was_learned_of_others_ranks(prepared, folder):
    pytest.importorskip("xgboost")
    tuned(folder, prepared, "dense", "xgboost", 8)
    (measured,) = (folder / "work").glob("*.xgboost/measured.8.json")
    with pytest.raises(BadInput, match="nothing to learn from"):  # but of the operator itself
        tuned(folder, prepared, "dense", "ranked", 0)
    other = json.loads(measured.read_text()) | {"operator": "dense m=8 n=32 k=16"}
    (measured.parent / "measured.of_another.json").write_text(json.dumps(other))
    found = tuned(folder, prepared, "dense", "ranked", 0)
    assert found.get("status", "ok") == "ok" and found["trials"] == 0 and found["tiles"].startswith("cpu.")


@pytest.mark.slow
def test_a_whole_model(tmp_path):
    pytest.importorskip("onnxruntime")
    from roller_tvm.compare.whole import jobs

    (prepared,) = jobs.prepare([str(convolution(tmp_path / "c.onnx"))], None, str(tmp_path))
    assert not prepared["reason"]
    task = str(tmp_path / prepared["file"])
    edge = "roller_tvm.compare.relay"
    tuners = (("roller", 1), ("untuned", 0))
    found = [jobs.tune(task, prepared["case"], *tuner, TARGET, str(tmp_path), edge) for tuner in tuners]
    assert [f["status"] for f in found] == ["ok", "ok"]
    assert all(0 < f["error"] < 1e-4 and f["build_s"] > 0 for f in found)  # the reference is onnxruntime's


def test_a_network_with_functions_within_becomes_one_graph():
    import tvm

    from roller_tvm.compare.relay.testing import testing_model

    mod, _, inputs = testing_model("lstm")  # four steps, whose inputs TVM calls by one name
    calls: list[object] = []
    tvm.relay.analysis.post_order_visit(
        mod["main"].body, lambda e: calls.append(e.op) if isinstance(e, tvm.relay.Call) else None
    )
    assert len(inputs) == 4 and calls and all(isinstance(op, tvm.ir.Op) for op in calls)
