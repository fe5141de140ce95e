"""Suites: what comes with the package is whole, and mistakes in a user's are named by line."""

import csv
from pathlib import Path

import pytest

from roller_bench.cases import Case, choose, load_suite, suites
from roller_tvm.errors import BadInput
from roller_tvm.ir.operators import parse_params
from roller_tvm.planner import construct

from ..plan.devices import device

PAPER = Path(__file__).parents[2] / "python" / "roller_osdi22_operators.csv"


@pytest.mark.parametrize("name", suites())
def test_every_operator_of_a_suite_is_one(name):
    cases = load_suite(name)
    assert all(case.expression().stages for case in cases)
    assert len({c.digest for c in cases}) == len({(c.operator, c.params) for c in cases})


def test_the_paper_as_it_is_and_at_batch_1():
    with PAPER.open() as rows:
        theirs = [(r["id"], r["operator"], r["params"]) for r in csv.DictReader(rows)]
    paper, small = load_suite("paper"), load_suite("paper_batch1")
    assert [(c.id, c.operator, c.params) for c in paper] == theirs
    assert [(c.id, c.operator) for c in small] == [(c.id, c.operator) for c in paper]
    for one, batch in zip(small, paper, strict=True):
        changed = {k for k, v in parse_params(one.params).items() if parse_params(batch.params)[k] != v}
        assert changed <= {"n", "m", "shape"} and changed
        assert one.expression().io_bytes < batch.expression().io_bytes


def test_what_the_issue_asks_for_is_there():
    groups = {c.group for name in ("networks", "awkward", "kinds") for c in load_suite(name)}
    assert {"resnet50", "mobilenet_v2", "bert_base", "lstm", "prime", "1000 wide", "skinny", "long k", "tiny",
            "depthwise", "softmax", "layer norm", "attention"} <= groups  # fmt: skip


@pytest.mark.parametrize(
    ("group", "multiplications", "products"),
    [("resnet50", 4.09e9, 54), ("mobilenet_v2", 300e6, 53), ("bert_base", 11.17e9, 96)],
)
def test_a_network_has_all_its_layers(group, multiplications, products):
    """As published: He et al. 2016 (strides in the 3x3), Sandler et al. 2018; BERT's 85 M weights at 128 tokens, and
    the products of its attention."""
    cases = [c for c in load_suite("networks") if c.group == group]
    heavy = [c for c in cases if c.operator.startswith(("conv", "depthwise", "dense", "batch_matmul"))]
    assert sum(c.weight * c.expression().flops for c in heavy) / 2 == pytest.approx(multiplications, rel=0.03)
    assert sum(c.weight for c in heavy) == products


def test_awkward_operators_all_have_plans():
    for case in load_suite("awkward"):
        assert construct(case.expression(), device("avx512"), 1).plans, case.id


def test_a_case_is_the_same_whatever_it_is_called():
    one, other = Case("a", "matmul", "m=8 n=4 k=2"), Case("b", "matmul", "k=2 m=8 n=4", "group", 7)
    assert one.digest == other.digest != Case("c", "matmul", "m=8 n=4 k=3").digest
    assert Case.from_json(other.to_json()) == other


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,params\nA,m=1\n", "no column operator"),
        ("id,operator,params\nA,matmul,m=8 n=8\n", "line 2"),
        ("id,operator,params\nA,relu,shape=8\nA,relu,shape=9\n", "line 3: the id A"),
        ("id,operator,params\nA,matmull,m=8\n", "unknown operator"),
        ("id,operator,params,weight\nA,relu,shape=8,often\n", "'weight'"),
        ("id,operator,params\n", "holds no operator"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    file = tmp_path / "own.csv"
    file.write_text(text)
    with pytest.raises(BadInput, match=message):
        load_suite(str(file))


def test_choosing():
    cases = load_suite("networks")
    assert [c.id for c in choose(cases, "bert.up")] == ["bert.up"]
    assert {c.group for c in choose(cases, "lstm")} == {"lstm"}
    with pytest.raises(BadInput, match="no case"):
        choose(cases, "lstmm")
    with pytest.raises(BadInput, match="choose from .*paper"):
        load_suite("papers")
