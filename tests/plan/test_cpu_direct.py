"""Recipe cpu.direct: what runs in parallel where vectors do not divide the last axis."""

from dataclasses import replace
from math import ceil, prod

import pytest

from roller_tvm.ir.affine import Index
from roller_tvm.ir.operators import matmul, operator
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.planner import construct
from roller_tvm.recipes.cpu_direct import chunk_of, vectorisable
from roller_tvm.recipes.recipe import Context
from roller_tvm.roller.partition import partition

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


def rows_of(*shape):
    """Context of an addition of rows: its axes are not fused."""
    expression = operator("add", shape=shape, other=shape[-1:])
    nest = partition(expression)[-1]
    return Context(Geometry.of(expression, nest.anchor, nest.inlined, nest.output), device("avx2"), nest)


@pytest.mark.parametrize(("shape", "outer", "vector", "units", "chunk"), [
    ((6, 5, 1024), 0, 8, 0, (6, 5, 1024)), ((6, 5, 1024), 1, 8, 0, (1, 5, 1024)), ((6, 5, 1024), 3, 8, 0, (1, 1, 8)),
    ((6, 5, 1024), 3, 0, 0, None),  # elements one by one are no task
    ((6, 5, 8), 3, 8, 0, None), ((6, 5, 8), 2, 8, 0, (1, 1, 8)),  # one vector is no loop
    ((6, 1, 1024), 1, 8, 0, (1, 1, 1024)), ((6, 1, 1024), 2, 8, 0, None),  # nor is one iteration, as the last of them
    ((1, 6, 1024), 1, 8, 0, None), ((1, 6, 1024), 2, 8, 0, (1, 1, 1024)), ((6, 2, 1024), 2, 8, 0, (1, 1, 1024)),
    ((1, 1, 1022), 3, 0, 4, (1, 1, 256)), ((1, 1, 1022), 2, 0, 4, None),  # 1022 elements for 4 cores
])  # fmt: skip
def test_tasks_are_iterations_of_the_outer_loops(shape, outer, vector, units, chunk):
    assert chunk_of(rows_of(*shape).geometry, outer, vector, units) == chunk


@pytest.mark.parametrize(("length", "right"), [
    (64, True), (12, True), (44, True), (7, True), (2, True), (33, False), (26, False), (11, False), (1, False),
])  # fmt: skip
def test_vectors_fill_half_a_register_or_are_the_whole_row(length, right):
    """Registers of 8: of 12 elements vectors of 6, of 44 of 4, of 33 of 3, of 26 of 2."""
    ctx = rows_of(3, length)
    assert (vectorisable(ctx, ctx.geometry.spatial[-1]) is None) == right


@pytest.mark.parametrize("blocks", [4, 8, 16])
def test_vectors_end_with_the_blocks_of_what_they_read(blocks):
    """Rows of 192 read blocks of channels, a row of them in each: longer vectors would be put together lane by lane."""
    rows = operator("transpose", shape=(784, 192), perm=(0, 1))
    source, stage = rows.inputs[0], rows.stages[0]
    (read,), (pixel, _) = stage.reads, stage.axes
    indices = (Index.whole(), Index.axis(pixel.name), Index.whole())
    rows = replace(
        rows, inputs=(replace(source, shape=(192 // blocks, 784, blocks)),),
        stages=(replace(stage, reads=(replace(read, indices=indices),)),),
    )  # fmt: skip
    best = construct(rows, device("avx512")).best.plan.programs[-1]
    assert 1 < best.choice("vector") <= blocks
