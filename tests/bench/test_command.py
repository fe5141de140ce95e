"""``roller-tvm compare`` with fake tuners, from the command line to the page."""

import json

import pytest

from roller_bench import command
from roller_bench.run import Request
from roller_bench.tuners import parse_tuners
from roller_tvm.cli import main, make_parser
from roller_tvm.errors import UsageError

from ..plan.devices import device

REQUEST = command._request


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    def request(args):
        tuners = parse_tuners(args.tuners or "roller,ansor:8", args.trials)
        return Request("tests.bench.fake_edge", "relay", "llvm", device("avx512"), tuners, args.output, 1)

    monkeypatch.setattr(command, "_request", request)


def test_a_suite(tmp_path, capsys):
    suite, out = tmp_path / "own.csv", tmp_path / "out"
    suite.write_text("id,operator,params\ngood,matmul,m=8 n=8 k=8\nfails,relu,shape=8\n")
    words = ["compare", "--suite", str(suite), "--output", str(out)]
    assert main([*words, "--seconds", "0"]) == 1
    assert "the same command goes on" in capsys.readouterr().err
    assert main([*words, "--json"]) == 0
    told = capsys.readouterr()
    data = json.loads(told.out)
    assert data["summary"]["ansor:8"]["speed_ratio"] == pytest.approx(2.0)
    assert data == json.loads((out / "results.json").read_text())
    assert "failed: RuntimeError: no kernel at all" in told.err
    assert main([*words, "--report"]) == 0
    assert "good" in capsys.readouterr().out and (out / "index.html").exists()
    calls = (out / "calls").read_text().split("\n")
    assert main([*words, "--again", "roller", "--only", "good"]) == 0
    assert (out / "calls").read_text().split("\n")[len(calls) - 1 :] == ["good roller", ""]


def test_tasks_of_a_model(tmp_path, capsys):
    words = ["compare", "net.onnx", "--output", str(tmp_path), "--input-shapes", "x:[1,3]"]
    assert main([*words, "--list"]) == 0
    assert "net conv2d" in capsys.readouterr().out
    assert main(words) == 0
    assert "net.0" in capsys.readouterr().out
    assert json.loads((tmp_path / "results.json").read_text())["cases"][0]["weight"] == 3


def test_a_model_by_its_name_is_written_to_a_file(tmp_path, monkeypatch):
    from roller_bench import zoo
    from roller_bench.networks import Prepared

    monkeypatch.setattr(zoo, "find_model", lambda name, folder: Prepared(name, folder / f"{name}.onnx", {}))
    words = ["compare", "mobilenet_v2", "--suite", "", "--output", str(tmp_path)]
    told = command._model(make_parser("compare").parse_args(words))
    assert told["file"] == str(tmp_path / "models" / "mobilenet_v2.onnx")
    words[1] = "net.onnx"
    assert command._model(make_parser("compare").parse_args(words))["file"] == "net.onnx"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 2), (["net.onnx", "--suite", "demo"], 2), (["--suite", "demo", "--trials", "0"], 2),
        (["--suite", "no such"], 2), (["--suite", "demo", "--tuners", "hope"], 2),
        (["--suite", "demo", "--params", "w.params"], 2), (["--suite", "demo", "--desired-layout", "NHWC"], 2),
        (["--models", "squeezenet", "--params", "w.params"], 2), (["--suite", "demo", "--input-shapes", "x:[1]"], 2),
        (["--suite", "demo", "--only", "no such"], 2), (["--suite", "demo", "--again", "hope"], 2),
    ],
)  # fmt: skip
def test_mistakes(tmp_path, words, code, capsys):
    assert main(["compare", *words, "--output", str(tmp_path)]) == code
    assert "remedy" in capsys.readouterr().err


def test_whole_models_are_for_cpus():
    words = ["compare", "--models", "squeezenet", "--line", "relay", "--target", "cuda -arch=sm_90"]
    with pytest.raises(UsageError, match="CPU alone"):
        REQUEST(make_parser("compare").parse_args(words))


def test_a_short_row_is_named(tmp_path, capsys):
    (tmp_path / "short.csv").write_text("id,operator,params\nA\n")
    assert main(["compare", "--suite", str(tmp_path / "short.csv"), "--output", str(tmp_path / "out")]) == 2
    assert "line 2" in capsys.readouterr().err


def test_lists(capsys):
    assert main(["compare", "--list"]) == 0
    assert "paper_batch1" in capsys.readouterr().out
    assert main(["compare", "--list", "--suite", "networks", "--only", "lstm"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
