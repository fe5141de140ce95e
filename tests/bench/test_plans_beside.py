"""over-edge and padded-vectors: plans of two kinds are built, checked and timed side by side, on either line."""

import re

import pytest

from roller_bench.figures import main, plans

pytestmark = pytest.mark.te
pytest.importorskip("tvm.te")
SMALL = {
    "over-edge": "matmul m=19 n=24 k=8",
    "padded-vectors": "max_pool2d_nchw n=1 c=2 h=11 w=19 k=3 stride=2 padding=1",
}


KINDS = {"over-edge": plans.with_and_without_edges, "padded-vectors": plans.whole_vectors_and_plain}


def beside(name, operators, *words):
    return plans.beside(words, operators, ("with", "without"), KINDS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_both_kinds_of_plans_are_right_and_timed(name, capsys):
    assert beside(name, (SMALL[name], "relu shape=7"), "=19") == 0
    operator, times, ours, others, mean = capsys.readouterr().out.splitlines()
    assert operator == SMALL[name] and "cpu." in ours and "cpu." in others
    told = re.search(r"with ([\d. ]+) us, without ([\d. ]+) us: ([\d.]+); .* largest error ([\d.e+-]+)", times)
    best = [min(map(float, told[n].split())) for n in (1, 2)]
    least, most = ((best[1] + r) / max(best[0] - r, 0.01) for r in (-0.06, 0.06))  # tenths of us are told
    assert least - 0.01 <= float(told[3]) <= most + 0.01 and float(told[4]) < 1e-5
    assert mean.endswith(told[3])


@pytest.mark.slow
def test_a_wrong_answer_makes_it_fail(monkeypatch):
    monkeypatch.setattr(plans, "TOLERANCE", -1.0)
    assert beside("over-edge", (SMALL["over-edge"],)) == 1


@pytest.mark.parametrize("name", SMALL)
def test_words_that_no_operator_holds(name, capsys):
    assert main([name, "softmax"]) == 2
    assert "no operator holds softmax" in capsys.readouterr().err
