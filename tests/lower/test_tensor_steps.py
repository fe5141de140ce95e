"""Steps that TensorIR alone has: what plans on tensor cores are lowered to, and who refuses them."""

import json

import pytest

from roller_tvm.codegen.applier import StepApplier
from roller_tvm.device import load_device
from roller_tvm.errors import MeasureError
from roller_tvm.ir.operators import parse_operator
from roller_tvm.planner import Plan, RProgram, construct
from roller_tvm.planner.lower import lower, render, step_from_json
from roller_tvm.roller.features import Features
from roller_tvm.roller.loops import source_loops
from roller_tvm.roller.steps import STEPS, TensorIrStep
from roller_tvm.roller.tensor_steps import Merge, ReverseComputeAt, ReverseInline, SetScope

from ..plan.examples import tile


def product():
    """An implicit product: 128 pixels by 64 filters a block, walked two rows of blocks at a time."""
    choices = {
        "threads": 128, "block_m": 128, "block_n": 64, "block_k": 32, "warp_m": 64, "warp_n": 32, "stages": 3,
        "async": 1, "raster": 2, "dynamic": 1, "store": 2, "vector:pad": 8, "vector:weight": 8,
    }  # fmt: skip
    block = "n=1 oh=4 ow=32 f=64 kh=1 kw=1 c=32"
    tiles = (tile("shared", block, pad=8, weight=8), tile("register", "n=1 oh=2 ow=32 f=32 kh=1 kw=1 c=16"))
    program = RProgram("gpu.tensor", "conv2d", "relu", tiles, ("pad",), ("pad", "weight"), tuple(choices.items()))
    words = "conv2d_nhwc n=2 c=64 h=32 w=32 f=128 k=3 padding=1 relu=1 dtype=float16"
    return Plan(parse_operator(words.split()), "a100", (program,))


def test_steps_of_a_product(golden):
    golden("tensor_gpu", render(lower(product())) + "\n")


def test_json_keeps_every_step_of_tensor_ir():
    scripts = (ReverseComputeAt("a", "b", "i"), ReverseInline("a"), SetScope("a", "shared"))
    steps = (*lower(product()), *scripts, Merge("a", "slice", ("b", "c")))
    again = [step_from_json(data) for data in json.loads(json.dumps([s.to_json() for s in steps]))]
    assert tuple(again) == steps
    ours = {kind for kind in STEPS.values() if issubclass(kind, TensorIrStep)}
    assert ours == {type(s) for s in steps if isinstance(s, TensorIrStep)}


def test_who_has_no_word_for_a_step_says_so():
    plan = product()
    stages = {s.name: (source_loops(s.spatial), source_loops(s.reduce)) for s in plan.expression.stages}
    with pytest.raises(MeasureError, match="'matrices.*cannot be expressed in a schedule") as caught:
        StepApplier(stages).run(lower(plan))
    assert "without features" in caught.value.remedy


def test_buffers_of_staged_tiles_are_copied_in_the_longest_loop():
    device = load_device("a100")
    expression = parse_operator(["conv2d_nchw", "n=1", "c=64", "h=14", "w=14", "f=64", "k=3", "padding=1"])
    found = construct(expression, device, 10, Features.of_tensor_ir(device)).plans
    plan = next(r.plan for r in found if r.plan.programs[0].choice("stages") > 1)
    steps = lower(plan)
    (pipeline,) = [s for s in steps if s.op == "pipeline"]
    copies = [s for s in steps if s.op == "compute_at" and s.stage.endswith(".shared")]
    assert pipeline.copies == len(copies) == 2
    assert {c.axis for c in copies} == {pipeline.axis} == {"c.0"}
    assert all(s.scope == "shared.dyn" for s in steps if s.op == "cache_read")
