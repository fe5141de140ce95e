"""Footprints against islpy: the image of a tile under its access map, counted by an integer set library."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller_tvm.ir import Index, box, distinct_sums, footprint
from roller_tvm.ir.operators import operator

from ..sampling import examples
from .strategies import AXES, indices, interior, maps, tiles

isl = pytest.importorskip("islpy")


def image(accesses, tile):
    """The set of elements touched, as isl sees it."""
    outs = ", ".join(f"o{d}" for d in range(len(accesses)))
    equations = [
        f"o{d} = {' + '.join([f'{c}*{name}' for name, c in index.terms] + [str(index.const)])}"
        for d, index in enumerate(accesses)
    ]
    bounds = [f"0 <= {a} < {tile[a]}" for a in AXES]
    return isl.Set(f"{{ [{outs}] : exists {', '.join(AXES)} : {' and '.join(equations + bounds)} }}")


def count(image_set):
    return image_set.count_val().to_python()


@settings(max_examples=examples(300), deadline=None)
@given(maps(), tiles())
def test_footprint_is_the_size_of_the_image(accesses, tile):
    assert footprint(accesses, tile, interior(accesses)) == count(image(accesses, tile))


@settings(max_examples=examples(150), deadline=None)
@given(maps(), tiles())
def test_box_is_the_bounding_box_of_the_image(accesses, tile):
    touched = image(accesses, tile)
    spans = tuple(
        (touched.dim_max_val(d).to_python() - touched.dim_min_val(d).to_python() + 1)
        for d in range(len(accesses))
    )
    assert box(accesses, tile, interior(accesses)) == spans


@settings(max_examples=examples(200), deadline=None)
@given(maps(), tiles(), tiles())
def test_a_larger_tile_never_touches_less(accesses, one, other):
    small = {a: min(one[a], other[a]) for a in AXES}
    shape = interior(accesses)
    assert footprint(accesses, small, shape) <= footprint(accesses, one, shape)
    assert all(s <= o for s, o in zip(box(accesses, small, shape), box(accesses, one, shape), strict=True))


@settings(max_examples=examples(200), deadline=None)
@given(maps(), tiles(), st.integers(1, 9))
def test_footprint_fits_its_box_and_its_tensor(accesses, tile, extent):
    shape = [extent] * len(accesses)
    bounds = box(accesses, tile, shape)
    size = 1
    for bound in bounds:
        size *= bound
    assert all(b <= extent for b in bounds)
    assert 1 <= footprint(accesses, tile, shape) <= size


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 7)), max_size=4))
def test_distinct_sums_against_enumeration(steps):
    ranges = [range(extent) for _, extent in steps]
    sums = {sum(c * t for (c, _), t in zip(steps, p, strict=True)) for p in itertools.product(*ranges)}
    assert distinct_sums(tuple(steps)) == len(sums)


@pytest.mark.parametrize(
    ("indices", "tile", "expected"),
    [
        ([Index.of({"h": 1, "kh": 1})], {"h": 4, "kh": 3}, 6),  # overlapping windows share rows
        ([Index.of({"h": 2, "kh": 1})], {"h": 4, "kh": 1}, 4),  # stride 2, 1x1: every second row
        ([Index.of({"h": 1, "kh": 2})], {"h": 2, "kh": 2}, 4),  # dilated
        ([Index.axis("i"), Index.axis("i")], {"i": 5}, 5),  # a diagonal is not a square
        ([Index.whole()], {}, 100),
    ],
)
def test_known_footprints(indices, tile, expected):
    assert footprint(indices, tile, [100] * len(indices)) == expected


def test_footprint_of_a_whole_operator_is_its_input():
    expression = operator("conv2d_nchw", n=2, c=8, h=14, w=14, f=16, k=3)
    for access in expression.anchor.reads:
        tensor = expression.tensors[access.tensor]
        assert footprint(access.indices, expression.anchor.extents, tensor.shape) == tensor.elements


@settings(max_examples=examples(150), deadline=None)
@given(indices(), tiles(4), st.integers(2, 5))
def test_quotients_against_enumeration_over_the_positions_of_a_tile(index, tile, divisor):
    index = Index.of(dict(index.terms), index.const, divisor)
    counts, spans = [1], [1]
    for position in itertools.product(range(divisor), repeat=len(index.axes)):
        ranges = [range(p * tile[a], (p + 1) * tile[a]) for a, p in zip(index.axes, position, strict=True)]
        values = {index.value(dict(zip(index.axes, point, strict=True))) for point in itertools.product(*ranges)}
        counts.append(len(values))
        spans.append(max(values) - min(values) + 1)
    assert footprint([index], tile, [10_000]) == max(counts)
    assert box([index], tile, [10_000]) == (max(spans),)


@settings(max_examples=examples(100), deadline=None)
@given(indices(), st.integers(1, 4), tiles(4))
def test_a_quotient_of_one_position_against_isl(index, divisor, tile):
    index = Index.of(dict(index.terms), index.const, divisor)
    total = " + ".join([f"{c}*{name}" for name, c in index.terms] + [str(index.const)])
    bounds = " and ".join(f"0 <= {a} < {tile[a]}" for a in AXES)
    touched = isl.Set(f"{{ [o] : exists {', '.join(AXES)} : o = floor(({total})/{index.divisor}) and {bounds} }}")
    points = itertools.product(*(range(tile[a]) for a in index.axes))
    assert count(touched) == len({index.value(dict(zip(index.axes, p, strict=True))) for p in points})
