"""Products along whose vectors an operand has rows: copied and turned, where schedules have words for it."""

import pytest

from roller_tvm.ir.operators import parse_operator
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.planner import construct
from roller_tvm.recipes.cpu_readings import turned_operands
from roller_tvm.roller.features import Features

from .devices import device

TURNED = Features(turned_copies=True)


def best(text, features):
    return construct(parse_operator(text.split()), device("avx2"), 1, features).plans[0]


@pytest.mark.parametrize("text", [
    "batch_matmul b=12 m=128 n=128 k=64 layout=NT", "matmul m=1024 n=512 k=512 layout=NT bias=1 relu=1",
])  # fmt: skip
def test_rows_are_turned_where_they_are_used_often(text):
    turned, gathered = best(text, TURNED), best(text, Features())
    assert turned.plan.programs[0].staged == ("B",) and turned.seconds < gathered.seconds
    assert all(not p.staged or p.recipe != "cpu.tiled" for p in gathered.plan.programs), "no line but one can say it"


def test_what_is_used_once_is_not_copied():
    plan = best("matmul m=1 n=1024 k=1024 layout=NT", TURNED).plan
    assert all("B" not in program.staged for program in plan.programs)


def test_only_what_is_gathered_is_turned():
    def operands(text):
        expression = parse_operator(text.split())
        return [op.name for op in turned_operands(Geometry.of(expression, expression.stages[0].name))]

    assert operands("matmul m=64 n=64 k=64 layout=NT") == ["B"]
    assert operands("matmul m=64 n=64 k=64 layout=NN") == operands("matmul m=64 n=64 k=64 layout=TN") == []
    assert operands("matmul m=1 n=64 k=64 layout=NT") == [], "nothing uses it again"


def test_copies_are_turned_where_tensorir_says_so():
    assert Features.of_tensor_ir(device("avx2")).turned_copies and not Features.of_te(device("avx2")).turned_copies
