"""Which stages share rows, which are kept for a row, and when that is the better plan."""

from dataclasses import replace

import pytest

from roller_tvm.ir import Access, Axis, Index, Stage, Tensor, TensorExpression
from roller_tvm.ir.operators import layer_norm, matmul, operator, softmax
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.planner import construct
from roller_tvm.recipes.lane_nests import chain_splits, lane_splits
from roller_tvm.recipes.row_nests import row_nest

from .devices import device


def test_softmax_keeps_what_is_read_again():
    nest = row_nest(softmax(shape=(6, 4, 40)))
    assert (nest.kept, nest.output, nest.rows, nest.inlined) == (("max", "exp", "sum"), "norm", 2, ())


def test_an_axis_of_one_element_is_read_at_it_or_at_0():
    expression = softmax(shape=(6, 1, 40))
    assert row_nest(expression).rows == 2
    stages = []
    for stage in expression.stages:  # as keepdims leaves it
        reads = [replace(a, indices=tuple(Index.of({}) if i == Index.axis("i1") else i for i in a.indices))
                 for a in stage.reads]  # fmt: skip
        stages.append(replace(stage, reads=tuple(reads)))
    assert row_nest(replace(expression, stages=tuple(stages))).rows == 2


def test_stages_that_call_nothing_are_computed_in_place():
    expression = softmax(shape=(6, 40))
    cheap = tuple(replace(s, ops=(("add", 1),)) if s.name == "exp" else s for s in expression.stages)
    nest = row_nest(replace(expression, stages=cheap))
    assert nest.kept == ("max", "sum") and nest.inlined == ("exp",)


def test_much_arithmetic_is_not_done_twice_even_if_nothing_is_called():
    expression = softmax(shape=(6, 40))
    written_out = (("add", 11), ("cmp", 7), ("mul", 10))  # exp, as VectorMath writes it
    stages = tuple(replace(s, ops=written_out) if s.name == "exp" else s for s in expression.stages)
    assert row_nest(replace(expression, stages=stages)).kept == ("max", "exp", "sum")


def test_a_stage_that_reads_another_is_no_epilogue_of_it():
    expression = softmax(shape=(6, 40))
    nest = Geometry.of(expression, "max", ["exp"])  # exp is computed where sum and norm read it
    assert nest.epilogue_flops == 0 and not nest.epilogue_functions
    assert Geometry.of(expression, "sum", ["exp"]).operands[0].functions == (("exp", 1),)


def test_a_softmax_over_the_first_axis_is_one_row():
    assert row_nest(softmax(shape=(6, 40), axis=(0,))).rows == 0


def test_layer_norm_keeps_a_sum_and_that_of_squares():
    nest = row_nest(layer_norm(shape=(6, 40)))
    assert len(nest.kept) == 2 and nest.rows == 1


@pytest.mark.parametrize("expression", [
    matmul(m=8, n=8, k=8), operator("relu", shape=(4, 4)), operator("dense", m=1, n=8, k=8),
    operator("depthwise_conv2d_nchw", n=1, c=4, h=8, w=8, k=3, padding=1),
], ids=str)  # fmt: skip
def test_products_and_elementwise_operators_have_no_rows(expression):
    assert row_nest(expression) is None


@pytest.mark.parametrize("width, lanes", [(1024, 16), (1000, 8), (20, 4), (17, None), (16, 8)])
def test_lanes_divide_the_row(width, lanes):
    found = {s.stage: s.parts for s in lane_splits(softmax(shape=(64, width)), device("avx512"))}
    assert found == ({} if lanes is None else {"max": lanes, "sum": lanes})


@pytest.mark.parametrize("width, lanes, dtype", [
    (1024, 64, "float32"), (96, 32, "float32"), (48, 16, "float32"), (1000, 8, "float32"), (1024, 32, "float16"),
])  # fmt: skip
def test_rows_take_several_vectors_of_lanes(width, lanes, dtype):
    expression = softmax(shape=(64, width), dtype=dtype)
    splits = lane_splits(expression, device("avx512"))
    assert {split.parts for split in chain_splits(expression, splits)} == {lanes}


def test_a_layer_norm_on_a_cpu_and_on_a_gpu_is_one_nest():
    for name, recipe in (("avx512", "cpu.rows"), ("a100", "gpu.rows")):
        (program,) = construct(layer_norm(shape=(128, 768)), device(name)).best.plan.programs
        assert program.recipe == recipe


def test_many_rows_run_in_parallel_and_a_short_one_on_the_calling_thread():
    for shape, parallel in (((1024, 128), 1), ((1, 1000), 0)):
        program = construct(softmax(shape=shape), device("avx512")).best.plan.programs[0]
        assert program.recipe == "cpu.rows" and program.choice("parallel") == parallel


@pytest.mark.parametrize(("own", "again", "kept"), [(2, False, False), (2, True, True), (1, False, True)])
def test_a_function_is_computed_once_where_it_is_read_more_often(own, again, kept):
    """One reader of as many points repeats nothing; two of them do, or one that has many points for each."""
    axes = (Axis("i", 6), Axis("j", 40))
    i, j, k = (Index.axis(name) for name in "ijk")
    data, at = Tensor("data", (6, 40)[:own]), (i, j)[:own]
    call = Stage("call", axes[:own], (Access("data", at),), ops=(("special", 1),))
    total = Stage("total", (axes[0], Axis("k", 40, "reduce")), (Access("call", (i, k)[:own]),), ops=(("add", 1),),
                  combiner="sum")  # fmt: skip
    reads = (Access("total", (i,)), Access("other", (i, j)), *((Access("call", at),) if again else ()))
    last = Stage("last", axes, reads, ops=(("add", len(reads) - 1),))
    expression = TensorExpression("rows", (data, Tensor("other", (6, 40))), (call, total, last), "total")
    nest = row_nest(expression)
    assert nest.kept == (("call", "total") if kept else ("total",)) and nest.inlined == (() if kept else ("call",))
