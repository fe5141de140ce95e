"""Families of a GPU: one element is always served, vectors are aligned at every size."""

import json

import pytest

from roller_tvm.device import load_device
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.ir.operators import matmul, operator
from roller_tvm.planner.family_grid import _Grid, grid_families
from roller_tvm.planner.family_values import PlanFamily
from roller_tvm.roller.features import NO_FEATURES

CARD = load_device("a100")


@pytest.fixture(scope="module")
def family():
    return next(grid_families(lambda e: matmul(m=e[0], n=768, k=256), ["m"], [True], CARD))


def test_a_tile_is_never_larger_than_its_size(family):
    for size in range(1, 300):
        assert family.member([size]).extents[0] <= size
    assert family.member([1]).extents == (1,) and family.member([1000]).extents[0] > 1


def test_many_rows_have_the_kernel_of_a_large_size(family):
    """One row of its blocks is a tile, though so few blocks alone would not be planned."""
    (program,) = family.member([1000]).ranked.plan.programs
    assert program.recipe == "gpu.tiled" and dict(program.tiles[0].extents)["m"] == family.member([1000]).extents[0]


def test_round_trip(family):
    assert PlanFamily.from_json(json.loads(json.dumps(family.to_json()))) == family


@pytest.mark.parametrize(("shape", "least"), [((4, 64), 2), ((64, 4), 1)])
def test_vectors_divide_what_lies_behind_an_open_axis(shape, least):
    """Columns of an open number have rows that begin anywhere."""
    def relu(extents):
        return operator("relu", shape=tuple(extents[0] if size == 4 else size for size in shape))

    family = next(grid_families(relu, ["i"], [True], CARD))
    widths = [p.choice("vector", 1) for m in family.members for p in m.ranked.plan.programs]
    assert max(widths) >= least and (least > 1 or max(widths) == 1)


def test_open_places_alone_have_one_kernel():
    """The last row of an open number is a tensor of fixed extents."""
    family = next(grid_families(lambda _: operator("relu", shape=(1, 64)), [], [], CARD))
    assert [member.extents for member in family.members] == [()]


def test_a_reduction_along_an_open_axis_is_refused():
    with pytest.raises(UnsupportedOperator, match="a reduction along an open axis"):
        next(grid_families(lambda e: matmul(m=8, n=8, k=e[0]), ["k"], [False], CARD))


@pytest.mark.parametrize("more", [{}, {"bias": 1, "relu": 1}])
def test_blocks_of_one_kernel_are_the_tile_of_a_large_size(more):
    planning = _Grid(lambda e: matmul(m=e[0], n=384, k=64, **more), ("m",), CARD, NO_FEATURES)
    likely, seen = [512], set()
    for ranked in planning._plans(likely):
        tile = planning._tile(ranked, likely)
        if len(ranked.plan.programs) > 1 or ranked.plan.split_reductions:
            assert tile is None
            continue
        assert tile == (ranked.plan.programs[0].tiles[0]["m"],)
        seen.add(tile)
    assert len(seen) > 2
