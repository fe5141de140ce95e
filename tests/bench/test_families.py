"""The table of families: it goes on after a failure and where it stopped, tells a crash's path, and judges answers."""

import json
import re

import numpy as np
import pytest

from roller_bench.families import FAMILIES
from roller_bench.family_jobs import difference
from roller_bench.figures import families, main
from roller_bench.jobs import Done

OK = {"status": "ok", "reason": "", "error": 1e-6, "build_s": 1.0, "kernels": {"planned": 3}}
TIME = {"status": "ok", "reason": "", "loaded": True}


@pytest.fixture
def jobs(monkeypatch):
    """Answer jobs in the place of processes; return what was asked."""
    asked = []

    def run_job(edge, function, arguments, limit_s, threads, log):
        asked.append((function, arguments["name"], *arguments.get("paths", arguments.get("runtimes", ()))))
        if function == "timed":
            times = {"export": 1.0, "onnx": 1.5, "onnxruntime": 2.0, "torch": 3.0, "torch.compile": 4.0}
            return Done("ok", {n: TIME | {"wall_ms": times[n], "cpu_ms": times[n]} for n in arguments["runtimes"]})
        if arguments["name"] == "VGG" and "onnx" in arguments["paths"]:
            return Done("crash", reason="killed by signal 11")
        lacks = {"status": "unsupported", "reason": "unsupported operators: eigh"}
        return Done("ok", {path: lacks if arguments["name"] == "ResNet" else OK for path in arguments["paths"]})

    monkeypatch.setattr(families, "run_job", run_job)
    return asked


def test_it_goes_on(jobs, tmp_path, capsys):
    command = ["families", "--families", "AlexNet,VGG,ResNet", "--folder", str(tmp_path)]
    assert main(command) == 0
    assert jobs == [
        ("check", "AlexNet", "export", "onnx"), ("check", "VGG", "export", "onnx"), ("check", "VGG", "export"),
        ("check", "VGG", "onnx"), ("check", "ResNet", "export", "onnx"),
    ]  # fmt: skip
    told = capsys.readouterr().out
    assert "crash: killed by signal 11" in told and "unsupported operators: eigh" in told
    assert "3 families: 1 right through both paths (2 through export, 1 through onnx)." in told
    jobs.clear()
    assert main(command) == 0 and jobs == []
    assert main(["families", "--families", "VGG,ViT", "--folder", str(tmp_path), "--table"]) == 1, "one is left"
    assert "Not built yet: ViT." in capsys.readouterr().out
    assert main([*command, "--families", "VGG", "--paths", "onnx", "--again"]) == 0
    assert jobs == [("check", "VGG", "onnx")]


def test_times_of_what_is_right(jobs, tmp_path, capsys):
    command = ["families", "--families", "AlexNet,VGG,ResNet", "--folder", str(tmp_path)]
    main(command)
    jobs.clear()
    assert main([*command, "--time", "1"]) == 0
    assert [asked[1:] for asked in jobs] == [
        ("AlexNet", "export", "onnx"), ("AlexNet", "onnxruntime"), ("AlexNet", "torch", "torch.compile"),
        ("VGG", "export"), ("VGG", "torch", "torch.compile"),
    ]  # fmt: skip
    told = capsys.readouterr().out
    assert re.search(r"AlexNet \| torchvision \| ok \| ok \| 1.00 \| 3.00 \| 4.00 \| 2.00", told)
    assert "1 thread, beside other work; geometric means of the speed: 3.00 of torch (2)" in told


def test_results_of_other_cpus_do_not_count(jobs, tmp_path):
    row = {"cpu": "another", "family": "AlexNet", "job": "export", **OK}
    (tmp_path / "results.jsonl").write_text(json.dumps(row) + "\n")
    main(["families", "--families", "AlexNet", "--folder", str(tmp_path)])
    assert jobs == [("check", "AlexNet", "export", "onnx")]


def test_an_unknown_family(tmp_path, capsys):
    assert main(["families", "--families", "AlexNets", "--folder", str(tmp_path)]) == 2
    assert "there is no family 'AlexNets'" in capsys.readouterr().err


def test_forty_families_of_three_libraries():
    assert len({family.name for family in FAMILIES}) == len(FAMILIES) >= 40
    assert {family.library for family in FAMILIES} == {"torchvision", "timm", "transformers"}


def test_answers_are_judged_by_how_far_two_are_apart():
    first, second = [np.array([100.0, 2.0])], [np.array([100.1, 2.0])]
    assert difference([np.array([100.05, 2.0])], first, [first, second]) == pytest.approx(0.5)
    assert difference([np.array([100.0])], first, [first, second]) == np.inf, "another shape"
    assert difference([np.array([100.0, np.nan])], first, [first, second]) == np.inf
    assert difference(first, first, [first, first]) == np.inf, "answers that do not depend on the input prove nothing"
    ids = [np.array([1, 2])]
    assert difference(ids, ids, [ids, ids]) == 0 and difference([np.array([1, 3])], ids, [ids, ids]) == np.inf
