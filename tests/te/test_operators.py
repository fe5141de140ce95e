"""Reading topi's operators back gives what the TVM-free operators say."""

import csv
from pathlib import Path

import pytest

pytestmark = pytest.mark.te
pytest.importorskip("tvm.te")

from roller_tvm.ir.operators import OPERATORS, operator, parse_params  # noqa: E402
from roller_tvm.ir.pattern import pattern  # noqa: E402
from roller_tvm.te import read_te, te_operator  # noqa: E402

from ..expr.examples import EXAMPLES  # noqa: E402

TABLE = Path(__file__).parents[2] / "python" / "roller_osdi22_operators.csv"


def plan_relevant(expression):
    """All that a plan depends on, with positions in place of names."""
    inlined = [s.name for s in expression.prologues if not s.reduce]
    kept = [s for s in expression.stages if s.name not in inlined]
    position = {t.name: f"input {i}" for i, t in enumerate(expression.inputs)}
    position.update({s.name: f"stage {i}" for i, s in enumerate(kept)})
    result = []
    for stage in kept:
        number = {a.name: i for i, a in enumerate(stage.axes)}
        reads = [
            (
                position[a.tensor],
                expression.tensors[a.tensor].shape,
                a.guarded,
                tuple((sorted((number[n], c) for n, c in i.terms), i.const, i.opaque) for i in a.indices),
            )
            for a in expression.resolve(stage, inlined)
        ]
        axes = [(a.extent, a.kind, a.part_of and a.part_of[1]) for a in stage.axes]
        result.append((axes, reads, sorted(stage.ops), stage.combiner, stage.dtype))
    anchor = position[expression.anchor_name]
    return anchor, result, expression.flops, expression.io_bytes, pattern(expression)


@pytest.mark.parametrize(("name", "params"), EXAMPLES)
def test_topi_and_our_own_agree(name, params):
    tensors = te_operator(name, **params)
    reading = read_te(tensors)
    ours = operator(name, **params)
    assert plan_relevant(reading.expression) == plan_relevant(ours)
    assert [t.op.name for t in tensors[:-1]] == [t.name for t in ours.inputs]


def test_the_comparison_can_fail():
    base = dict(n=1, c=4, h=8, w=8, f=6, k=3)
    ours = plan_relevant(operator("conv2d_nchw", **base))
    for change in ({"stride": 2}, {"padding": 1}, {"dilation": 2}, {"f": 7}, {"relu": 1}, {"groups": 2}):
        assert plan_relevant(read_te(te_operator("conv2d_nchw", **{**base, **change})).expression) != ours
    assert plan_relevant(read_te(te_operator("conv2d_nhwc", **base)).expression) != ours


@pytest.mark.one_line("relay")
def test_the_operators_of_the_paper():
    with TABLE.open() as rows:
        operators = [(row["operator"], parse_params(row["params"])) for row in csv.DictReader(rows)]
    assert len(operators) == 119
    for name, params in operators:
        ours = operator(name, **params)
        assert plan_relevant(read_te(te_operator(name, **params)).expression) == plan_relevant(ours)


def test_every_operator_has_its_te():
    from roller_tvm.te.operators import _BUILDERS

    assert set(_BUILDERS) == set(OPERATORS)
