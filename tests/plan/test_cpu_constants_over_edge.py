"""Constants whose columns no vectors divide: in vectors over the edge, packed with zeros behind it or as stored."""

from dataclasses import replace
from math import prod

import pytest

from roller_tvm.ir.operators import matmul, operator
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.planner import construct
from roller_tvm.planner.lower import lower
from roller_tvm.recipes.cpu_readings import over_edge_search
from roller_tvm.recipes.recipe import Context
from roller_tvm.roller.features import NO_FEATURES as NONE
from roller_tvm.roller.features import Features
from roller_tvm.roller.steps import Pack

from .devices import device
from .examples import over_edges


def with_weights(expression):
    """The second operand known when the module is built."""
    inputs = tuple(replace(t, constant=n == 1) for n, t in enumerate(expression.inputs))
    return replace(expression, inputs=inputs)


def packs(plan):
    return [step for step in lower(plan) if isinstance(step, Pack)]


@pytest.mark.parametrize("n", [1000, 521, 700])
def test_columns_over_the_edge_are_read_as_they_are(n):
    best = construct(with_weights(matmul(m=96, n=n, k=256)), device("avx512")).best
    assert "n" in over_edges(best.plan) and not packs(best.plan)
    even = construct(with_weights(matmul(m=96, n=-(-n // 16) * 16, k=256)), device("avx512")).best
    assert best.seconds < 1.35 * even.seconds and packs(even.plan)


@pytest.mark.parametrize("m, n", [(96, 1000), (96, 521), (1, 50257)])
def test_with_zeros_behind_their_edge_they_are_packed(m, n):
    expression = with_weights(matmul(m=m, n=n, k=256))
    best, stored = (construct(expression, device("avx512"), 1, f).best for f in (Features(padded_constants=True), NONE))
    assert over_edges(best.plan) == ["n"] and best.seconds <= stored.seconds
    (pack,) = packs(best.plan)
    lengths = [length for dim, length in zip(pack.dims, pack.lengths, strict=True) if dim == 1]
    assert prod(lengths) == -(-n // (tile := best.plan.programs[-1].tile("register")["n"])) * tile


def test_weights_read_twice_are_not_packed():
    """x W + W: the sum reads them as they are stored."""
    expression = with_weights(matmul(m=96, n=1000, k=96))
    weights, other = expression.inputs[1], expression.stages[-1]
    again = replace(other.reads[0], tensor=weights.name)
    twice = replace(expression, stages=(*expression.stages[:-1], replace(other, reads=(again, *other.reads[1:]))))
    assert not packs(construct(twice, device("avx512"), 1, Features(padded_constants=True)).best.plan)


def test_channels_of_a_convolution():
    conv = with_weights(operator("conv2d_nhwc", n=1, c=512, h=13, w=13, f=1000, k=1))
    assert "f" in over_edges(construct(conv, device("avx512")).best.plan)


@pytest.mark.parametrize("on, n", [("avx512", 1008), ("avx2", 1000)])
def test_where_vectors_divide_the_columns_weights_are_packed(on, n):
    expression = with_weights(matmul(m=96, n=n, k=256))
    g = Geometry.of(expression, expression.anchor_name)
    packing = Features(padded_constants=True)
    assert over_edge_search(Context(g, device(on), None, features=packing)) is None
    for found in construct(expression, device(on), 6, packing).plans:
        assert "n" not in over_edges(found.plan)
        assert packs(found.plan) or found.plan.programs[-1].recipe != "cpu.tiled"


def test_plans_for_tvm_alone_have_none():
    expression = with_weights(matmul(m=96, n=1000, k=256))
    for found in construct(expression, device("avx512").built_by_tvm(), top=10).plans:
        assert "n" not in over_edges(found.plan)


def test_rows_over_the_edge_where_packing_needs_whole_tiles():
    """`relay.build` packs weights for no tile over an edge: priced as if it did, 197 rows took five times as long."""
    expression = with_weights(matmul(m=197, n=768, k=768))
    whole = construct(expression, device("avx512")).best
    best = construct(expression, device("avx512"), 1, Features(padded_constants=True)).best
    assert over_edges(best.plan) == ["m"] and packs(best.plan) and whole.seconds > 1.1 * best.seconds
