"""Register tiles over the edge of an axis: where they are taken, where they cannot be, and what they cost."""

from dataclasses import replace

import pytest

from roller_tvm.ir.operators import matmul, operator
from roller_tvm.micro_perf.cpu_rates import CpuRates
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.planner import construct
from roller_tvm.recipes.cpu_tiles import may_pack, over_edge_vectors, register_tiles

from .devices import device
from .examples import over_edges


def geometry(expression):
    return Geometry.of(expression, expression.anchor_name)


@pytest.mark.parametrize("rows", [17, 197, 1021])
def test_prime_rows_come_close_to_even_ones(rows):
    odd = construct(matmul(m=rows, n=768, k=768), device("avx2")).best
    even = construct(matmul(m=rows + 24 - rows % 24, n=768, k=768), device("avx2")).best
    assert over_edges(odd.plan) == ["m"]
    assert odd.seconds / rows < 1.2 * even.seconds / (rows + 24 - rows % 24)


@pytest.mark.parametrize("rows", [16, 96, 192])
def test_rows_that_tiles_divide_have_no_edge(rows):
    for found in construct(matmul(m=rows, n=768, k=768), device("avx2"), top=10).plans:
        assert not over_edges(found.plan)


def test_an_image_of_a_prime_size():
    conv = operator("conv2d_nhwc", n=1, c=192, h=17, w=17, f=192, k=3, padding=1)
    best = construct(conv, device("avx2")).best.plan
    assert len(over_edges(best)) == 1 and over_edges(best)[0] in ("oh", "ow")


def test_a_core_has_one_chunk_of_rows_over_the_edge():
    """Each tile checks its place, which costs registers where chunks have few tiles."""
    spec, shared = device("avx2"), set()
    for found in construct(matmul(m=1021, n=512, k=256), spec, top=30).plans:
        (program,) = found.plan.programs
        chunk, tile = program.tile("l2"), program.tile("register")
        covered = -(-1021 // tile["m"]) * tile["m"]
        assert chunk["m"] % tile["m"] == 0 and chunk["m"] * spec.units >= covered and chunk["n"] % tile["n"] == 0
        shared.add(chunk["m"] < 1021)
    assert shared == {True, False}


def test_columns_in_whole_vectors():
    """Chunks of them may be cut: each tile is checked where it is."""
    spec, found = device("avx2"), construct(matmul(m=192, n=509, k=64), device("avx2"), top=30)
    even = construct(matmul(m=192, n=512, k=64), spec).best
    assert "n" in over_edges(found.best.plan) and found.best.seconds < 1.1 * even.seconds
    lanes = CpuRates.of(spec, geometry(matmul(m=192, n=509, k=64))).lanes
    chunks = set()
    for ranked in found.plans:
        program = ranked.plan.programs[-1]
        if program.recipe == "cpu.tiled" and "n" in over_edges(ranked.plan):
            assert program.tile("register")["n"] % lanes == 0
            chunks.add(program.tile("l2")["n"] < 509)
    assert True in chunks


def test_rows_and_columns_of_primes():
    best = construct(matmul(m=509, n=521, k=503), device("avx2")).best
    even = construct(matmul(m=504, n=528, k=503), device("avx2")).best
    assert over_edges(best.plan) == ["m", "n"] and best.seconds < 1.25 * even.seconds


def test_vectors_of_lanes_that_are_checked_have_no_edge():

    def tiles(expression, inlined=()):
        g = Geometry.of(expression, expression.anchor_name, inlined)
        return over_edge_vectors(g, CpuRates.of(device("avx2"), g))

    conv = operator("conv2d_nchw", n=1, c=16, h=13, w=13, f=16, k=3, padding=1)
    assert tiles(conv) == [8] and tiles(matmul(m=192, n=509, k=64)) == [8, 16, 24, 32]
    assert tiles(conv, inlined=(conv.stages[0].name,)) == []
    assert tiles(matmul(m=192, n=509, k=64, layout="NT")) == [8, 16, 24, 32]


def test_where_tvm_alone_builds_columns_have_no_edge():
    """A vector whose lanes are checked one by one is none."""
    for found in construct(matmul(m=192, n=509, k=64), device("avx2").built_by_tvm(), top=10).plans:
        assert over_edges(found.plan) == []


def test_a_packed_constant_has_no_edge():
    """Its layout is made of the loops' digits: 197 rows are no tiles of 6."""
    product = matmul(m=197, n=64, k=64)
    rows = next(t.name for t in product.inputs if t.shape == (197, 64))
    product = replace(product, inputs=tuple(replace(t, constant=t.name == rows) for t in product.inputs))
    for found in construct(product, device("avx2"), top=10).plans:
        assert over_edges(found.plan) == []


def test_what_stands_over_an_edge_is_not_copied():
    g = geometry(matmul(m=197, n=768, k=2048))
    a, b = (op.name for op in g.operands)
    assert may_pack(g, (99, 96, 2048), (3, 24, 1), frozenset({b}))
    assert not may_pack(g, (99, 96, 2048), (3, 24, 1), frozenset({a, b}))
    assert may_pack(g, (197, 96, 2048), (1, 24, 1), frozenset({a, b}))


def test_only_who_asks_gets_them():
    """Lanes are merged in tiles that divide their axes."""
    from roller_tvm.recipes.recipe import Context

    expression = matmul(m=197, n=768, k=64)
    ctx = Context(geometry(expression), device("avx2"), None)
    rates = CpuRates.of(device("avx2"), ctx.geometry)
    assert set(register_tiles(ctx, rates)[0].tolist()) == {1}
    assert 3 in register_tiles(ctx, rates, over=True)[0]


def test_the_explanation_tells_what_is_computed_for_nothing():
    from roller_tvm.planner.explain import explain

    construction = construct(matmul(m=197, n=768, k=768), device("avx2"))
    program = construction.best.plan.programs[-1]
    covered = -(-197 // program.tile("register")["m"]) * program.tile("register")["m"]
    assert f"tiles cover {covered} of the 197 along 'm' (rule 4)" in explain(construction, device("avx2"))
