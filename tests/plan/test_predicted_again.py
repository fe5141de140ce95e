"""A plan at hand, a record's say, is predicted as it was when it was constructed."""

from dataclasses import replace

import pytest

from roller_tvm.ir.operators import operator, parse_operator
from roller_tvm.planner import construct
from roller_tvm.planner.predict_programs import geometry_of, predict_plan, program_times
from roller_tvm.roller.features import NO_FEATURES, Features

from .devices import device

TENSOR_CORES = (Features(tensor_cores=True, async_copy=True, dynamic_shared=True), Features(tensor_cores=True),
                Features(tensor_cores=True, async_copy=True, tf32=True))  # fmt: skip
WORDS = [
    ("matmul m=512 n=256 k=384", "v100", NO_FEATURES),
    ("matmul m=250 n=130 k=384 layout=NT bias=1", "k80", NO_FEATURES),
    ("conv2d_nchw n=1 c=32 h=28 w=28 f=32 k=3 padding=1", "mi50", NO_FEATURES),
    ("max_pool2d_nchw n=1 c=64 h=56 w=56 k=3 stride=2", "v100", NO_FEATURES),
    ("relu shape=64x1000", "t4", NO_FEATURES), ("reduce_sum shape=64x4096 axis=1", "a100", NO_FEATURES),
    *(("matmul m=512 n=512 k=4096 dtype=float16", "a100", features) for features in TENSOR_CORES[:2]),
    ("conv2d_nhwc n=8 c=64 h=28 w=28 f=128 k=3 stride=2 padding=1 dtype=float16", "h100", TENSOR_CORES[0]),
    ("matmul m=512 n=512 k=1024 layout=NT", "a100", TENSOR_CORES[2]),
]  # fmt: skip
#: Recipes whose models are asked here.
KNOWN = {"gpu.tiled", "gpu.tensor", "gpu.direct", "gpu.reduce"}


@pytest.mark.parametrize(("words", "on", "features"), WORDS, ids=range(len(WORDS)))
def test_a_plan_is_predicted_as_it_was_constructed(words, on, features):
    """A launch that takes 5 us longer makes each of its kernels as much slower, and no more."""
    found, seen = construct(parse_operator(words.split()), device(on), 40, features).plans, set()
    slow = replace(device(on), launch_overhead_us=device(on).launch_overhead_us + 5)
    for ranked in found:
        recipes = [program.recipe for program in ranked.plan.programs]
        again = predict_plan(ranked.plan, device(on))
        assert (again is not None) == (set(recipes) <= KNOWN)
        if again is not None:
            assert again == pytest.approx(ranked.seconds, rel=1e-9), ranked.plan
            assert predict_plan(ranked.plan, slow) - again == pytest.approx(5e-6 * len(recipes), rel=1e-6)
            seen |= set(recipes)
    assert seen


def test_programs_of_one_nest_are_predicted_side_by_side():
    """One table of all of them: each row is the program's own."""
    spec = device("a100")
    found = construct(operator("matmul", m=512, n=512, k=1024), spec, 20).plans
    one = [r for r in found if [p.recipe for p in r.plan.programs] == ["gpu.tiled"]]
    programs = [r.plan.programs[0] for r in one]
    times = program_times(geometry_of(one[0].plan, programs[0]), programs, spec)
    assert len(one) > 3 and times.seconds.tolist() == pytest.approx([r.seconds for r in one], rel=1e-9)
