"""Whole models: tuned, built, compared with a reference and timed in turns, each in processes of their own."""

import importlib.util
import json
import math
import os
from types import SimpleNamespace

import numpy as np
import pytest

from roller_bench import latency, running, whole
from roller_bench.cases import Case
from roller_bench.comparison import make_report, to_csv
from roller_bench.run import Comparison, Request
from roller_bench.running import Runnable, keep_inputs, relative_error
from roller_bench.tables import text
from roller_bench.tuners import Tuner, default_tuners, parse_tuners
from roller_bench.zoo import find_model, randomise
from roller_tvm.errors import BadInput, MeasureError

from ..plan.devices import device
from .fake_edge_models import doubled

onnx = pytest.importorskip("onnx")
TUNERS = parse_tuners("roller:1,roller:4,untuned,ansor:64,metaschedule,autotvm,onnxruntime")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    file = doubled(folder / "doubled.onnx")
    request = Request("tests.bench.fake_edge", "relay", "llvm", device("avx512"), TUNERS, folder, 1, latency_s=0.1)
    with Comparison(request) as comparison:
        comparison.open()
        cases = comparison.whole_models([str(file), "nothing.onnx"], {"x": [2, 4]})
        assert comparison.run(cases)
        return folder, make_report(comparison.results, cases, TUNERS, comparison.environment)


def cells(report):
    return {c.tuner.label: c for c in report.rows[0].cells}


def test_what_is_right_is_timed_in_turns(done):
    found = cells(done[1])
    assert found["roller:4"].status == "ok" and found["roller:4"].error == 0.0
    assert found["roller:4"].build_s == 1.0 and found["roller:4"].tune_s == 8.0
    assert 2.0 < found["untuned"].ratio < 5.0
    assert done[1].base == "roller:4"


@pytest.mark.parametrize(
    ("tuner", "status", "reason"),
    [
        ("ansor:64", "wrong answer", "of the largest output"),
        ("metaschedule:64", "unsupported", "relax line"),
        ("autotvm:64", "unsupported", "single operators only"),
    ],
)
def test_what_does_not_says_why(done, tuner, status, reason):
    found = cells(done[1])[tuner]
    assert found.status == status and reason in found.reason and not found.timed


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="onnxruntime")
def test_onnxruntime_is_the_reference(done):
    found = cells(done[1])["onnxruntime"]
    assert found.status == "ok" and found.error == 0.0 and found.timed


def test_a_model_that_is_not_there(done):
    assert {c.status for c in done[1].rows[1].cells} == {"unsupported"}
    assert {c.reason for c in done[1].rows[1].cells} == {"no such file"}


def test_the_table(done):
    told = text(done[1])
    assert "Whole models: latency" in told and "doubled" in told
    header = next(line for line in to_csv(done[1]).splitlines() if not line.startswith("#"))
    assert header.endswith("build_s,error,environment")


def test_a_reference_stays_as_long_as_the_model_does(tmp_path, monkeypatch):
    file = doubled(tmp_path / "doubled.onnx")
    monkeypatch.setattr(whole.importlib.util, "find_spec", lambda name: None)  # no onnxruntime: TVM's kernels made it

    def prepared():
        (told,) = whole.prepare([str(file)], {"x": [2, 4]}, str(tmp_path / "out"))
        case = Case.from_json(told["case"])
        return case.digest, tmp_path / "out" / whole.MODELS / f"{case.digest}.reference.npz"

    digest, reference = prepared()
    assert not reference.exists()
    running.keep_reference([np.ones(3)], reference)
    assert prepared() == (digest, reference) and reference.exists()
    monkeypatch.setattr("roller_bench.zoo.SEED", 1)  # other inputs
    assert prepared() == (digest, reference) and not reference.exists()
    model = onnx.load(file)
    model.doc_string = "another"
    onnx.save(model, file)
    assert prepared()[0] != digest  # what was found of the old one is not of this


def test_a_model_is_all_of_its_weights_wherever_they_are(tmp_path):
    """Weights in a file of their own, and those of a network that this package makes, are part of what is compared."""
    weight = onnx.numpy_helper.from_array(np.ones((4, 512), np.float32), "w")
    x = onnx.helper.make_tensor_value_info("x", 1, (2, 4))
    y = onnx.helper.make_tensor_value_info("y", 1, (2, 512))
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "net", [x], [y], [weight])
    opset = [onnx.helper.make_opsetid("", 13)]
    file = tmp_path / "net.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), str(file), save_as_external_data=True,
              location="net.data", size_threshold=0)  # fmt: skip
    data = tmp_path / "net.data"

    def digest(name):
        return Case.from_json(whole.prepare([str(name)], None, str(tmp_path / "out"))[0]["case"]).digest

    before = digest(file)
    assert digest(file) == before
    data.write_bytes(b"\0" * len(data.read_bytes()))
    assert digest(file) != before


def test_a_network_of_the_zoo_that_changed_is_another(tmp_path, monkeypatch):
    def digest():
        return Case.from_json(whole.prepare(["squeezenet"], None, str(tmp_path / "out"))[0]["case"]).digest

    before = digest()
    assert digest() == before  # the same every time that it is made
    monkeypatch.setattr("roller_bench.zoo.randomise", lambda model: randomise(model, 1))
    assert digest() != before


def test_what_cannot_be_run_is_named(tmp_path):
    keep_inputs({"x": np.zeros(1, np.float32)}, tmp_path / "in.npz")
    runnable = Runnable("tests.bench.nowhere:open_model", "file", str(tmp_path / "in.npz"), 1)
    assert Runnable.read(runnable.write(tmp_path / "r.json")) == runnable
    with pytest.raises(MeasureError, match="cannot be run"):
        latency.in_turns([tmp_path / "r.json"], 0.1)


def test_errors():
    one, two = np.ones((2, 2)), np.ones(3)
    assert relative_error([one], [one]) == 0.0 and math.isinf(relative_error([one], [two]))
    assert math.isinf(relative_error([one], [])) and math.isinf(relative_error([np.full(2, np.nan)], [np.ones(2)]))
    assert relative_error([np.array([True, False])], [np.array([True, False])]) == 0.0
    assert math.isinf(relative_error([np.array([1], np.uint8)], [np.array([2], np.uint8)]))
    ends = np.array([-np.inf, 1.0, 8.0], np.float32)
    assert relative_error([ends + np.float32(0.5)], [ends]) == 0.0625
    assert math.isinf(relative_error([np.zeros(3)], [ends]))


def test_models_by_name(tmp_path):
    made = find_model("testing:resnet-18", tmp_path)
    assert made.title == "relay.testing resnet-18" and not made.inputs
    with pytest.raises(BadInput, match="'x'"):
        find_model(str(doubled(tmp_path / "open.onnx")), tmp_path)  # an open shape that nobody gave


def test_tuners_of_whole_models():
    assert default_tuners("relay", "cpu", "model").split(",")[-1:] == ["onnxruntime"]
    assert "xgboost" not in default_tuners("relax", "cpu", "model")
    other = Tuner.parse("onnxruntime")
    assert other.refusal("relax", "cpu") and not other.refusal("relax", "cpu", "model")


def test_a_model_that_onnxruntime_cannot_run_is_no_harm_to_others(tmp_path):
    make = onnx.helper
    given, result = (make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("file", "y"))
    graph = make.make_graph([make.make_node("Mine", ["file"], ["y"])], "own", [given], [result])
    sets = [make.make_opsetid("", 13)]
    onnx.save(make.make_model(graph, opset_imports=sets, ir_version=8), str(tmp_path / "own.onnx"))
    names = [str(tmp_path / "own.onnx"), str(doubled(tmp_path / "doubled.onnx")), "testing:mlp"]
    own, other, network = whole.prepare(names, {"x": [2, 4]}, str(tmp_path), "NHWC")
    assert not own["file"] and "'x'" in own["reason"]  # it has no such input
    own, other, network = whole.prepare(names[:1], None, str(tmp_path)) + [other, network]
    assert own["file"] and other["file"] and other["case"]["title"] == "doubled, NHWC"
    assert json.loads((tmp_path / other["file"]).read_text())["layout"] == "NHWC"
    assert "another layout" in network["reason"]


def test_outputs_that_are_no_numbers_are_no_reference(tmp_path):
    with pytest.raises(MeasureError, match="output 1 has no finite number"):
        running.keep_reference([np.ones(3), np.full(3, np.nan)], tmp_path / "reference.npz")
    running.keep_reference([np.array([1.0, np.inf]), np.zeros(0), np.arange(3)], tmp_path / "reference.npz")
    assert (tmp_path / "reference.npz").exists()


def test_a_first_run_that_compiles_is_no_slow_model(monkeypatch, capsys):
    """Each implementation has the same runs to warm up; torch.compile's first takes seconds."""
    runs = []

    def run():
        runs.append(0.02 if runs else 3.0)

    opened = SimpleNamespace(open=lambda: SimpleNamespace(run=run))
    monkeypatch.setattr(latency.Runnable, "read", lambda _path: opened)
    monkeypatch.setattr(latency, "_timed", lambda run: run() or runs[-1])
    monkeypatch.setattr("sys.stdin", ["block\n"])
    latency.serve(None)
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == [0.02] * latency.BLOCK
    assert len(runs) == 2 + latency.WARM + latency.BLOCK


def test_inputs_by_name_are_read_as_a_user_keeps_them(tmp_path):
    x, names = np.ones(2, np.float32), np.arange(3)
    np.savez(tmp_path / "own.npz", x=x)
    keep_inputs({"x": x, "names": names}, tmp_path / "kept.npz")
    assert running.read_inputs(tmp_path / "own.npz")["x"].tolist() == [1.0, 1.0]
    assert running.read_inputs(tmp_path / "kept.npz")["names"].tolist() == [0, 1, 2]


def test_an_implementation_that_cannot_be_opened_leaves_the_others(tmp_path, monkeypatch):
    """Side by side, in the environment asked for."""
    keep_inputs({"x": np.ones(2, np.float32)}, tmp_path / "in.npz")
    (tmp_path / "opens_some.py").write_text(
        "import os\nfrom roller_bench.running import Running\n"
        "def open_model(file, inputs, threads):\n"
        "    factor = float(os.environ['FACTOR']) / (file.name != 'fails')\n"
        "    return Running(lambda: None, lambda: [inputs['x'] * factor])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    files = [Runnable("opens_some:open_model", name, str(tmp_path / "in.npz"), 2).write(tmp_path / f"{name}.json")
             for name in ("fails", "opens")]  # fmt: skip
    with latency.opened_if_possible(files, env={"FACTOR": "3"}) as (failed, process):
        assert failed is None and latency._asked(process, f"{tmp_path}/out.npz") == "written"
    with np.load(tmp_path / "out.npz") as found:
        assert found["arr_0"].tolist() == [3.0, 3.0]
    with pytest.raises(MeasureError, match="cannot be run: see above"), latency.opened(files):
        pytest.fail("one cannot be run")


@pytest.mark.skipif(len(latency.CPUS) < 2, reason="needs two CPUs")
def test_a_process_that_tvm_gave_one_cpu_times_on_all(tmp_path, monkeypatch):
    """onnxruntime's two threads on one CPU took four times as long."""
    before = os.sched_getaffinity(0)
    keep_inputs({"x": np.ones(2, np.float32)}, tmp_path / "in.npz")
    (tmp_path / "tells_cpus.py").write_text(
        "import os, time\nfrom roller_bench.running import Running\n"
        "def open_model(file, inputs, threads):\n"
        "    file.write_text(','.join(map(str, sorted(os.sched_getaffinity(0)))))\n"
        "    return Running(lambda: time.sleep(0.01), list)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    model = Runnable("tells_cpus:open_model", str(tmp_path / "cpus"), str(tmp_path / "in.npz"), 2)
    model.write(tmp_path / "model.json")
    try:
        os.sched_setaffinity(0, {latency.CPUS[0]})
        latency.in_turns([tmp_path / "model.json"], 0.01)
    finally:
        os.sched_setaffinity(0, before)
    assert (tmp_path / "cpus").read_text() == ",".join(map(str, latency.CPUS))
