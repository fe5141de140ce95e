"""``tune``, ``compile`` and ``run``: the contract of the command on either TVM line."""

import json

import numpy as np
import pytest

from roller_tvm import cli
from roller_tvm.tvm_env import line

from ..cli.command import main
from ..models.imports import expected
from ..relay.onnx_models import convolution, three_products
from ..sampling import covering, sampled

pytestmark = pytest.mark.te
onnx = pytest.importorskip("onnx")
NAME = line()
SUFFIXES = {"relay": (".tar", ".so"), "relax": (".so",)}.get(NAME, ())
RECORDS = {"relay": "records.json", "relax": "records"}.get(NAME)
GPU = ("--target", "cuda -arch=sm_80")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return convolution(tmp_path_factory.mktemp("model") / "small.onnx")


@pytest.fixture(scope="module")
def tuned(model, tmp_path_factory):
    """The model's records."""
    records = tmp_path_factory.mktemp("tuned") / RECORDS
    assert cli.main(["tune", str(model), "--output", str(records), "--trials", "2"]) == 0
    return records


def bytes_of(records):
    files = [records] if records.is_file() else records.iterdir()
    return {p.name: p.read_bytes() for p in files if ".json" in p.name}


def test_records_are_not_made_twice(model, tuned, capsys):
    before = bytes_of(tuned)
    code, out, err = main(capsys, "tune", model, "--output", tuned, "--trials", "2", "--json")
    # Where TVM's own kernel won, that is remembered too.
    assert code == 0 and "resumed" in {t["status"] for t in json.loads(out)["tasks"]} <= {"resumed", "fallback"}
    assert before and bytes_of(tuned) == before and "device: " in err


@pytest.mark.one_line("relax")
def test_the_tasks_are_listed_and_chosen(model, tmp_path, capsys):
    code, out, _ = main(capsys, "tune", model, "--tasks", "list", "--json")
    tasks = json.loads(out)
    assert code == 0 and any("conv2d" in t["name"] and t["flops"] > 0 for t in tasks)
    code, out, _ = main(capsys, "tune", model, "--tasks", "list")
    assert f"{len(tasks)} tasks" in out
    place = tmp_path / RECORDS
    code, out, err = main(capsys, "tune", model, "-o", place, "--trials", "0", "--tasks", "1", "--json")
    assert code == 0 and [t["id"] for t in json.loads(out)["tasks"]] == [1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tasks", "one"], "'one' is not a task number or range"),
        (["--tasks", "3-1"], "write 1-3"),
        (["--tasks", "99"], "no task 99"),
        (["--target", "cuda", "--device", "h200"], "-arch=sm_90"),
        (["--target", "llvm -mcpu=znver99"], {"relay": "known: ", "relax": "near: "}.get(NAME)),
    ],
)
def test_mistakes(model, tmp_path, capsys, words, said):
    code, _, err = main(capsys, "tune", model, "-o", tmp_path / RECORDS, *words)
    assert code == 2 and said in err and "remedy:" in err and "Traceback" not in err


@pytest.mark.parametrize(("suffix", "records"), covering(SUFFIXES, [True, False]))
def test_compile_and_run_agree_with_onnxruntime(model, tuned, tmp_path, capsys, suffix, records):
    file, words = tmp_path / f"m{suffix}", ("--tuning-records", tuned) if records else ()
    code, out, err = main(capsys, "compile", model, *words, "-o", file, "--json")
    told = json.loads(out)
    kind = told["target"].split()[0] if NAME == "relay" else told["target"]["kind"]
    assert code == 0 and kind == "llvm" and told["bytes"] == file.stat().st_size and "target: " in err
    assert told["tuning_records"] == (str(tuned) if records else None)
    x = np.random.default_rng(1).standard_normal((1, 3, 16, 16), np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    code, out, _ = main(capsys, "run", file, "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz",
                        "--print-time", "--repeat", "2", "--print-top", "3")  # fmt: skip
    assert code == 0 and "Execution time summary:\n mean (ms) " in out
    with np.load(tmp_path / "out.npz") as outputs:
        np.testing.assert_allclose(outputs["output_0"], expected(model, {"x": x})[0], rtol=1e-3, atol=1e-3)
    code, out, _ = main(capsys, "run", file, "--profile", "--repeat", "2", "--json")
    kernels = json.loads(out)["kernels"]
    found = next(k for k in kernels if "conv2d" in k["name"])
    assert code == 0 and found["seconds"] > 0 and len(found["arguments"]) >= 3
    assert not any(k["name"].startswith(("__", "vm.builtin")) for k in kernels)
    assert main(capsys, "run", file, "--profile", "--repeat", "2")[1].splitlines()[-1].endswith("in kernels")


@pytest.mark.one_line("relax")
def test_the_words_tell_how_it_was_built(model, tuned, tmp_path, capsys):
    file = tmp_path / "m.so"
    assert f"with the records of {tuned}" in main(capsys, "compile", model, "--tuning-records", tuned, "-o", file)[1]
    code, out, err = main(capsys, "compile", model, "--schedules", "tvm", "-o", file)
    assert code == 0 and "with TVM's own schedules" in out and f"next: roller-tvm run {file}" in err
    code, out, _ = main(capsys, "run", file, "--expect", model)
    assert code == 0 and "1 output agrees with onnxruntime" in out


def test_inputs_called_as_the_executor_calls_its_own_arguments(tmp_path, capsys):
    make = onnx.helper
    key, value, y = (make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in ("key", "value", "y"))
    graph = make.make_graph([make.make_node("Sub", ["key", "value"], ["y"])], "apart", [key, value], [y])
    made = make.make_model(graph, opset_imports=[make.make_opsetid("", 13)], ir_version=8)
    onnx.save(made, str(tmp_path / "m.onnx"))
    assert main(capsys, "compile", tmp_path / "m.onnx", "-o", tmp_path / f"m{SUFFIXES[0]}")[0] == 0
    given = {"key": np.arange(4, dtype="float32"), "value": np.ones(4, "float32")}
    np.savez(tmp_path / "in.npz", **given)
    np.savez(tmp_path / "out.npz", y=given["key"] - given["value"])
    code, out, err = main(capsys, "run", tmp_path / f"m{SUFFIXES[0]}", "--inputs", tmp_path / "in.npz",
                          "--expect", tmp_path / "out.npz")  # fmt: skip
    assert code == 0 and "agree" in out + err


@pytest.mark.one_line("relax")
def test_a_reference_without_onnxruntime_is_tvms_own(monkeypatch, model, tmp_path, capsys):
    from roller_tvm.cli import reference

    monkeypatch.setattr(reference, "_onnxruntime", lambda path, inputs: None)
    assert main(capsys, "compile", model, "-o", tmp_path / "m.so")[0] == 0
    code, out, _ = main(capsys, "run", tmp_path / "m.so", "--expect", model)
    assert code == 0 and f"1 output agrees with TVM's own schedules of {model} on this CPU" in out


@pytest.fixture(scope="module")
def branches(tmp_path_factory):
    return three_products(tmp_path_factory.mktemp("model") / "branches.onnx")


class TestFused:
    @pytest.mark.parametrize("suffix", sampled(SUFFIXES, always=SUFFIXES[:1]))
    def test_compiled_explained_drawn_and_emulated(self, branches, tmp_path, capsys, suffix):
        file, picture = tmp_path / f"m{suffix}", tmp_path / "t.svg"
        words = ("compile", branches, *GPU, "--fuse-rtasks", "-o", file)
        code, out, _ = main(capsys, *words, "--explain", "--timeline", picture)
        assert code == 0 and "in 1 kernels instead of" in out.replace("FuseRTasks: ", "in ") and "launches of" in out
        assert picture.read_text().startswith("<svg") and f"timeline: {picture}" in out
        code, out, err = main(capsys, "run", file, "--emulate", "--expect", branches)
        assert code == 0 and "1 output agrees with onnxruntime" in out
        assert any("rtasks_0" in told and " blocks, " in told for told in err.splitlines())

    def test_as_json(self, branches, tmp_path, capsys):
        words = ("compile", branches, *GPU, "--fuse-rtasks", "-o", tmp_path / f"m{SUFFIXES[0]}", "--json")
        told = json.loads(main(capsys, *words)[1])["fusion"]
        assert told["kernels"] == 1 < told["kernels_one_by_one"] and told["outside"] == {} and told["refused"] == []
        assert told["predicted_s"] < told["predicted_s_one_by_one"]

    def test_what_a_tuning_has_left(self, branches, capsys):
        words = ("tune", branches, *GPU, "--tasks", "list")
        assert "0 tasks" not in main(capsys, *words)[1]
        assert "0 tasks" in main(capsys, *words, "--fuse-rtasks")[1]

    def test_no_block_waits_and_pocl_is_the_second_witness(self, pocl, branches, tmp_path, capsys):
        words = ("compile", branches, *GPU, "--fuse-rtasks", "-o", tmp_path / f"m{SUFFIXES[0]}", "--on-pocl")
        code, out, err = main(capsys, *words, "--explain", "--fusion-policy", "horizontal")
        assert code == 0 and "policy horizontal" in out and "none waits for another" in out
        assert "executed in OpenCL by PoCL: 1 kernel, all blocks" in err and "PoCL executed 1 of 1 fused" in err

    @pytest.mark.parametrize("words, said", [
        (["--explain"], "--explain: it is about what --fuse-rtasks does"), (["--on-pocl"], "give --fuse-rtasks too"),
        (["--fusion-policy", "horizontal"], "give --fuse-rtasks too"),
        (["--fuse-rtasks", "--timeline", "t.png"], "does not end in .svg"),
        (["--fuse-rtasks", "--timeline", "nowhere/t.svg"], "no such folder"),
    ])  # fmt: skip
    def test_mistakes(self, words, said, tmp_path, capsys, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code, _, err = main(capsys, "compile", "none.onnx", *GPU, *words)
        assert code == 2 and said in err
