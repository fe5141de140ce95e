"""Rows that no vectors divide: when they are summed up in a cache, on how many cores, and what that costs."""

from dataclasses import replace

import pytest

from roller_tvm.ir.operators import matmul, operator
from roller_tvm.micro_perf.cpu_constants import CALL
from roller_tvm.micro_perf.cpu_rates import CpuRates
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.planner import construct
from roller_tvm.recipes.cpu_axpy import axpy_cost

from .devices import device


def recipes(expression, on=None, top=6):
    plans = construct(expression, on or device("avx2"), top=top).plans
    return [[p.recipe for p in ranked.plan.programs] for ranked in plans]


@pytest.mark.parametrize("n", [521, 67, 509, 134, 13])
def test_a_prime_is_summed_up_in_the_cache(n):
    """Where no vector may stand over the edge: TVM alone would check it lane by lane."""
    product = matmul(m=127, n=n, k=61)
    assert recipes(product, device("avx2").built_by_tvm())[0] == ["cpu.axpy"]
    assert recipes(product)[0] == ["cpu.tiled"]


@pytest.mark.parametrize("n", [512, 1000, 48, 7])  # vectors divide it, or it is one
def test_what_vectors_divide_is_not(n):
    assert ["cpu.axpy"] not in recipes(matmul(m=127, n=n, k=61), top=40)


def test_why_not_is_told():
    rejections = construct(matmul(m=127, n=512, k=61), device("avx2")).rejections
    (told,) = {str(r) for r in rejections if "rows of 'n'" in str(r)}
    assert told == "execution unit: needs rows of 'n' that vectors do not divide, limit 512 (take recipe cpu.tiled)"


@pytest.mark.parametrize(("n", "held"), [(6143, True), (6151, False), (100_003, False)])
def test_a_row_that_the_cache_cannot_hold_is_not(n, held):
    """Three quarters of 32 KiB: 6,144 sums of float32."""
    rejections = construct(matmul(m=3, n=n, k=5), device("avx2")).rejections
    told = [r for r in rejections if r.rule == device("avx2").levels[-2].name and r.remedy == "split the axis"]
    assert held == (not told)


def test_weights_along_the_reduction_have_no_rows():
    assert ["cpu.axpy"] not in recipes(matmul(m=127, n=521, k=61, layout="NT"), top=40)


def test_rows_are_shared_out_over_the_cores():
    spec = device("avx2").built_by_tvm()
    plan = construct(operator("conv2d_nhwc", n=1, c=61, h=53, w=53, f=67, k=3, padding=1), spec).best.plan
    program = plan.programs[-1]
    share, row = program.tile("l2"), program.tile("register")
    assert program.recipe == "cpu.axpy" and program.choice("parallel") >= 1
    assert share["f"] == row["f"] == 67 and row["oh"] == row["ow"] == 1
    assert share["oh"] * share["ow"] >= 53 * 53 / spec.units


def test_a_row_costs_its_vectors_and_one_by_one_what_is_left():
    def cost(n):
        g = Geometry.of(matmul(m=8, n=n, k=64), "matmul")
        return axpy_cost(g, CpuRates.of(device("avx2"), g)).cycles(64) / 64

    assert cost(256) < cost(257) < cost(263) < cost(287)  # 1, 7, 31 left
    assert cost(287) > cost(288)
    assert cost(512 + 9) < 2 * cost(256 + 9)


def test_every_outer_axis_of_more_than_one_iteration_may_be_the_last_parallel_one():
    spec = device("avx2").built_by_tvm()

    def parallel(expression):
        programs = [ranked.plan.programs[-1] for ranked in construct(expression, spec, top=40).plans]
        return {program.choice("parallel") for program in programs if program.recipe == "cpu.axpy"}

    assert parallel(operator("conv2d_nhwc", n=1, c=61, h=53, w=53, f=67, k=3, padding=1)) == {2, 3}
    assert parallel(matmul(m=2, n=509, k=61)) == {1}


@pytest.mark.parametrize(("operand", "calls"), [("A", 1), ("B", 257)])
def test_an_operand_that_is_computed_on_the_way_costs_its_calls(operand, calls):
    """One of a row's two operands is an element, the other as long as the row."""
    g = Geometry.of(matmul(m=8, n=257, k=64), "matmul")
    calling = tuple(replace(op, functions=(("special", 1),)) if op.name == operand else op for op in g.operands)
    rates = CpuRates.of(device("avx2"), g)
    plain, called = (axpy_cost(made, rates).cycles(64) for made in (g, replace(g, operands=calling)))
    assert called - plain == pytest.approx(64 * calls * CALL)
