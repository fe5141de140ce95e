"""plan_costs.py: plans of one operator are built, checked and measured, on the line that is here."""

import re

import pytest

from roller_bench.figures import main, plans

pytestmark = pytest.mark.te
pytest.importorskip("tvm.te")


@pytest.mark.one_line("relax")
@pytest.mark.slow
def test_plans_of_a_softmax(capsys):
    assert main(["plan-costs", "softmax", "shape=8x64", "--plans", "3"]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"^ +[\d.]+ +[\d.]+ +[\d.]+  .*cpu\.", out, re.MULTILINE)) >= 3
    assert "rank correlation" in out and "WRONG" not in out


@pytest.mark.slow
def test_a_wrong_answer_is_told_and_makes_it_fail(capsys, monkeypatch):
    monkeypatch.setattr(plans, "why_wrong", lambda kernel: "far off")
    assert main(["plan-costs", "relu", "shape=64x64", "--plans", "1"]) == 1
    assert "WRONG ANSWER" in capsys.readouterr().out


def test_an_operator_that_is_not_known_is_named(capsys):
    assert main(["plan-costs", "no_such_operator", "n=1"]) == 2
    assert "no_such_operator" in capsys.readouterr().err
