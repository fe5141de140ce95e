"""Families of pictures: which tile serves which rows and columns, by counting what each core computes."""

from dataclasses import replace

import pytest

from roller_tvm.ir.operators import operator
from roller_tvm.micro_perf.cpu_caches import near_seconds
from roller_tvm.micro_perf.cpu_rates import of_bytes
from roller_tvm.planner.construct import construct
from roller_tvm.planner.family import _Planning, plan_families
from roller_tvm.planner.family_values import EACH, TOLERATED, Member
from roller_tvm.planner.family_windows import BAND, _rules

from .devices import device

CPU = device("avx2")


@pytest.fixture(scope="module")
def ranked():
    """Any plan: rules look at tiles and their times alone."""
    return construct(operator("relu", shape="8x8"), CPU, 1).best


def on_the_busiest_core(tile, high, wide, each, cores):
    """Seconds of the core that has most: bands of rows are dealt out in turn, each walks all its columns."""
    left = [0.0] * cores
    for number, _ in enumerate(range(0, high, tile[0])):
        left[number % cores] += sum(each for _ in range(0, wide, tile[1]))
    return max(left)


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("tiles", [
    {(4, 16): 20.0, (4, 8): 11.0, (2, 4): 4.0, (1, 1): 1.0}, {(8, 6): 30.0, (1, 2): 1.1, (1, 1): 1.0},
    {(2, EACH): 5.0, (1, 1): 1.0},
])  # fmt: skip
def test_a_size_has_the_tile_that_keeps_the_busiest_core_shortest(ranked, tiles, cores):
    """At most a tenth longer, by the mean of a band of heights (64 to 127, 32 to 63, and so on to 1)."""
    members = [Member(tile, ranked, seconds / cores) for tile, seconds in tiles.items()]
    rules = _rules(members, 0, 1, cores)
    for first in (1, 4, BAND):
        heights = range(first, 2 * first)
        for wide in {1, 2, 3, 6, 8, 15, 16, 17, 100, EACH - 1, EACH, EACH + 1}:
            chosen = {rule.member for high in heights for rule in rules if rule.holds([high, wide])}
            assert sum(rule.holds([first, wide]) for rule in rules) == 1 == len(chosen)
            times = {}
            for tile, each in tiles.items():
                if tile[0] <= first and tile[1] <= wide:
                    times[tile] = sum(on_the_busiest_core(tile, high, wide, each, cores) / high for high in heights)
            (own,) = (members[n].extents for n in chosen)
            assert times[own] <= TOLERATED * min(times.values()) * (1 + 1e-9)
    assert [r.member for r in rules if r.holds([1000, 40])] == [r.member for r in rules if r.holds([BAND, 40])]


def test_one_row_has_ranges_of_columns_alone(ranked):
    tiles = {(8,): 4.0, (3,): 2.0, (2,): 1.0, (1,): 0.9}
    members = [Member(tile, ranked, seconds) for tile, seconds in tiles.items()]
    rules = _rules(members, None, 0, 4)
    for wide in range(1, EACH + 20):
        (rule,) = (r for r in rules if r.holds([wide]))
        times = {tile: -(-wide // tile[0]) * each for tile, each in tiles.items() if tile[0] <= wide}
        assert times[members[rule.member].extents] <= TOLERATED * min(times.values()) * (1 + 1e-9)
    assert {a for rule in rules for a, _, _ in rule.sizes} == {0}


def test_narrower_tiles_are_halves_and_quarters_of_the_widest():
    def convolution(extents):
        conv = operator("conv2d_nhwc", n=1, h=extents[0] + 2, w=extents[1] + 2, c=16, f=16, kh=3, kw=3)
        return replace(conv, inputs=tuple(replace(t, constant=t.name == "weight") for t in conv.inputs))

    family = next(plan_families(convolution, ["y", "x"], [True, True], CPU, windows=True))
    high, wide = family.members[0].extents
    assert wide >= 4 and high in (2, 4, 8)
    assert [m.extents for m in family.members if m.extents[0] == high] == [
        (high, width) for width in (wide, wide // 2, wide // 4) if width > 1
    ]
    assert family.members[-1].extents == (1, 1)


def test_a_tile_pays_for_what_leaves_the_nearest_cache(monkeypatch):
    """Of tiles that are alike otherwise: the copy of a small one stays near."""

    def depthwise(extents):
        return operator("depthwise_conv2d_nhwc", n=1, h=extents[0] + 4, w=extents[1] + 4, c=128, kh=5, kw=5)

    def largest():
        return next(plan_families(depthwise, ["y", "x"], [True, True], CPU, windows=True)).members[0].extents

    monkeypatch.setattr(_Planning, "_passing", lambda _planning, ranked: 0.0)
    free = largest()
    monkeypatch.setattr(_Planning, "_passing", lambda _planning, ranked: float(pixels(ranked) > 2 * 8))
    assert pixels_of(largest()) <= 2 * 8 < pixels_of(free)


def pixels(ranked):
    return pixels_of([a.extent for a in ranked.plan.expression.output.spatial[1:3]])


def pixels_of(extents):
    return extents[0] * extents[1]


@pytest.mark.parametrize("share, moves", [(0.3, False), (0.9, True), (3.0, True)])
def test_what_leaves_the_nearest_cache_is_moved_at_the_rate_of_the_next_one(share, moves):
    (_, near, _), (_, _, rate), *_ = of_bytes(CPU, 4).caches
    size = int(share * near)
    assert near_seconds(size, 2 * size, CPU) == pytest.approx(
        3 * size / rate / (CPU.clock_ghz * 1e9) if moves else 0.0
    )  # fmt: skip
