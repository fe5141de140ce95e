"""Recipe cpu.direct: what runs in parallel where vectors do not divide the last axis."""

from dataclasses import replace
from math import ceil, prod

import pytest

from roller_tvm.ir.operators import matmul, operator
from roller_tvm.planner import construct

from .devices import device


@pytest.mark.parametrize("shape", [(1009, 997), (2, 257, 257), (1, 1, 521, 521), (1009,)])
def test_the_only_loop_is_shared_by_the_cores(shape):
    """Elementwise: axes are fused into one, which no vector divides."""
    spec = device("avx2")
    plans = construct(operator("relu", shape=shape), spec, 10).plans
    programs = [ranked.plan.programs[-1] for ranked in plans]
    serial = next(r for r, p in zip(plans, programs, strict=True) if not p.choice("parallel"))
    shared = next(r for r, p in zip(plans, programs, strict=True) if p.choice("parallel"))
    chunk = shared.plan.programs[-1].tile("l2")
    assert prod(e for _, e in chunk.extents) == ceil(prod(shape) / spec.units)
    assert prod(shape) < 10_000 or shared.seconds < 0.5 * serial.seconds


def test_a_loop_among_others_stays_whole():
    """Of rows and columns the rows run in parallel: fused with them, columns would be divided and taken modulo."""
    plans = construct(operator("add", shape=(67, 997), other=(997,)), device("avx2"), 10).plans
    assert {p.plan.programs[-1].choice("parallel") for p in plans} == {0, 1}


def test_vectors_and_their_loop_are_as_before():
    program = construct(operator("relu", shape=(64, 1024)), device("avx2")).best.plan.programs[-1]
    assert program.choice("vector") >= 8 and program.choice("parallel") == 1


@pytest.mark.parametrize("k, n", [(4096, 1024), (3072, 768), (4096, 4096), (2048, 11008), (11008, 4096)])
@pytest.mark.parametrize("name", ["avx2", "avx512"])
def test_one_row_by_weights_streams_packed_panels_on_every_core(name, k, n):
    """As stored, weights would be read in short runs from page to page; a core alone has its share of the memory."""
    spec, product = device(name), matmul(m=1, n=n, k=k)
    inputs = tuple(replace(t, constant=t.name == "B") for t in product.inputs)
    best = construct(replace(product, inputs=inputs), spec).best
    program = best.plan.programs[-1]
    assert program.recipe == "cpu.tiled"
    assert ceil(n / program.tile("l2")["n"]) >= spec.units


@pytest.mark.parametrize("shape, loops", [((6, 5, 1021), 2), ((6, 1, 1021), 1), ((1, 6, 1021), 2), ((1, 1, 1021), 1)])
def test_no_loop_of_one_iteration_is_the_last_in_parallel(shape, loops):
    """As many loops as there are iterations to share; of a row alone its elements. Two operands: no axes are fused."""
    other = tuple(e if n == 2 else 1 for n, e in enumerate(shape))
    found = construct(operator("add", shape=shape, other=other), device("avx2"), 20).plans
    most = max(p.plan.programs[-1].choice("parallel") for p in found)
    last = [a.extent for a in found[0].plan.expression.anchor.spatial]
    assert most <= loops and (most == 0 or last[most - 1] > 1)
