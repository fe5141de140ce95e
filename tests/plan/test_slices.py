"""Slices: strips of Winograd's tiles pass nothing on to one another, and a core takes one through all nests."""

import json
from dataclasses import replace
from math import ceil, prod
from pathlib import Path

import pytest

from roller_tvm.ir import TensorExpression
from roller_tvm.ir.affine import Index
from roller_tvm.ir.operators import operator, softmax
from roller_tvm.ir.parts import share_parts
from roller_tvm.ir.slices import slices_of
from roller_tvm.planner import construct
from roller_tvm.planner.explain import explain
from roller_tvm.planner.lower import lower
from roller_tvm.roller.features import Features
from roller_tvm.roller.partition import partition
from roller_tvm.roller.rprogram import Plan
from roller_tvm.roller.steps import Parallel, Split
from roller_tvm.roller.tensor_steps import Merge

from .devices import device, of_cores

SLICES = Features(slices=True)


def strips():
    """Two images of 32 x 32 pixels of 64 channels, in blocks of 16: 8 x 8 tiles an image, strips of two rows."""
    text = Path(__file__).with_name("read").joinpath("winograd_strips.json").read_text()
    return share_parts(TensorExpression.from_json(json.loads(text)))


def stored(expression):
    return [nest.output for nest in partition(expression)[:-1]]


def changed(expression, name, **more):
    """The expression with other fields of one stage."""
    stages = (replace(s, **more) if s.name == name else s for s in expression.stages)
    return replace(expression, stages=tuple(stages))


def test_a_slice_has_one_strip_of_everything():
    found = slices_of(strips(), stored(strips()))
    assert found.count == 8
    assert found.axes == {"transformed": ("g.o", "g.i"), "product": ("g",), "winograd": ("i0", "i2.o")}
    shapes = {name: tensor.shape for name, tensor in found.one.tensors.items()}
    assert shapes["data"] == (1, 4, 10, 32, 16)  # eight rows of pixels, and one around them on each side
    assert shapes["weights"] == (6, 6, 64, 64)
    assert shapes["transformed"] == shapes["product"] == (1, 6, 6, 4, 16, 16)
    assert shapes["winograd"] == (1, 4, 8, 32, 16)
    assert found.one.flops * 8 == strips().flops


@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_reads_other_slices_has_none(at):
    """The next strip's, one of them for all, or a dimension that is no number of the strip."""
    expression = strips()
    last = expression.stage("winograd")
    product, *rest = last.reads
    other = [Index.of(dict(product.indices[0].terms), 1), Index.of({}), product.indices[1]][at]
    reads = (replace(product, indices=(other, *product.indices[1:])), *rest)
    assert slices_of(changed(expression, "winograd", reads=reads), stored(expression)) is None


def test_slices_stand_in_the_order_of_the_axes():
    """Of a result whose images are its inner number, a loop over images first goes through other slices."""
    expression = strips()
    last = expression.stage("winograd")
    product, *rest = last.reads
    swapped = Index.of({"i2.o": 2, "i0": 1})  # numbers all eight, the images of a row of pixels side by side
    reads = (replace(product, indices=(swapped, *product.indices[1:])), *rest)
    assert slices_of(changed(expression, "winograd", reads=reads), stored(expression)) is None


@pytest.mark.parametrize("expression", [
    softmax(shape=(64, 1000)), operator("matmul", m=64, n=64, k=64),
    operator("conv2d_nchw", n=1, c=8, h=8, w=8, f=8, k=3, bias=1),
])  # fmt: skip
def test_other_operators_have_no_slices(expression):
    features = construct(expression, device("avx512"), 3, SLICES).plans
    assert not any(ranked.plan.slices for ranked in features)
    assert [r.plan for r in features] == [r.plan for r in construct(expression, device("avx512"), 3).plans]


@pytest.mark.parametrize("name", ["avx2", "avx512"])
def test_a_core_takes_a_slice_through_all_nests(name):
    spec = device(name)
    best = construct(strips(), spec, 1, SLICES).best
    assert best.plan.slices == 8
    assert best.seconds < construct(strips(), spec, 1).best.seconds
    for program in best.plan.programs:
        assert prod(program.slices.values()) == 8
        assert all(program.tiles[0][axis] == 1 for axis in program.slices)
    assert Plan.from_json(best.plan.to_json()) == best.plan
    assert best.plan.words().startswith("8 slices of cpu.unrolled")
    assert "8 slices: a core takes one through all nests" in explain(best, spec)


def test_slices_take_turns():
    """As many rounds as the slices need on the cores, each of one slice on one core; weights are there."""
    expression, one_core = strips(), device("avx512").one_unit()
    as_near = replace(one_core.far, bandwidth_gbps=one_core.level("l3").bandwidth_gbps)  # as weights that are there
    there = replace(one_core, levels=(as_near, *one_core.levels[1:]))
    one = construct(slices_of(expression, stored(expression)).one, there, 1).best
    rounds = []
    for units in (2, 4, 8):
        sliced = construct(expression, of_cores(one_core, units), 40, SLICES).plans
        rounds.append(min(r.seconds for r in sliced if r.plan.slices) / ceil(8 / units))
    assert rounds == pytest.approx(rounds[:1] * 3) and 0.5 * one.seconds < rounds[0] < one.seconds


def test_steps_make_one_parallel_loop_of_all_nests():
    plan = construct(strips(), device("avx512"), 1, SLICES).best.plan
    steps = lower(plan)
    assert [step for step in steps if isinstance(step, Parallel)] == [Parallel("winograd", "slice")]
    assert steps[-2:] == (Merge("winograd", "slice", ("transformed", "product")), Parallel("winograd", "slice"))
    cut = [step for step in steps if isinstance(step, Split) and "slice" in step.names]
    assert {step.stage for step in cut} == {"transformed", "product", "winograd"}
    for step in cut:
        program = next(p for p in plan.programs if p.output == step.stage)
        assert prod(step.lengths) * 8 == program.blocks(plan.expression.stage(program.anchor))
