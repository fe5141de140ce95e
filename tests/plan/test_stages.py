"""Stages that read windows of one another: which are computed in place, kept for a tile, or stored."""

from dataclasses import replace

import numpy as np
import pytest

from roller_tvm.ir import Access, Axis, Index, Stage, Tensor, TensorExpression
from roller_tvm.ir.operators import operator, softmax
from roller_tvm.micro_perf.stage_tiles import spans
from roller_tvm.planner import construct
from roller_tvm.planner.lower import lower
from roller_tvm.planner.stage_groups import stage_groups
from roller_tvm.recipes.cpu_stages import points_of, tile_times
from roller_tvm.recipes.stage_nests import IN_PLACE, StageNest, in_place, reads_windows
from roller_tvm.schedules.scheduled import schedule

from .devices import device


def window(name, source, shape, taps, arithmetic=0, scale=1, divisor=1):
    """A stage that adds up `taps` neighbours of each row and column of another."""
    axes = (Axis("y", shape[0]), Axis("x", shape[1]))
    reads = tuple(
        Access(source, (Index.of({"y": scale}, dy, divisor), Index.of({"x": scale}, dx, divisor)))
        for dy in range(taps[0]) for dx in range(taps[1])
    )  # fmt: skip
    return Stage(name, axes, reads, ops=(("add", max(1, len(reads) - 1)), ("div", arithmetic)))


def pipeline(rows=512, columns=1024, taps=((1, 3), (3, 1)), arithmetic=0):
    (a, b), (c, d) = taps
    first = window("first", "picture", (rows + c - 1, columns + d - 1), (a, b), arithmetic)
    last = window("last", "first", (rows, columns), (c, d))
    picture = Tensor("picture", (rows + a + c - 2, columns + b + d - 2))
    return TensorExpression("two", (picture,), (first, last), "last")


def group(expression, on="avx512"):
    nests = stage_groups(expression, device(on))
    return None if nests is None else [(nest.output, nest.kept, nest.inlined) for nest in nests]


def test_little_arithmetic_is_repeated_and_much_is_kept_for_a_tile():
    assert group(pipeline()) is None  # in place: nothing is kept
    assert group(pipeline(arithmetic=4)) == [("last", ("first",), ())]


def test_a_window_as_large_as_the_picture_is_read_of_a_stored_stage():
    """No tile is smaller than what it needs."""
    stage = window("last", "first", (64, 512), (1, 1))
    gathered = replace(stage, reads=(Access("first", (Index.whole(), Index.whole())), *window(
        "w", "first", (64, 512), (1, 2)).reads))  # fmt: skip
    first = window("first", "picture", (64, 514), (1, 3), arithmetic=8)
    whole = TensorExpression("g", (Tensor("picture", (64, 516)),), (first, gathered), "last")
    assert stage_groups(whole, device("avx512")) is None


def test_a_tile_needs_its_halo():
    expression = pipeline(taps=((3, 3), (5, 3)))
    points = points_of(expression, StageNest("last", "last", (), ("first",)))
    need = spans(expression, points, [np.array([1, 32]), np.array([1024, 16])])
    ends = {name: [np.broadcast_to(last, 2).tolist() for _, last in own] for name, own in need.items()}
    assert ends["first"] == [[4, 35], [1025, 17]] and ends["picture"] == [[6, 37], [1027, 19]]


def test_a_tile_of_twice_the_size_needs_half_of_it():
    small = window("small", "picture", (33, 65), (1, 1), 8)
    large = window("large", "small", (64, 128), (2, 2), divisor=2)
    expression = TensorExpression("up", (Tensor("picture", (33, 65)),), (small, large), "large")
    points = points_of(expression, StageNest("large", "large", (), ("small",)))
    (_, rows), (_, columns) = spans(expression, points, [8, 128])["small"]
    assert (rows, columns) == (4, 64)


def test_more_in_place_than_a_compiler_is_quick_with_is_refused():
    expression = pipeline(taps=((5, 5), (3, 3)))
    assert IN_PLACE < 9 * (24 + 25)
    assert in_place(expression, expression.stage("last"), {"first"}) is None
    assert points_of(expression, StageNest("last", "last", ("first",))) is None


def test_smaller_caches_have_smaller_tiles():
    expression = pipeline(2048, 4096, arithmetic=12)
    large = device("avx512")
    small = replace(large, levels=tuple(
        replace(level, capacity_bytes=level.capacity_bytes // 4) if level.name == "l2" else level
        for level in large.levels))  # fmt: skip
    points = points_of(expression, StageNest("last", "last", (), ("first",)))

    def held(on):
        tiles, times = tile_times(expression, on, points)
        return times.shared_bytes[np.argmin(times.seconds)]

    assert held(small) < held(large)


def test_rows_of_tiles_are_whole_vectors_or_all():
    for ranked in construct(pipeline(600, 1000, arithmetic=12), device("avx512"), 40).plans:
        (program,) = ranked.plan.programs
        row = program.tile("l2")["x"]
        assert program.recipe == "cpu.stages" and (row == 1000 or (row % 16 == 0 and 1000 % row == 0))


def test_steps_keep_stages_at_the_tile():
    plan = construct(pipeline(arithmetic=4), device("avx512"), 1).best.plan
    steps = [str(step) for step in lower(plan)]
    assert any(step.startswith("parallel(last, ") for step in steps)
    assert any(step.startswith("compute_at(first, last, ") for step in steps)
    assert sum(step.startswith("vectorize(") for step in steps) == 2


@pytest.mark.parametrize("expression", [
    softmax(shape=(64, 32)), operator("conv2d_nchw", n=1, c=3, h=30, w=30, f=16, k=3, padding=1),
    operator("max_pool2d", n=1, c=8, h=9, w=9, k=3, stride=2),
    operator("depthwise_conv2d_nchw", n=1, c=8, h=9, w=9, k=3),
], ids=lambda e: e.name)  # fmt: skip
def test_single_operators_are_no_pipelines(expression):
    assert not reads_windows(expression)


def test_gpus_have_plans_as_before():
    assert stage_groups(pipeline(arithmetic=4), device("v100")) is None


def test_a_printed_nest_has_the_halo():
    expression = pipeline(taps=((3, 3), (5, 3)))
    script = "last.split(y, [8], [y.o, y.i])\nfirst.compute_at(last, y.o)"
    nest = str(schedule(expression, script, device("avx512")).nest)
    assert "for y in 12" in nest and "for y.i in 8" in nest
