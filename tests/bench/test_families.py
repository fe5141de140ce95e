"""The table of families: it goes on after a failure and where it stopped, tells a crash's path, and judges answers."""

import contextlib
import json
import re

import numpy as np
import pytest

from roller_bench.families import FAMILIES
from roller_bench.family_jobs import difference, rounded
from roller_bench.figures import families, main
from roller_bench.jobs import Done
from roller_tvm.errors import MeasureError

OK = {"status": "ok", "reason": "", "error": 1e-6, "build_s": 1.0, "kernels": {"planned": 3}}


@pytest.fixture
def jobs(monkeypatch):
    """Answer jobs in the place of processes; return what was asked."""
    asked = []

    def run_job(edge, function, arguments, limit_s, threads, log):
        asked.append((function, arguments["name"], *arguments["paths"]))
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


def test_times_of_what_is_right(jobs, tmp_path, capsys, monkeypatch):
    """All runtimes of some families are opened before one is timed; a runtime that cannot be opened is told."""
    command = ["families", "--families", "AlexNet,VGG,ResNet", "--folder", str(tmp_path), "--threads", "2"]
    main(command)
    jobs.clear()
    times = {"export.so": 1.0, "onnx.so": 1.5, ".onnx": 2.0, "open_torch": 3.0, "open_inductor": 4.0}

    @contextlib.contextmanager
    def opened(files, limit_s, env):
        found = []
        for own in (json.loads(file.read_text()) for file in files):
            name = next(end for end in times if own["file"].endswith(end) or own["opener"].endswith(end))
            jobs.append((own["file"].split("/")[-1], own["threads"]))
            found.append(None if name == "open_inductor" and own["file"] == "VGG" else times[name])
        yield found

    def blocks(processes, seconds):
        jobs.append((*processes, seconds))
        return [[[one / 1e3], [one / 1e3]] for one in processes]

    monkeypatch.setattr(families, "opened_if_possible", opened)
    monkeypatch.setattr(families, "blocks_in_turns", blocks)
    monkeypatch.setattr(families, "wait", lambda limit_s: 0.9)
    assert main([*command, "--time", "1", "--together", "2", "--hold", "sh -c 'echo ready; cat'"]) == 0
    assert jobs == [
        ("AlexNet.export.so", 2), ("AlexNet.onnx.so", 2), ("AlexNet.onnx", 2), ("AlexNet", 2), ("AlexNet", 2),
        ("VGG.export.so", 2), ("VGG", 2), ("VGG", 2), (1.0, 1.5, 2.0, 3.0, 4.0, 1.0), (1.0, 3.0, 1.0),
    ]  # fmt: skip
    told = capsys.readouterr().out
    assert re.search(r"AlexNet \| torchvision \| ok \| ok \| 1.00 \| 3.00 \| 4.00 \| 2.00", told)
    assert re.search(r"VGG \| .* \| 1.00 \| 3.00 \|  \|  \|", told)
    assert re.search("VGG +time torch.compile 2 +failed: cannot be run", told)
    assert re.search("2 threads, beside other work; geometric means of the speed: 3.00 of torch \\(2\\), 4.00 of", told)
    jobs.clear()
    assert main([*command, "--time", "1"]) == 0 and jobs == [], "a failure is known too"


def test_a_command_that_cannot_hold_the_machine():
    with pytest.raises(MeasureError, match="the command that holds the machine ended: true"), families.held("true"):
        pytest.fail("nothing holds the machine")


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


def test_float64_judges_where_float32_is_far_off():
    assert rounded(1e-3, 0.0) and not rounded(1.1e-3, 0.0), "torch's own rounding is no excuse where it is small"
    assert rounded(4e-3, 2.1e-3) and not rounded(4e-3, 1.9e-3)
    assert not any(rounded(*pair) for pair in [(np.inf, 1.0), (np.nan, 1.0), (np.inf, np.inf), (0.1, np.inf)])
