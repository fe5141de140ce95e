"""Blocks and times of products on a matrix unit."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller_tvm.device.spec import FrozenMap
from roller_tvm.micro_perf.cpu_constants import (
    CACHE_SHARE,
    MATRIX_CACHE,
    MATRIX_EXPOSED,
    MATRIX_SHARE,
    PASSED_GBPS,
    SPLIT_CYCLES,
    SUM_CYCLES,
)
from roller_tvm.micro_perf.cpu_rates import of_bytes
from roller_tvm.micro_perf.matrix_unit import BLOCK, DEPTH, PAIRS, PARTS, SPLIT_BYTES, matrix_tiles

from ..plan.devices import device

PLAIN = device("avx512")
UNIT = replace(PLAIN, tensor_gflops=FrozenMap({"bfloat16": 2 * 512 * PLAIN.clock_ghz * PLAIN.units}))
BLOCKS = st.integers(1, 80).map(lambda n: 16 * n)


def test_the_pairs_of_parts():
    # All whose parts are 2^-16 of the whole at least, each but the first with a part that is in its tile.
    assert sorted(PAIRS) == sorted((a, b) for a in range(PARTS) for b in range(PARTS) if a + b < PARTS)
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in zip(PAIRS, PAIRS[1:], strict=False))


@pytest.mark.parametrize("shape", [(64, 100, 64), (64, 8, 32)])
def test_what_does_not_fill_tiles_is_left(shape):
    assert matrix_tiles(*shape, UNIT) is None
    assert matrix_tiles(64, 64, 64, PLAIN) is None


@given(st.integers(1, 2000), BLOCKS, st.integers(1, 1300))
def test_blocks_fit_the_cache_and_cover_the_product(rows, terms, columns):
    tiles = matrix_tiles(rows, terms, columns, UNIT)
    height, width, depth = tiles.blocks
    assert (height - 1) * BLOCK < rows <= height * BLOCK
    assert 0 <= width * BLOCK - columns < BLOCK and 0 <= depth * DEPTH - terms < DEPTH
    assert (height - 1) * BLOCK + tiles.last_rows == rows
    assert depth % tiles.depth_blocks == 0 and 1 <= tiles.row_blocks <= height
    panel = tiles.depth_blocks * BLOCK * DEPTH * SPLIT_BYTES
    own, cache = (tiles.row_blocks + 1) * panel, MATRIX_CACHE * UNIT.level("l2").capacity_bytes
    assert own <= cache and (tiles.row_blocks == height or cache < own + panel)


@given(st.integers(1, 500), BLOCKS, BLOCKS)
def test_more_work_takes_no_less_time(rows, terms, columns):
    seconds = matrix_tiles(rows, terms, columns, UNIT).seconds
    assert matrix_tiles(rows + 1, terms, columns, UNIT).seconds >= seconds * 0.999
    assert matrix_tiles(rows, terms, columns, replace(UNIT, tensor_gflops=FrozenMap(
        {"bfloat16": UNIT.peak("bfloat16", tensor=True) / 2}))).seconds >= seconds  # fmt: skip


def with_rates(peak=1.0, **bandwidths):
    """The unit with some rates multiplied."""
    levels = tuple(replace(lv, bandwidth_gbps=bandwidths.get(lv.name, 1.0) * lv.bandwidth_gbps) for lv in UNIT.levels)
    tensor = FrozenMap({"bfloat16": peak * UNIT.peak("bfloat16", tensor=True)})
    return replace(UNIT, levels=levels, tensor_gflops=tensor)


def test_times_by_hand():
    """Products, weights from memory, parts of a sum that are stored, splitting, sums, launches: each by itself."""
    n, launch = 4096, UNIT.launch_overhead_us * 1e-6  # one where cores split their own rows, else two

    def between(tiles):  # launches, and parts of 6 bytes a number: each of four cores has written one quarter of them
        return launch if tiles.by_rows else 2 * launch + 6 * tiles.rows * n * 0.75 / (PASSED_GBPS * 1e9)

    split = n * n * SPLIT_CYCLES / UNIT.vector_width / 4 / (UNIT.clock_ghz * 1e9)  # vectors on four cores
    few = (32, 16 * n, 256)  # whose sums fit the cache
    chunks = matrix_tiles(*few, UNIT).chunks
    assert chunks * matrix_tiles(*few, UNIT).depth_blocks * DEPTH == few[1] and chunks > 1
    assert 4 * few[0] * few[2] < CACHE_SHARE * UNIT.level("l2").capacity_bytes
    stored = 2 * 4 * few[0] * few[2] * (chunks - 1) / (UNIT.level("l2").bandwidth_gbps * 1e9)  # 4 B written, read again
    slow = matrix_tiles(*few, with_rates(l2=0.5)).seconds
    assert slow - matrix_tiles(*few, UNIT).seconds == pytest.approx(stored)
    products = 2 * n**3 * len(PAIRS) / (UNIT.peak("bfloat16", tensor=True) * 1e9 * MATRIX_SHARE)
    at_once = with_rates(**{lv.name: 1e9 for lv in UNIT.levels})
    whole = matrix_tiles(n, n, n, at_once)
    sums = n * n * SUM_CYCLES / UNIT.vector_width / 4 / (UNIT.clock_ghz * 1e9)
    assert whole.seconds == pytest.approx(products + split + sums + between(whole), rel=1e-7)
    row = matrix_tiles(1, n, n, with_rates(peak=1e9))  # which needs other parts
    weights = SPLIT_BYTES * n**2 / (UNIT.far.bandwidth_gbps * 1e9)
    kept = 2 * 4 * n * (row.chunks - 1) / (UNIT.level("l2").bandwidth_gbps * 1e9)
    assert not row.by_rows and row.blocks == (1, n // BLOCK, n // DEPTH)  # a quarter of 16 rows of tiles is a core's
    assert row.seconds == pytest.approx(weights + split / n + kept + 16 * sums / n + between(row), rel=1e-7)


def test_what_follows_a_product_is_added():
    tiles, more = (matrix_tiles(1024, 256, 256, UNIT, slots=slots) for slots in (0, 26))
    vectors = 1024 * 256 / UNIT.vector_width / UNIT.units
    taken = vectors * 26 / of_bytes(UNIT, 4).fma / (UNIT.clock_ghz * 1e9)
    assert tiles.by_rows and more.seconds - tiles.seconds == pytest.approx(taken)


def test_a_constant_comes_from_memory_once():
    """Of 20,000 rows a part stays in the cache at a time; the constant, 196 kB in parts, stays beside it."""
    long = (20000, 512, 64)
    tiles, constant = matrix_tiles(*long, UNIT), SPLIT_BYTES * long[1] * long[2]
    assert tiles.by_rows and tiles.row_blocks < tiles.blocks[0]
    later = matrix_tiles(*long, with_rates(dram=0.5)).seconds - tiles.seconds
    assert later == pytest.approx(MATRIX_EXPOSED * constant / (UNIT.far.bandwidth_gbps * 1e9))
    assert matrix_tiles(*long, with_rates(l2=0.5)).seconds > tiles.seconds
    moved = 4 << 20  # in the last cache, not in the cores' own
    read = matrix_tiles(*long, UNIT, moved).seconds - tiles.seconds
    assert read == pytest.approx(moved / (UNIT.level("l3").bandwidth_gbps * 1e9))


def test_cores_share_rows_where_columns_are_few():
    assert not matrix_tiles(128, 768, 3072, UNIT).by_rows
    assert matrix_tiles(1500, 512, 32, UNIT).by_rows


@given(st.integers(1, 4000), st.integers(1, 12).map(lambda n: 32 * n), st.integers(1, 300), st.integers(2, 60))
def test_rows_of_windows_stay_with_all_their_terms(rows, terms, columns, width):
    """Windows of three by three: rows, those behind them, and a panel of the constant share a core's cache."""
    tiles = matrix_tiles(rows, terms, columns, UNIT, taps=((3, width), (3, 1)))
    beyond, room = ceil((2 * width + 2) / BLOCK), MATRIX_CACHE * UNIT.level("l2").capacity_bytes
    if tiles is None:  # not even one block of rows fits beside the smallest panel
        assert ((1 + beyond) * (terms // DEPTH) + 1) * BLOCK * DEPTH * SPLIT_BYTES > room
        return
    assert tiles.beyond == 2 * width + 2 and tiles.blocks[2] == 9 * terms // DEPTH
    row, panel = terms // DEPTH * BLOCK * DEPTH * SPLIT_BYTES, tiles.depth_blocks * BLOCK * DEPTH * SPLIT_BYTES
    own = (tiles.row_blocks + beyond) * row + panel
    assert own <= room and (tiles.row_blocks == tiles.blocks[0] or room < own + row)


def test_sums_beyond_the_cache_are_read_from_memory():
    """2,048 rows of 4,096 sums are 32 MiB: memory, not the cache, is what the parts of the sum wait for."""
    many = (2048, 8192, 4096)
    assert 4 * many[0] * many[2] > CACHE_SHARE * UNIT.units * UNIT.level("l2").capacity_bytes
    chunks = matrix_tiles(*many, UNIT).chunks
    slow = {name: matrix_tiles(*many, with_rates(**{name: 0.5})) for name in ("l2", UNIT.far.name)}
    assert chunks > 1 and slow["l2"].seconds == matrix_tiles(*many, UNIT).seconds
    stored = 2 * 4 * many[0] * many[2] * (slow[UNIT.far.name].chunks - 1) / (UNIT.far.bandwidth_gbps * 1e9)
    assert slow[UNIT.far.name].seconds > matrix_tiles(*many, UNIT).seconds + 0.5 * stored
