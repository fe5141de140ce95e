"""The four alignment rules against their definitions in the paper and against brute force."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller_tvm.roller.alignment import (
    Rejection,
    aligned_extents,
    bank_padding,
    capacity,
    divisors,
    execution_unit,
    summarise,
    tensor_shape,
    transaction,
)


def paper_padding(row, fetched, banks, bank_elements):
    """(B*L + L*ceil(n/L) - N mod B*L) mod B*L, as in section 3.1."""
    width = banks * bank_elements
    return (width + bank_elements * ceil(fetched / bank_elements) - row % width) % width


def conflicts(stride, fetched, banks, bank_elements):
    """The most lanes that hit one bank at a time, reading `fetched` elements each down a column of rows."""
    words = ceil(fetched / bank_elements)
    together = banks // words  # lanes served at a time: each bank once
    worst = 1
    for first in range(0, 32, together):
        hits = [0] * banks
        for lane in range(first, min(32, first + together)):
            start = lane * stride // bank_elements
            for word in range(start, start + words):
                hits[word % banks] += 1
        worst = max(worst, *hits)
    return worst


@pytest.mark.parametrize("bank_elements", [1, 2])
@pytest.mark.parametrize("fetched", [1, 2, 4, 8])
def test_padded_rows_start_in_different_banks(fetched, bank_elements):
    for row in range(1, 300):
        if row % fetched:
            continue  # vectors start at whole vectors
        padding = bank_padding(row, fetched, 32, bank_elements)
        assert padding >= 0
        assert conflicts(row + padding, fetched, 32, bank_elements) == 1, row
        assert (row + padding) % bank_elements == 0


@given(st.integers(1, 4096), st.sampled_from([1, 2, 4]))
def test_padding_is_never_more_than_the_papers(row, fetched):
    assume_whole = row - row % fetched or fetched
    assert bank_padding(assume_whole, fetched, 32, 1) <= paper_padding(assume_whole, fetched, 32, 1)


def test_the_papers_formula_is_free_of_conflicts_too():
    # What the two have in common, so that the smaller padding is a choice and not a slip.
    for row in range(1, 200):
        assert conflicts(row + paper_padding(row, 1, 32, 1), 1, 32, 1) == 1


def test_rows_without_padding_do_conflict():
    assert conflicts(32, 1, 32, 1) == 32 and bank_padding(32, 1, 32, 1) == 1
    assert conflicts(48, 1, 32, 1) == 16 and bank_padding(48, 1, 32, 1) == 1
    assert bank_padding(33, 1, 32, 1) == 0


@given(st.integers(1, 2048), st.sampled_from([4, 8, 16, 32, 64]), st.floats(0, 4))
def test_execution_unit(threads, width, eps):
    lanes = -(-threads // width) * width
    fits = execution_unit(threads, width, eps) is None
    assert fits == (lanes <= threads * (1 + eps))
    assert execution_unit(lanes, width) is None
    if threads % width:
        assert execution_unit(threads, width) is not None


@given(st.integers(1, 512), st.sampled_from([1, 4, 8, 16]), st.floats(0, 2))
def test_transaction(run, elements, eps):
    moved = -(-run // elements) * elements
    assert (transaction(run, False, elements, eps, "t") is None) == (moved <= run * (1 + eps))
    assert transaction(run, True, elements, eps, "t") is None  # a whole row is as long as it gets


@given(st.integers(1, 2000), st.integers(1, 2000), st.floats(0, 2))
def test_tensor_shape(extent, tile, eps):
    covered = -(-extent // tile) * tile
    assert (tensor_shape(extent, tile, eps, "i") is None) == (covered <= extent * (1 + eps) + 1e-9)
    if extent % tile == 0:
        assert tensor_shape(extent, tile, 0.0, "i") is None


@given(st.integers(1, 4000), st.sampled_from([0.0, 0.2, 0.8]), st.integers(1, 16))
def test_aligned_extents_keep_rule_4_and_the_step(extent, eps, step):
    sizes = aligned_extents(extent, eps, step)
    assert sizes == sorted(set(sizes)) and sizes
    for size in sizes:
        assert size % step == 0
        assert size == step or tensor_shape(extent, size, eps, "i") is None


@given(st.integers(1, 4000), st.integers(1, 16), st.sampled_from([0.0, 0.3]))
def test_the_whole_axis_is_a_tile_where_its_last_step_may_be_padded(extent, step, eps):
    whole = ceil(extent / step) * step
    assert (whole in aligned_extents(extent, eps, step)) == (whole <= extent * (1 + eps) or whole == step)


@given(st.integers(1, 4000), st.integers(1, 64))
def test_without_relaxation_tiles_divide_the_axis(extent, most):
    sizes = aligned_extents(extent, 0.0, most=most)
    assert sizes[0] == 1 and sizes[-1] <= most
    assert all(extent % size == 0 for size in sizes)
    assert all(size in sizes for size in range(1, most + 1) if extent % size == 0)


def test_relaxing_only_adds_extents():
    for extent in (7, 28, 1000, 1009):
        previous = set(aligned_extents(extent, 0.0))
        for eps in (0.2, 0.4, 1.6):
            assert previous <= set(aligned_extents(extent, eps))
            previous = set(aligned_extents(extent, eps))


def test_capacity_names_what_is_full():
    assert capacity("shared memory of a block", 49152, 49152) is None
    rejected = capacity("shared memory of a block", 49153, 49152)
    assert str(rejected) == "shared memory of a block: needs 49153, limit 49152 (use a smaller tile)"


def test_summary_counts_the_rules():
    one = Rejection("registers", "300", "255", "use a smaller register tile", "register tile (16, 16)")
    two = Rejection("tensor shape", "1024 iterations of 'j'", "1000", "use a tile that divides the axis")
    assert summarise([two, one, one]).splitlines() == [
        "    2 registers: e.g. register tile (16, 16): registers: needs 300, limit 255 (use a smaller register tile)",
        "    1 tensor shape: e.g. tensor shape: needs 1024 iterations of 'j', limit 1000 "
        "(use a tile that divides the axis)",
    ]
    assert summarise([]) == ""


def test_rows_read_through_all_banks_at_once_need_no_padding():
    assert bank_padding(64, 32, 32, 1) == bank_padding(64, 128, 32, 1) == bank_padding(64, 64, 16, 4) == 0
    assert bank_padding(64, 16, 32, 1) == 16


def test_tiles_of_an_axis_are_no_longer_than_the_axis_covered_by_them():
    """Powers of two below twice the axis, divisors, and what a share of padding allows."""
    assert aligned_extents(8, 3.0) == [1, 2, 4, 8] and aligned_extents(7, 3.0) == [1, 2, 4, 7, 8]
    assert aligned_extents(24, 0.0, step=4) == [4, 8, 12, 24] and aligned_extents(24, 0.4, step=4, most=16) == [
        4,
        8,
        12,
        16,
    ]


def test_of_many_divisors_the_small_ones_and_the_large_shares_are_tiles():
    """Up to 64 elements, and down to a sixteenth of the axis: 81 and 243 of 6561 are neither."""
    assert aligned_extents(3**8, 0.0) == [1, 3, 9, 27, 3**6, 3**7, 3**8]
    assert set(aligned_extents(16 * 81, 0.0)) >= {54, 81}
    assert 67 not in aligned_extents(17 * 67, 0.0)


@given(st.integers(1, 5000))
def test_divisors_are_all_numbers_that_divide(number):
    assert list(divisors(number)) == [d for d in range(1, number + 1) if number % d == 0]
