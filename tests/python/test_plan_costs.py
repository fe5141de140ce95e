"""plan_costs.py: plans of one operator are built, checked and measured, on the line that is here."""

import re

import pytest

from python import plan_costs

pytestmark = pytest.mark.te
pytest.importorskip("tvm.te")


@pytest.mark.slow
def test_plans_of_a_softmax(capsys):
    assert plan_costs.main(["softmax", "shape=8x64", "--plans", "3"]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"^ +[\d.]+ +[\d.]+ +[\d.]+  .*cpu\.", out, re.MULTILINE)) >= 3
    assert "rank correlation" in out and "WRONG" not in out


@pytest.mark.slow
def test_a_wrong_answer_is_told_and_makes_it_fail(capsys, monkeypatch):
    monkeypatch.setattr(plan_costs, "TOLERANCE", -1.0)
    assert plan_costs.main(["relu", "shape=64x64", "--plans", "1"]) == 1
    assert "WRONG ANSWER" in capsys.readouterr().out


def test_an_operator_that_is_not_known_is_named(capsys):
    assert plan_costs.main(["no_such_operator", "n=1"]) == 2
    assert "no_such_operator" in capsys.readouterr().err
