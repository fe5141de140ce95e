"""over_edge.py and padded_vectors.py: plans of two kinds are built, checked and timed side by side, on either line."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

pytestmark = pytest.mark.te
pytest.importorskip("tvm.te")
SMALL = {
    "over_edge": "matmul m=19 n=24 k=8",
    "padded_vectors": "max_pool2d_nchw n=1 c=2 h=11 w=19 k=3 stride=2 padding=1",
}


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "python"))

    def run(name, operators, *words):
        monkeypatch.setattr(sys, "argv", [name, *words])
        module = import_module(name)
        return module.beside(module.__doc__, operators, ("with", "without"), module.both)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_both_kinds_of_plans_are_right_and_timed(name, script, capsys):
    assert script(name, (SMALL[name], "relu shape=7"), "=19") == 0
    operator, times, ours, others, mean = capsys.readouterr().out.splitlines()
    assert operator == SMALL[name] and "cpu." in ours and "cpu." in others
    told = re.search(r"with ([\d. ]+) us, without ([\d. ]+) us: ([\d.]+); .* largest error ([\d.e+-]+)", times)
    best = [min(map(float, told[n].split())) for n in (1, 2)]
    least, most = ((best[1] + r) / max(best[0] - r, 0.01) for r in (-0.06, 0.06))  # tenths of us are told
    assert least - 0.01 <= float(told[3]) <= most + 0.01 and float(told[4]) < 1e-5
    assert mean.endswith(told[3])


@pytest.mark.slow
def test_a_wrong_answer_makes_it_fail(script, monkeypatch):
    monkeypatch.setattr(import_module("plans_beside"), "TOLERANCE", -1.0)
    assert script("over_edge", (SMALL["over_edge"],)) == 1


def test_words_that_no_operator_holds(script, capsys):
    with pytest.raises(SystemExit):
        script("over_edge", ("relu shape=7",), "softmax")
    assert "no operator holds softmax" in capsys.readouterr().err
