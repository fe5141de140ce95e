"""Random operators whose first plans take far longer than predicted: choice, results that are kept, what is told."""

import argparse
from types import SimpleNamespace

import pytest

from roller_bench.figures import surprises as figure
from roller_bench.figures.surprises import random_cases, surprises, table
from roller_tvm.errors import MeasureError
from roller_tvm.tvm_env.locate import Line


def test_operators_are_those_of_the_seed_and_differ():
    cases = random_cases(40, 5)
    assert cases == random_cases(40, 5) and cases != random_cases(40, 6)
    assert len({case.title for case in cases}) > 30 and len({case.operator for case in cases}) == 6
    assert all(case.expression().stages for case in cases)


@pytest.fixture
def edge(monkeypatch):
    """A line whose kernels take as long as predicted but for the second, and that cannot build the third."""
    asked = []

    def tune(task, case, tuner, trials, target, folder):
        assert (tuner, trials) == ("roller", 1)
        asked.append(case["id"])
        if case["id"].endswith(".2"):
            raise MeasureError("no plan works", case["id"])
        return {"status": "ok", "reason": "", "kernel": case["id"], "predicted_s": 1e-4, "tiles": "tile"}

    fake = SimpleNamespace(
        prepare=lambda cases, target, folder: [{"file": "task", "reason": ""}], tune=tune,
        time=lambda kernels, target, rounds: [[2e-3 if kernels[0].endswith(".1") else 1e-4] * rounds],
    )  # fmt: skip
    monkeypatch.setattr(figure.importlib, "import_module", lambda name: fake)
    monkeypatch.setattr(figure, "usable_line", lambda what_for: Line.RELAX)
    monkeypatch.setattr(figure, "set_threads", lambda units: None)
    fake.asked = asked
    return fake


def run(folder, *words):
    parser = argparse.ArgumentParser()
    surprises(parser)
    args = parser.parse_args(["--folder", str(folder), *words])
    return args.run(args)


def test_results_are_kept_and_surprises_told(edge, tmp_path, capsys):
    assert run(tmp_path, "--count", "4") == 1
    told = capsys.readouterr().out
    assert "2000 us for 100, 20 times as predicted: tile" in told and "no plan works" in told
    assert "4 operators: 1 surprises, 1 without an answer; measured over predicted 1.00 at the median" in told
    run(tmp_path, "--count", "4")
    assert edge.asked == ["0.0", "0.1", "0.2", "0.3"], "what is known is not timed again"
    assert capsys.readouterr().out == told


def test_the_exit_code_tells_that_nothing_surprises(edge, tmp_path):
    assert run(tmp_path, "--count", "1") == 0
    assert run(tmp_path, "--count", "2", "--seconds", "0") == 1, "work is left"


def test_the_slowest_is_told_first():
    rows = [{"case": f"c{n}", "seconds": n * 1e-3, "predicted": 1e-4, "plan": "p"} for n in (1, 3, 2)]
    assert [line.split(":")[0] for line in table(rows).splitlines()[:3]] == ["c3", "c2", "c1"]
