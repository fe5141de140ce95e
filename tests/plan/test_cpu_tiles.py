"""Chunks of register tiles: shared out evenly over the cores, and none of no tiles."""

from collections import Counter

import numpy as np
import pytest

from roller_tvm.ir.operators import matmul
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.recipes import RECIPES
from roller_tvm.recipes.cpu_tiles import chunks_of
from roller_tvm.recipes.recipe import Context
from roller_tvm.roller.partition import partition

from .devices import device


def geometry(m, n, k):
    return Geometry.of(matmul(m=m, n=n, k=k), "matmul")


def test_no_tiles_have_no_chunks():
    which, chunks = chunks_of(geometry(8, 8, 8), np.zeros((3, 0), np.int64), 4)
    assert which.shape == (0,) and chunks.shape == (3, 0)


@pytest.mark.parametrize("units", [1, 2, 3, 8])
def test_chunks_are_whole_tiles_and_the_first_leaves_fewest_cores_idle(units):
    g = geometry(64, 96, 32)
    tiles = np.array([[4, 16, 1], [8, 32, 1]]).T
    which, chunks = chunks_of(g, tiles, units)
    assert sorted(set(which.tolist())) == [0, 1] and which.tolist() == sorted(which.tolist())
    own = tiles[:, which]
    assert not (chunks[:2] % own[:2]).any() and (chunks[2] == 32).all()
    count = np.prod(-(-np.array([64, 96])[:, None] // chunks[:2]), axis=0)
    idle = -(-count // units) * units / count
    for tile in (0, 1):
        of = idle[which == tile]
        assert of[0] == of.min() and (of[0] == 1.0 or units == 3)


@pytest.mark.parametrize("top", [1, 3, 10, 30])
def test_a_register_tile_has_a_third_of_the_plans_and_all_have_twice_as_many(top):
    g = geometry(192, 256, 512)
    found = RECIPES["cpu.tiled"].candidates(Context(g, device("avx2"), partition(g.expression)[-1]), top)
    tiles = Counter(str(candidate.pair[0].tile("register")) for candidate in found)
    assert len(found) == 2 * top and max(tiles.values()) == max(2, top // 3)
