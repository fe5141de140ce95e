"""Vectors of CPU plans: a register or less, or as many registers as LLVM halves a vector into."""

import pytest

from roller_tvm.ir.operators import operator, parse_operator
from roller_tvm.micro_perf.cpu_rates import CpuRates
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.planner import construct
from roller_tvm.recipes.cpu_tiles import register_tiles, single_vectors, vector_tiles
from roller_tvm.recipes.recipe import Context

from .devices import device

LANES = {"avx2": 8, "avx512": 16}
EXPRESSIONS = {
    "depthwise": lambda n: operator("depthwise_conv2d_nhwc", n=1, c=n, h=28, w=28, k=3, padding=1),
    "conv": lambda n: operator("conv2d_nhwc", n=1, c=n, h=14, w=14, f=n, k=3, padding=1),
    "matmul": lambda n: operator("matmul", m=64, n=n, k=128),
    "pool": lambda n: operator("max_pool2d_nchw", n=1, c=8, h=n, w=n, k=3, padding=1),
}


def vector_of(program, last):
    """Elements that one vector of the anchor has; 0 where the compiler makes them."""
    if program.recipe == "cpu.direct":
        return program.choice("vector")
    return program.choice("vector", program.tile("register")[last])


@pytest.mark.parametrize("on", LANES)
@pytest.mark.parametrize("extent", [7, 13, 17, 23, 24, 40, 56, 67, 72, 88, 120, 144, 196, 1000])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_none_that_llvm_takes_apart(name, extent, on):
    expression, lanes = EXPRESSIONS[name](extent), LANES[on]
    seen = 0
    for ranked in construct(expression, device(on), top=40).plans:
        for program in ranked.plan.programs:
            if program.recipe not in ("cpu.tiled", "cpu.window", "cpu.direct"):
                continue
            last = [a.name for a in expression.stage(program.anchor).spatial if a.extent > 1][-1]
            vector, seen = vector_of(program, last), seen + 1
            halved = (2 * lanes, 4 * lanes) if program.recipe == "cpu.direct" else ()
            assert vector <= lanes or vector in halved, str(program)
    assert seen


@pytest.mark.parametrize("lanes", LANES.values())
def test_lengths_divide_the_axis(lanes):
    for extent in range(1, 400):
        rows, singles = vector_tiles(extent, lanes, 4, 0.5), single_vectors(extent, lanes, 4)
        assert rows and singles and all(extent % e == 0 for e in (*rows, *singles))
        assert singles == sorted(singles, reverse=True) and rows == sorted(rows)
        if extent % lanes == 0:
            assert all(e % lanes == 0 for e in rows) and singles[0] % lanes == 0, "whole registers where they divide"


@pytest.mark.parametrize("on, wide, plain", [("avx2", 64, 32), ("avx512", 256, 128)])
@pytest.mark.parametrize("text", ["reduce_sum shape=512x2048 axis=0", "matmul m=1 n=2048 k=512"])
def test_runs_that_each_begin_in_another_page_are_long(text, on, wide, plain):
    """Rows of 8 KiB: prefetchers find each run anew."""
    short = text.replace("2048", "512")  # several rows a page
    for words, expected in ((text, wide), (short, plain)):
        expression, cpu = parse_operator(words.split()), device(on)
        g = Geometry.of(expression, expression.anchor.name)
        tile = register_tiles(Context(g, cpu, None), CpuRates.of(cpu, g))[:, 0]
        assert tile[g.vector_axis] == expected


@pytest.mark.parametrize(("dtype", "longest"), [("float16", 32), ("float32", 64)])
def test_vectors_of_short_floats_fill_one_register(dtype, longest):
    """LLVM computes them in float32, and takes longer ones apart: 2 s of code for 128 elements."""
    plans = construct(operator("relu", shape=(4, 4096), dtype=dtype), device("avx512"), top=20).plans
    vectors = [p.choice("vector") for r in plans for p in r.plan.programs if p.recipe == "cpu.direct"]
    assert max(vectors) == longest
