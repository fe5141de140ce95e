"""Vectors that choose by a condition, on either line: one for all of a vector's elements, or the negation of many."""

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.te

from tvm import te  # noqa: E402

from .lines import Operator  # noqa: E402

tir = tvm.tirx if hasattr(tvm, "tirx") else tvm.tir
SHAPE = (6, 128)


def where(condition):
    """Zero where a condition of a row's or an element's truth holds, else the number."""
    row, each = te.placeholder(SHAPE[:1], "int32", name="row"), te.placeholder(SHAPE, "int32", name="each")
    x = te.placeholder(SHAPE, "float32", name="x")
    zero = tir.const(0, "float32")
    out = te.compute(SHAPE, lambda i, j: tir.Select(condition(row[i], each[i, j]), zero, x[i, j]), name="out")
    return [row, each, x, out]


@pytest.mark.one_line
@pytest.mark.parametrize("condition", [
    lambda row, each: row > 1, lambda row, each: tir.Not(row > 1), lambda row, each: tir.Not(each > 1),
    lambda row, each: tir.And(tir.Not(each > 1), row > 1),
], ids=["of a row", "not of a row", "not of an element", "both"])  # fmt: skip
def test_vectors_choose(condition):
    operator = Operator(where(condition))
    plan = next(p for p in operator.plans("a100", 10) if p.programs[0].choice("vector", 1) > 1)
    operator.check(operator.emulated(plan), plan)


def test_vectors_of_truths_are_bytes():
    """TVM 0.27's code for CUDA stores two bytes each, over the neighbours' and beyond the end."""
    x = te.placeholder(SHAPE, "float32", name="x")
    operator = Operator([x, te.compute(SHAPE, lambda i, j: x[i, j] > tir.const(0, "float32"), name="out")])
    plan = next(p for p in operator.plans("a100", 10) if p.programs[0].choice("vector", 1) > 1)
    operator.check(operator.emulated(plan), plan)


def test_remainders_of_float16():
    x, y = (te.placeholder(SHAPE, "float16", name=name) for name in "xy")
    operator = Operator([x, y, te.compute(SHAPE, lambda i, j: tir.truncmod(x[i, j], y[i, j]), name="out")])
    plan = operator.plans("a100", 1)[0]
    operator.check(operator.emulated(plan), plan)
