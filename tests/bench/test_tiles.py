"""Schedules read back as tiles: a record that Ansor made for a convolution of ResNet-50 on this project's machine."""

from dataclasses import replace

import pytest

from roller_bench.replay.state import StageInfo
from roller_bench.tiles import TheirTiles, record_nests, record_tiles, thought_of, tiles_of
from roller_tvm.ir.operators import dense, depthwise_conv2d_nhwc, matmul

from ..plan.devices import device

STEPS = """["CI", 5], ["SP", 3, 0, 1, [1, 1, 1], 1], ["SP", 3, 4, 56, [7, 1, 8], 1], ["SP", 3, 8, 56, [1, 4, 1], 1],
["SP", 3, 12, 64, [2, 2, 16], 1], ["SP", 3, 16, 3, [1], 1], ["SP", 3, 18, 3, [3], 1], ["SP", 3, 20, 64, [2], 1],
["RE", 3, [0, 4, 8, 12, 1, 5, 9, 13, 16, 18, 20, 2, 6, 10, 14, 17, 19, 21, 3, 7, 11, 15]], ["CA", 1, 3, 3],
["FU", 3, [0, 1, 2, 3]], ["AN", 3, 0, 3], ["FU", 6, [0, 1]], ["AN", 6, 0, 3],
["PR", 3, 0, "auto_unroll_max_step$16"], ["AN", 3, 18, 2]""".replace("\n", " ")
LINE = '{"i": [["[\\"d373\\"]", "llvm"], [[], [%s]]], "r": [[0.0012], 0, 0.9, 1], "v": "v0.6"}'
SPATIAL = (1, 56, 56, 64)
STAGES = [
    StageInfo("data", is_input=True), StageInfo("pad", (1, 58, 58, 64)), StageInfo("weight", is_input=True),
    StageInfo("conv", SPATIAL, (3, 3, 64)), StageInfo("bias", is_input=True), StageInfo("add", SPATIAL),
    StageInfo("relu", SPATIAL),
]  # fmt: skip
AXES = {"pad": "nhwc", "conv": ["n", "h", "w", "c", "ry", "rx", "rc"], "add": "nhwc", "relu": "nhwc"}


def test_a_convolution():
    pad, conv, relu = record_tiles(STAGES, AXES, LINE % STEPS).split("; ")
    assert conv == (
        "conv: parallel(w=14) core(h=56 w=4 c=64 ry=3 rx=3 rc=64) inner(h=8 c=16) vector(c=16)"
        " h=1x7x1x8 w=14x1x4x1 c=1x2x2x16 ry=3x1 rx=1x3 rc=32x2 unrolled up to 16"
    )
    assert pad.endswith("in conv") and relu.startswith("relu: parallel(h=56) core(w=56 c=64)")


def test_what_a_core_has_and_what_is_innermost():
    found = tiles_of(record_nests(STAGES, LINE % STEPS), AXES)
    assert found.core == {"n": 1, "h": 56, "w": 4, "c": 64}
    assert found.inner == {"n": 1, "h": 8, "w": 1, "c": 16, "ry": 1, "rx": 1, "rc": 1}


@pytest.mark.parametrize(
    ("inner", "told", "searched"),
    [
        ({"m": 4, "n": 32, "k": 1}, "l2(m=32 n=64 k=64) register(m=4 n=32)", True),
        ({"m": 16, "n": 64, "k": 1}, "l2(m=32 n=64 k=64) register(m=16 n=64)", False),  # more than there are registers
        ({"m": 4, "n": 32, "k.p": 4}, "", False),
    ],
)
def test_what_the_model_thinks_of_them(inner, told, searched):
    thought = thought_of(matmul(m=64, n=64, k=64), device("avx512"), TheirTiles({"m": 32, "n": 64}, inner))
    assert (thought.tiles if thought else "") == told
    assert thought is None or (thought.searched == searched and thought.seconds > 0)


def test_operands_that_are_laid_out_anew_are_priced_so():
    """A vector of rows of weights is 16 lines of memory where they lie as written, and one where they are packed."""
    layer, tiles = dense(m=1, n=1024, k=1024), TheirTiles({"m": 1, "n": 128}, {"m": 1, "n": 64, "k": 1})
    weights = replace(layer, inputs=tuple(replace(t, constant=t.name == "B") for t in layer.inputs))
    plain, packed = (thought_of(e, device("avx512"), tiles) for e in (layer, weights))
    assert plain.seconds > 2 * packed.seconds


def test_a_window_s_tiles_are_those_of_a_plan():
    """Recipes that list their plans are asked for one with that register tile."""
    window = depthwise_conv2d_nhwc(n=1, c=144, h=56, w=56, kh=3, kw=3, padding=1)
    axes = [a.name for a in window.anchor.axes]
    n, i, j, c = axes[:4]
    core = {n: 1, i: 4, j: 56, c: 144}
    inner = dict.fromkeys(axes, 1)
    thought = thought_of(window, device("avx512"), TheirTiles(core, {**inner, i: 4, j: 2, c: 16}))
    assert thought.searched and f"register({i}=4 {j}=2 {c}=16)" in thought.tiles
    assert thought_of(window, device("avx512"), TheirTiles(core, {**inner, i: 5, j: 2, c: 16})) is None


def test_what_cannot_be_followed_is_left_out():
    assert record_tiles(STAGES, AXES, LINE % '["XX", 3, 0]') == ""
    assert record_tiles(STAGES, AXES, "no record") == ""
