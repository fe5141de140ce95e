"""Loop nests: every stage is computed once, by its own nest or in place."""

import pytest
from hypothesis import given, settings

from roller_tvm.ir.operators import parse_operator
from roller_tvm.roller.partition import partition, store_guarded, store_rearranged

from ..expr.strategies import operators
from ..sampling import examples

STORES = [None, store_guarded, store_rearranged]


@settings(max_examples=examples(200), deadline=None)
@given(operators())
def test_every_stage_is_computed_exactly_once(expression):
    for store in STORES:
        nests = partition(expression, store)
        roots = [n.anchor for n in nests] + [n.output for n in nests if n.output != n.anchor]
        assert len(roots) == len(set(roots))
        inlined = {name for n in nests for name in n.inlined}
        assert not inlined & set(roots)
        assert inlined | set(roots) == {s.name for s in expression.stages}
        assert {s.name for s in expression.outputs} <= {n.output for n in nests}
        assert {s.name for s in expression.reductions} <= {n.anchor for n in nests}


@settings(max_examples=examples(200), deadline=None)
@given(operators())
def test_nests_run_after_what_they_read(expression):
    for store in STORES:
        stored = {t.name for t in expression.inputs}
        for nest in partition(expression, store):
            own = {nest.anchor, nest.output, *nest.inlined}
            for name in own:
                for access in expression.stage(name).reads:
                    assert access.tensor in own or access.tensor in stored
            stored.add(nest.output)


def shape_of(words, store=None):
    return [(n.anchor, n.output, n.inlined) for n in partition(parse_operator(words.split()), store)]


def test_what_is_fused_and_what_is_not():
    conv = "conv2d_nchw n=1 c=4 h=8 w=8 f=4 k=3 padding=1 bias=1 relu=1"
    assert shape_of(conv) == [("conv2d", "relu", ("pad", "bias_add"))]
    assert shape_of(conv, store_guarded) == [("pad", "pad", ()), ("conv2d", "relu", ("bias_add",))]
    # Windows that do not overlap read nothing twice: nothing is gained by storing.
    pool = "max_pool2d n=1 c=4 h=6 w=6 k=2 stride=2 padding=1"
    assert shape_of(pool, store_guarded) == shape_of(pool) == [("pool_max", "pool_max", ("pad",))]


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax_keeps_its_two_reductions_apart(axis):
    nests = shape_of(f"softmax shape=4x5x6 axis={axis}")
    assert [n[:2] for n in nests] == [("max", "max"), ("sum", "sum"), ("norm", "norm")]
    # The exponential is cheaper to compute twice than to store.
    assert [n[2] for n in nests] == [(), ("exp",), ("exp",)]
