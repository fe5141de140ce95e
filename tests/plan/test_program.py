"""rTiles, rPrograms and plans as values: how they print, what they refuse, and that JSON keeps them."""

import json
from dataclasses import replace

import pytest

from roller_tvm.ir.operators import operator
from roller_tvm.planner import Plan, RProgram, RTile
from roller_tvm.planner.gpu_variants import variants
from roller_tvm.roller.rprogram import SplitReduction

from .examples import EXAMPLES, conv_gpu, lanes_cpu, matmul_gpu, tile


@pytest.mark.parametrize("name", EXAMPLES)
def test_text(golden, name):
    plan = EXAMPLES[name]()
    lines = [str(plan), ""]
    for program in plan.programs:
        lines += program.load_compute_store(plan.expression)
    golden(name, "\n".join(lines) + "\n")


@pytest.mark.parametrize("name", EXAMPLES)
def test_json(name):
    plan = EXAMPLES[name]()
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan and str(again) == str(plan) and again.digest() == plan.digest()


def test_digests_tell_plans_apart():
    assert len({f().digest() for f in EXAMPLES.values()}) == len(EXAMPLES)


def test_digests_stay_from_version_to_version():
    # Records and caches are found by them: if this changes on purpose, PLAN_VERSION has to change too.
    assert matmul_gpu().digest() == "33be2e323451280f"
    assert lanes_cpu().digest() == "868c74c02bc4847b"


def test_footprint_of_a_convolutions_tile():
    plan = conv_gpu()
    stage, block = plan.expression.anchor, plan.programs[0].tile("shared")
    # 4 channels of (4 + 2) x (8 + 2) rows, 16 filters of 4 x 3 x 3.
    assert block.input_elements(stage, plan.expression) == {"pad": 240, "weight": 576}
    assert block.storage("pad", stage, plan.expression) == (1, 4, 6, 10)
    padded = replace(block, padding=(("pad", 3),))
    assert padded.storage("pad", stage, plan.expression) == (1, 4, 6, 13)
    assert plan.programs[0].blocks(stage) == 2 * 2
    point = RTile("register", tuple((a.name, 1) for a in stage.axes))
    assert point.storage("pad", stage, plan.expression) == point.storage("weight", stage, plan.expression) == (1,) * 4


def test_choices():
    program = matmul_gpu().programs[0]
    assert program.choice("threads") == 64 and program.choice("absent", 7) == 7
    assert program.choices_of("vector") == {"A": 4, "B": 1} and program.choices_of("vthread") == {"n": 2}
    assert program.tile("register")["m"] == 8
    with pytest.raises(KeyError, match="no rTile at level 'l1' .has .'shared', 'register'"):
        program.tile("l1")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RTile("shared", (("m", 0),)), "extent of 'm' must be positive .got 0."),
        (lambda: RProgram("gpu.magic", "s", "s", (tile("shared", "m=1"),)), "recipe must be one of gpu.tiled"),
        (
            lambda: RProgram("gpu.direct", "s", "s", (tile("shared", "m=4"), tile("register", "m=8"))),
            "register tile is larger than the shared tile along 'm' .8 > 4.",
        ),
        (lambda: Plan(operator("relu", shape=(4,)), "cpu", ()), "needs at least one rProgram"),
        (
            lambda: Plan(operator("relu", shape=(4,)), "cpu",
                         (RProgram("cpu.direct", "relu", "relu", (tile("l2", "m=1"),)),)),
            "does not name the axes of 'relu': .'i0'.",
        ),
        (lambda: Plan.from_json({"version": 99}), "plan version 99 cannot be read"),
    ],
)  # fmt: skip
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("unroll, store, shorter", [(8, 4, 4), (6, 1, None), (4, 1, None), (12, 2, 4)])
def test_lighter_programs_keep_the_tiles(unroll, store, shorter):
    """Of a reduction unrolled by whole vectors of 4, one vector; then none, one value stored at a time, no tile."""
    plain = matmul_gpu().programs[0]
    program = replace(plain, choices=(("threads", 64), ("unroll:k", unroll), ("store", store)))
    (first, *names), (itself, *lighter) = zip(*variants(program), strict=True)
    assert first == "" and itself == program and len(set(names)) == len(names)
    told = [(p.choice("unroll:k"), p.choice("store"), p.choice("unroll_tile", 1)) for p in lighter]
    less = [(shorter, store, 1)] if shorter else []
    scalar = [(unroll, 1, 1), (1, 1, 1)] if store > 1 else []
    assert told == [*less, (1, store, 1), *scalar, (unroll, store, 0), (1, store, 0)]
    assert all(p.tiles == plain.tiles and p.choice("threads") == 64 for p in lighter)
    _, only = variants(replace(plain, choices=()))
    assert only[1].choice("unroll_tile") == 0


def test_a_split_names_its_parts():
    assert str(SplitReduction("matmul", "k", 8)) == "split matmul.k in 8 parts"
    assert str(SplitReduction("matmul", "k", 8, lanes=True)) == "split matmul.k in 8 lanes"
    fused = SplitReduction("sum", "r0*r1", 4, False, ("r0", "r1"))
    assert SplitReduction(*json.loads(json.dumps(fused.to_json()))) == fused
