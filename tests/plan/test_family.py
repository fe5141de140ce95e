"""Families of plans: a tile for every size, never a larger one than the size; constants packed in one way."""

import json
from dataclasses import replace
from math import ceil, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller_tvm.device import load_device
from roller_tvm.ir.operators import matmul, operator, parse_operator
from roller_tvm.planner import family_batches
from roller_tvm.planner.construct import construct
from roller_tvm.planner.construction import RankedPlan
from roller_tvm.planner.family import _Planning, _put_in, plan_families
from roller_tvm.planner.family_batches import WORTH, batch_family
from roller_tvm.planner.family_values import (
    EACH,
    FEW,
    MANY,
    TOLERATED,
    UNSLICED,
    VECTORS,
    Member,
    PlanFamily,
    Rule,
    merged,
)
from roller_tvm.roller.features import NO_FEATURES
from roller_tvm.roller.steps import Pack, Split, Vectorize

from ..sampling import examples
from .devices import device

CPU = load_device("cpu")


def with_constant(expression, name="B"):
    return replace(expression, inputs=tuple(replace(t, constant=t.name == name) for t in expression.inputs))


def product(extents):
    return with_constant(matmul(m=extents[0], n=768, k=256))


@pytest.fixture(scope="module")
def family():
    return next(plan_families(product, ["m"], [True], CPU))


def test_a_tile_is_never_larger_than_its_size(family):
    for size in range(1, 1000):
        assert family.member([size]).extents[0] <= size
    assert family.member([1]).extents == (1,)
    assert family.member([1000]).extents[0] > 1


def test_constants_are_packed_once_for_all_tiles(family):
    packs = {tuple(s for s in m.steps() if isinstance(s, Pack)) for m in family.members}
    assert len(family.members) > 1
    assert len(packs) == 1 and packs.pop()


def test_a_size_takes_at_most_a_tenth_more_than_its_best_tile(family):
    for size in range(1, 200):
        times = [m.seconds(ceil(size / m.extents[0])) for m in family.members if m.extents[0] <= size]
        assert family.seconds([size]) <= 1.1 * min(times) * (1 + 1e-9)


def test_round_trip(family):
    again = PlanFamily.from_json(json.loads(json.dumps(family.to_json())))
    assert again == family
    assert "m from" in str(family) and "cpu.tiled" in str(family)


def test_two_axes():
    family = next(plan_families(
        lambda e: operator("batch_matmul", b=4, m=e[0], n=e[1], k=64), ["m", "n"], [True, True], CPU,
    ))  # fmt: skip
    for m in (1, 3, 8, 100):
        for n in (1, 15, 16, 17, 100):
            tile = family.member([m, n]).extents
            assert tile[0] <= m and tile[1] <= n
    assert family.member([100, 100]).extents[1] >= 16


WINDOWS = {
    "convolution": lambda e: with_constant(
        operator("conv2d_nchw", n=1, c=16, h=e[0] + 2, w=e[1] + 2, f=32, k=3), "weight"),
    "pooling": lambda e: operator("max_pool2d_nchw", n=1, c=16, h=2 * e[0] + 1, w=2 * e[1] + 1, k=3, stride=2),
    "a row": lambda e: operator("max_pool2d_nchw", n=1, c=16, h=3, w=e[0] + 2, k=3),
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS)
def test_tiles_of_windows(name):
    """Rows and columns for one core each; of a picture with its last row of tiles full, columns decide."""
    axes = ["h", "w"] if name != "a row" else ["w"]
    family = next(plan_families(WINDOWS[name], axes, [True] * len(axes), CPU, windows=True))
    tiles = [(m.extents, m.next_seconds * CPU.units, m.ranked.seconds) for m in family.members]
    assert family.parallel and tiles[-1][0] == (1,) * len(axes) and tiles[0][0] > tiles[-1][0]
    for _, further, first in tiles:  # which finds its weights near, but computes as much
        assert first / MANY < further <= first
    assert tiles[0][1] / prod(tiles[0][0]) < tiles[-1][1]  # an element of the large tile is cheaper
    assert len({tuple(s for s in m.steps() if isinstance(s, Pack)) for m in family.members}) == 1
    high = tiles[0][0][0] if len(axes) > 1 else 1
    for width in range(1, EACH + 20):
        times = {e: ceil(width / e[-1]) * further / prod(e[:-1]) for e, further, _ in tiles if e[-1] <= width}
        for height in {1, 2, high - 1, high, high + 1} - {0}:
            chosen = family.member([height, width][-len(axes) :]).extents
            assert chosen[-1] <= width and prod(chosen[:-1]) <= height
            assert height < high or times[chosen] <= TOLERATED * min(times.values()) * (1 + 1e-9)
    if high > 1:  # a low and wide one has the largest tile that fits
        lower = next(e for e, *_ in tiles if e[0] < high)
        assert family.member([high - 1, 200]).extents == lower != tiles[-1][0]


@pytest.mark.parametrize("name", ["layer_norm", "relu"])
def test_an_elementwise_operator_has_its_rows_one_by_one(name):
    family = next(plan_families(lambda e: operator(name, shape=f"{e[0]}x768"), ["n"], [True], CPU))
    assert family.parallel and {m.extents for m in family.members} == {(1,)}


def test_a_family_that_cannot_serve_a_size_is_none(family):
    large = family.members[0]
    with pytest.raises(ValueError, match="smaller sizes"):
        PlanFamily(("m",), (True,), (large,), (Rule(0, ((0, 1, None),)),))
    with pytest.raises(ValueError, match="no member"):
        PlanFamily(("m",), (True,), (large,), (Rule(0, ((0, large.extents[0], None),)),))
    one = Member((1,), large.ranked, 1.0)
    for sizes in ((2, None), (1, EACH)):  # without the smallest one, without those beyond the last
        with pytest.raises(ValueError, match="no member"):
            PlanFamily(("m",), (True,), (one,), (Rule(0, ((0, *sizes),)),))
    assert PlanFamily(("m",), (True,), (one,), (Rule(0, ((0, 1, None),)),)).member([EACH + 1]) is one
    with pytest.raises(ValueError, match="axes"):
        PlanFamily(("m", "n"), (True, True), (Member((8,), large.ranked, 1.0),), (Rule(0, ()),))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), min_size=1, max_size=8))
@settings(max_examples=examples(50), deadline=None)
def test_merged_digits_keep_the_order_of_elements(digits):
    from itertools import product as every

    step = Pack("w", "C", tuple(d for d, _ in digits), tuple(n for _, n in digits))
    sizes = {}
    for dim, length in digits:
        sizes[dim] = sizes.get(dim, 1) * length

    def place(step, index):
        at = 0
        for dim, below, length in step.digits():
            at = at * length + index[dim] // below % length
        return at

    for values in list(every(*(range(n) for n in sizes.values())))[:200]:
        index = dict(zip(sizes, values, strict=True))
        assert place(step, index) == place(merged(step), index)


def test_images_of_a_batch_are_tiles_in_turn():
    """What the large tile leaves over is computed by smaller ones, no image twice; a tile must be worth a kernel."""
    def plans(images):
        return cheaper(images, {1: 9e-5, 4: 4e-5}[images])

    def cheaper(images, each):
        conv = with_constant(operator("conv2d_nhwc", n=images, h=6, w=6, c=64, f=64, kh=3, kw=3), "weight")
        found = construct(conv, CPU, 8).plans
        return [RankedPlan(p.plan, taking(p.estimate, each * images * (1 + 1e-9 * n))) for n, p in enumerate(found)]

    def taking(estimate, seconds):
        return replace(estimate, programs=(replace(estimate.programs[0], seconds=seconds),))

    family = batch_family("n", plans, 1e-6)
    assert family.in_turn and [m.extents for m in family.members] == [(4,), (1,)]
    assert family.seconds([13]) == pytest.approx(12 * 4e-5 + 9e-5)
    assert family.seconds([2]) == pytest.approx(2 * 9e-5)
    assert PlanFamily.from_json(json.loads(json.dumps(family.to_json()))) == family
    assert [line.partition(":")[0] for line in str(family).splitlines()] == ["n from 4", "any size, what is left of 4"]
    alike = batch_family("n", lambda images: cheaper(images, 9e-5), 1e-6)
    assert [m.extents for m in alike.members] == [(1,)]
    assert batch_family("n", plans, 1e-4) is None  # a launch for each image would cost too much


def test_a_batch_must_be_worth_some_launches_an_image():
    conv = with_constant(operator("conv2d_nhwc", n=1, h=6, w=6, c=64, f=64, kh=3, kw=3), "weight")
    found = construct(conv, CPU, 1).plans
    each = found[0].seconds
    for launches, worth in ((WORTH + 0.01, True), (WORTH - 0.01, False), (20, True), (2, False)):
        assert (batch_family("n", lambda images: found, each / launches) is not None) == worth


class Costs:
    """A family that takes some seconds an element."""

    axes = ("n",)

    def __init__(self, each):
        self.each = each

    def seconds(self, sizes):
        return self.each * prod(sizes)


@pytest.mark.parametrize(("own", "alike", "place"), [
    (0.5, 1.0, 0), (1.0, 1.0, 0), (1.01, 1.0, 1), (1.04, 1.05, 0), (1.06, 1.05, 1), (3.9, 1.0, 2), (5.0, 1.0, 3),
    (5.0, 2.0, 2),
])  # fmt: skip
def test_a_family_is_tried_before_those_that_are_slower(own, alike, place):
    others, mine = [Costs(1.0), Costs(2.0), Costs(4.0)], Costs(own)
    found = list(_put_in(mine, iter(others), (1, 8), alike))
    assert found.index(mine) == place and [f for f in found if f is not mine] == others
    assert list(_put_in(None, iter(others), (1, 8), alike)) == others


def test_tiles_of_a_family_shrink_to_one_element_and_keep_whole_vectors():
    """Few rows, a vector, a row of it, one element; without an open last axis few rows and one."""
    lanes = CPU.vector_width

    def planning(operator_, axes):
        return _Planning(operator_, axes, (True,) * len(axes), CPU, NO_FEATURES)

    both = planning(lambda e: matmul(m=e[0], n=e[1], k=64), ("m", "n"))
    wide = 4 * lanes
    assert both._tiles((14, wide)) == [(14, wide), (FEW, wide), (14, lanes), (1, lanes), (1, 1)]
    assert planning(lambda e: matmul(m=e[0], n=64, k=64), ("m",))._tiles((14,)) == [(14,), (FEW,), (1,)]


def test_pictures_of_two_rows_and_columns_are_pictures(monkeypatch):
    monkeypatch.setattr(family_batches, "WORTH", 0.0)

    def of(high, wide, channels):
        def made(extents):
            return operator("relu", shape=f"{extents[0]}x{channels}x{high}x{wide}")

        return _Planning(made, ("n",), (True,), CPU, NO_FEATURES).batches()

    assert of(2, 2, 1) is not None and of(2, 1, 3) is not None
    assert of(1, 1, 64) is None and of(1, 9, 1) is None


def test_an_axis_that_is_not_cut_stands_for_its_vectors_or_for_itself():
    """Softmax along an open axis: vectors of whole lanes, a number that says so, or a length that nothing divides."""
    made = plan_families(lambda e: operator("softmax", shape=f"{e[0]}x{e[1]}"), ["n", "m"], [True, False], CPU)
    stands = [m.extents for family in made for m in family.members]
    assert stands and {tile[1] for tile in stands} <= {CPU.vector_width * VECTORS, UNSLICED}
    assert (1, UNSLICED) in stands


def test_a_picture_has_one_tile_for_each_size():
    def convolution(extents):
        high, wide = extents
        return with_constant(
            operator("conv2d_nhwc", n=1, h=high + 2, w=wide + 2, c=32, f=32, kh=3, kw=3), "weight"
        )  # fmt: skip

    family = next(plan_families(convolution, ["y", "x"], [True, True], CPU, windows=True))
    assert len({m.extents[1] for m in family.members}) > 2
    for high in (1, 2, 3, 4, 7, 8, 9, 16, 31, 63, 64, 100):
        for wide in range(1, 70):
            (rule,) = (r for r in family.rules if r.holds([high, wide]))
            tile = family.members[rule.member].extents
            assert tile[0] <= high and tile[1] <= wide


def test_a_members_time_is_its_first_tile_and_those_behind_it(family):
    for member in family.members:
        first, second, third = (member.seconds(tiles) for tiles in (1, 2, 3))
        assert first == member.ranked.seconds and second - first == pytest.approx(member.next_seconds)
        assert third - second == pytest.approx(member.next_seconds)
        assert 0 < member.next_seconds <= first
    large = family.members[0]  # its first tile waits for 768 KiB of weights, the next ones find them near
    assert large.extents[0] > 1 and large.next_seconds < 0.9 * large.ranked.seconds


def test_pictures_are_products_by_constants_with_two_open_axes_of_the_result():
    def is_picture(operator_, axes):
        return _Planning(operator_, axes, (True,) * len(axes), CPU, NO_FEATURES).is_picture

    def open_in(*names):
        return lambda e: matmul(**({"m": 8, "n": 8, "k": 8} | dict(zip(names, e, strict=True))))

    def constant(made):
        return lambda e: with_constant(made(e))

    assert is_picture(constant(open_in("m", "n")), ("m", "n"))
    assert not is_picture(constant(open_in("m")), ("m",)), "one row of pixels"
    assert not is_picture(open_in("m", "n"), ("m", "n")), "nothing is constant"


def test_images_are_tiles_where_one_is_worth_more_than_its_launch():
    """A launch takes some microseconds: a convolution of 10 million multiply-adds is longer, one of 256 is not."""
    def batches(size, channels):
        def made(extents):
            conv = operator("conv2d_nhwc", n=extents[0], h=size, w=size, c=channels, f=channels, kh=1, kw=1)
            return with_constant(conv, "weight")

        return _Planning(made, ("n",), (True,), CPU, NO_FEATURES).batches()

    assert 1e-7 < CPU.launch_overhead_us * 1e-6 < 1e-4
    assert batches(56, 64) is not None and batches(4, 4) is None


def test_rules_name_only_the_sizes_that_they_ask_for():
    family = next(plan_families(lambda e: operator("relu", shape=f"{e[0]}x{e[1]}"), ["n", "m"], [True, True], CPU))
    *_, last = str(family).splitlines()
    assert last.startswith("any size: ") and "n=1 m=1" in last
    assert all(" from 1 " not in line and "from 1:" not in line for line in str(family).splitlines())


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8"])
@pytest.mark.parametrize("words", ["relu shape={0}x{1}", "softmax shape={0}x{1}", "transpose shape={1}x{0}"])
def test_an_axis_of_any_length_is_computed_element_by_element_whatever_its_type(words, dtype):
    """No type has less than one lane, and nothing asks for lanes that may not be there."""
    def made(extents):
        return parse_operator(f"{words} dtype={dtype}".format(*extents).split())

    (family,) = plan_families(made, ["n", "m"], [True, False], CPU)
    whole = family.member([1, 1])
    assert whole.extents == (1, UNSLICED)
    vectors = {(step.stage, step.axis) for step in whole.steps() if isinstance(step, Vectorize)}
    assert all(step.lengths == (1,) for step in whole.steps()
               if isinstance(step, Split) and (step.stage, step.names[-1]) in vectors)  # fmt: skip


def test_families_of_a_picture_are_best_first_for_sides_of_64():
    """Tiles of a picture for one core each are slower for smaller ones than a product for all four cores."""
    def convolution(extents):
        conv = operator("conv2d_nchw", n=1, c=16, h=extents[0], w=extents[1], f=16, k=1)
        return with_constant(conv, "weight")

    first, *others = plan_families(convolution, ["h", "w"], [True, True], device("avx2"))
    assert others and all(first.seconds([64, 64]) <= other.seconds([64, 64]) for other in others)
    assert any(first.seconds([42, 42]) > other.seconds([42, 42]) for other in others)


def test_rows_and_columns_of_pixels_are_tiles_of_columns_and_all_channels():
    """Vectors along the columns, which are open, not along the channels, which are not cut."""
    lanes = CPU.vector_width
    for axes, made, tiles in (
        ("yx", lambda e: operator("relu", shape=f"1x{e[0]}x{e[1]}x7"), {(1, lanes), (1, 1)}),
        ("y", lambda e: operator("relu", shape=f"1x{e[0]}x8x7"), {(1,)}),
    ):
        (family,) = plan_families(made, list(axes), [True] * len(axes), CPU)
        assert {member.extents for member in family.members} == tiles


def test_rows_of_several_products_are_no_images(monkeypatch):
    """Each of 36 products has weights of its own: a row of all of them has no pixels."""
    monkeypatch.setattr(family_batches, "WORTH", 0.0)

    def batches(constant):
        def made(extents):
            found = operator("batch_matmul", b=36, m=extents[0], n=24, k=96)
            return with_constant(found, constant) if constant else found

        return _Planning(made, ("m",), (True,), CPU, NO_FEATURES).batches()

    weights = operator("batch_matmul", b=36, m=2, n=24, k=96).inputs[1].name
    assert batches(None) is not None and batches(weights) is None
