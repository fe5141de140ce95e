"""``roller-tvm tune``, ``compile`` and ``run`` on a small model, and what they say to mistakes."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from roller_tvm import cli
from roller_tvm.relay.records import read_records

from ..relay.onnx_models import convolution, expected

pytestmark = pytest.mark.tvm


def main(capsys, *words):
    code = cli.main([str(w) for w in words])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A model and its records."""
    folder = tmp_path_factory.mktemp("tuned")
    model = convolution(folder / "small.onnx")
    records = folder / "records.json"
    assert cli.main(["tune", str(model), "--output", str(records), "--trials", "2"]) == 0
    return model, records


@pytest.mark.nightly
def test_records_are_there_and_are_not_made_twice(tuned, capsys):
    model, path = tuned
    records = read_records(path)
    assert records and all(r.measured and r.note.checked for r in records)
    before = path.read_bytes()
    code, out, _ = main(capsys, "tune", model, "--output", path, "--trials", "2", "--json")
    data = json.loads(out)
    # Where TVM's own kernel won, that is remembered too.
    assert code == 0 and "resumed" in {t["status"] for t in data["tasks"]} <= {"resumed", "fallback"}
    assert path.read_bytes() == before


def test_list(tuned, capsys):
    code, out, _ = main(capsys, "tune", tuned[0], "--tasks", "list", "--json")
    data = json.loads(out)
    assert code == 0 and any("conv2d" in t["name"] for t in data)
    code, out, _ = main(capsys, "tune", tuned[0], "--tasks", "list")
    assert f"{len(data)} tasks" in out


@pytest.mark.parametrize("name", ["m.tar", "m.so"])
def test_compile_and_run_agree_with_onnxruntime(tuned, tmp_path, capsys, name):
    model, records = tuned
    code, out, _ = main(capsys, "compile", model, "--tuning-records", records, "-o", tmp_path / name)
    assert code == 0 and f"with the records of {records}" in out
    x = np.random.default_rng(1).standard_normal((1, 3, 16, 16), np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    code, out, _ = main(capsys, "run", tmp_path / name, "--inputs", tmp_path / "in.npz",
                        "--outputs", tmp_path / "out.npz", "--print-time", "--repeat", "2",
                        "--print-top", "3")  # fmt: skip
    assert code == 0 and "Execution time summary:\n mean (ms) " in out
    with np.load(tmp_path / "out.npz") as outputs:
        np.testing.assert_allclose(outputs["output_0"], expected(model, {"x": x})[0], rtol=1e-3, atol=1e-3)
    code, out, _ = main(capsys, "run", tmp_path / name, "--profile", "--repeat", "2", "--json")
    kernels = json.loads(out)["kernels"]
    convolution = next(k for k in kernels if "conv2d" in k["name"])
    assert code == 0 and convolution["seconds"] > 0 and len(convolution["arguments"]) >= 3
    assert not any(k["name"].startswith("__") for k in kernels)


def test_tvmc_reads_the_package(tuned, tmp_path, capsys):
    from tvm.driver.tvmc.model import TVMCPackage

    main(capsys, "compile", tuned[0], "--tuning-records", tuned[1], "-o", tmp_path / "m.tar")
    package = TVMCPackage(str(tmp_path / "m.tar"))
    assert package.type == "classic" and json.loads(package.graph)["nodes"]


def test_half_a_record_is_mended(tuned, tmp_path, capsys):
    model, records = tuned
    torn = tmp_path / "torn.json"
    torn.write_bytes(records.read_bytes()[:-40])
    with pytest.warns(UserWarning, match="half there"):
        code, out, _ = main(capsys, "tune", model, "--output", torn, "--trials", "2", "--json")
    states = [t["status"] for t in json.loads(out)["tasks"]]
    kept = len(read_records(records))
    assert code == 0 and states.count("resumed") == kept - 1
    # The torn one is tuned again, unless TVM's own kernel wins this time.
    assert len(states) - states.count("resumed") - states.count("planned") == states.count("fallback")
    assert kept - 1 <= len(read_records(torn)) <= kept


def test_corrupt_records_are_refused_and_left_alone(tuned, tmp_path, capsys):
    model, records = tuned
    bad = tmp_path / "bad.json"
    bad.write_text("this is no record\n" + records.read_text())
    before = bad.read_bytes()
    code, _, err = main(capsys, "tune", model, "--output", bad)
    assert code == 2 and f"{bad}:1" in err and "remedy:" in err and bad.read_bytes() == before


@pytest.mark.slow
@pytest.mark.nightly
def test_ctrl_c_keeps_the_records_and_resumes(tuned, tmp_path, capsys):
    path = tmp_path / "r.json"
    words = ["tune", str(tuned[0]), "--output", str(path), "--trials", "2"]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    process = subprocess.Popen([sys.executable, "-u", "-m", "roller_tvm.cli", *words], env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    for line in process.stdout:
        if line.split()[:1] == ["0"]:  # the first task's row
            process.send_signal(signal.SIGINT)
            break
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "are intact" in err and "run the same command again" in err and "Traceback" not in err
    kept = read_records(path)
    assert kept
    code, out, _ = main(capsys, *words, "--json")
    assert code == 0 and [t["status"] for t in json.loads(out)["tasks"]].count("resumed") == len(kept)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["tune", "MODEL", "-o", "R", "--tasks", "one"], 2, "'one' is not a task number or range"),
        (["tune", "MODEL", "-o", "R", "--tasks", "3-1"], 2, "write 1-3"),
        (["tune", "MODEL", "-o", "R", "--target", "cuda", "--device", "h200"], 2, "-arch=sm_90"),
        (["tune", "MODEL", "-o", "R", "--target", "llvm -mcpu=znver99"], 2, "known: "),
    ],
)
def test_mistakes(tuned, tmp_path, capsys, words, code, said):
    names = {"MODEL": tuned[0], "R": tmp_path / "r.json"}
    got, _, err = main(capsys, *(names.get(w, w) for w in words))
    assert got == code and said in err and "remedy:" in err and "Traceback" not in err


def test_inputs_called_as_the_executor_calls_its_own_arguments(tmp_path, capsys):
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    key, value, y = (make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in ("key", "value", "y"))
    graph = make.make_graph([make.make_node("Sub", ["key", "value"], ["y"])], "apart", [key, value], [y])
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(tmp_path / "m.onnx"))
    assert main(capsys, "compile", tmp_path / "m.onnx", "-o", tmp_path / "m.tar")[0] == 0
    given = {"key": np.arange(4, dtype="float32"), "value": np.ones(4, "float32")}
    np.savez(tmp_path / "in.npz", **given)
    np.savez(tmp_path / "out.npz", y=given["key"] - given["value"])
    code, out, err = main(capsys, "run", tmp_path / "m.tar", "--inputs", tmp_path / "in.npz",
                          "--expect", tmp_path / "out.npz")  # fmt: skip
    assert code == 0 and "agree" in out + err
