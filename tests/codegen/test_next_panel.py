"""The next weights: what is asked for covers the next panel once, or stands a fixed distance ahead in a stream."""

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller_tvm.codegen.rewrites.prefetch_panels import Around, further_on, next_panel

LINE = 16


def asked(loops, ahead, outer):
    """Elements that the trips of the inner loops ask for, from the panel's begin on, in one trip of the outer ones."""
    asking = loops[outer : len(ahead.strides)]
    rest = [*(range(loop.extent) for loop in asking[:-1]), range(0, asking[-1].extent, ahead.every)]
    strides = ahead.strides[outer:]
    return {
        ahead.shift + sum(t * s for t, s in zip(trips, strides, strict=True)) + n * LINE + lane
        for trips in product(*rest) for n in range(ahead.lines) for lane in range(LINE)
    }  # fmt: skip


@settings(deadline=None)
@given(
    st.integers(2, 6), st.lists(st.integers(2, 9), min_size=1, max_size=2),
    st.lists(st.integers(2, 5), min_size=1, max_size=3), st.sampled_from([8, 16, 32, 48, 64]),
    st.sampled_from([0, 4, 16]),
)  # fmt: skip
def test_every_element_of_the_next_panel_is_asked_for_and_little_more(panels, rows, inside, width, at_once):
    strides = [width * math.prod(inside[n + 1 :]) for n in range(len(inside))]
    size = width * math.prod(inside)
    loops = [Around(panels, size), *(Around(r, 0) for r in rows)]
    loops += [Around(e, s) for e, s in zip(inside, strides, strict=True)]
    ahead = next_panel(loops, width, LINE, at_once=at_once)
    found = asked(loops, ahead, 1)
    assert set(range(size, 2 * size)) <= found and min(found) == size
    trips = math.prod(loop.extent for loop in loops[1 : len(ahead.strides)])
    rounded = 1 if len(ahead.strides) == len(loops) else LINE  # up at each trip
    assert max(found) < 2 * size + (trips + ahead.every) * rounded + ahead.lines * LINE
    assert ahead.strides[0] == size


def test_lines_are_asked_for_together():
    """A tile in one of seven rows asks for a seventh of a panel: few lines before its sum, else every four steps."""
    small, large = ([Around(16, n * 16), Around(7, 0), Around(n, 16)] for n in (64, 512))
    assert next_panel(small, 16, LINE, at_once=16).strides == (1024, 160)
    ahead = next_panel(large, 16, LINE, at_once=16)
    assert (len(ahead.strides), ahead.lines, ahead.every) == (3, 1, 4)


@pytest.mark.parametrize(
    "loops",
    [
        [],
        [Around(512, 32)],
        [Around(16, 16384), Around(512, 32)],  # read once
        [Around(7, 0), Around(512, 32)],  # none follows
        [Around(16, 16384), Around(7, 0)],  # the body has it all
        [Around(16, 20000), Around(7, 0), Around(512, 32)],  # the next lies elsewhere
        [Around(16, 16384), Around(7, 0), Around(512, 40)],  # with gaps
        [Around(16, -16384), Around(7, 0), Around(512, -32)],
        [Around(16, 16384), Around(7, 0, shared=True), Around(512, 32)],
        [Around(7, 0), Around(512, 32, shared=True)],
    ],
)
def test_nothing_is_asked_for(loops):
    assert next_panel(loops, 32, LINE) is None


def test_the_next_panel_of_a_shared_loop_is_likely_of_the_same_thread():
    def loops(panels):
        return [Around(panels, 16384, shared=True), Around(7, 0), Around(512, 32)]

    assert next_panel(loops(2), 32, LINE, threads=2) is None
    assert next_panel(loops(16), 32, LINE, threads=2).shift == 16384
    assert next_panel(loops(15), 32, LINE, threads=8) is None


def test_rows_may_be_shared_with_the_panels():
    """Trips of seven rows ask for a 7th of the next panel each, whatever thread has them."""
    loops = [Around(5, 16384, shared=True), Around(7, 0, shared=True), Around(512, 32)]
    assert next_panel(loops, 32, LINE, threads=2).strides == (16384, 2560, 5)
    assert next_panel(loops, 32, LINE, threads=3) is None


@settings(deadline=None)
@given(st.lists(st.integers(2, 5), min_size=1, max_size=4), st.sampled_from([16, 32, 48]))
def test_a_stream_asks_for_what_it_reads_later(extents, width):
    strides = [width * math.prod(extents[n + 1 :]) for n in range(len(extents))]
    loops, size = [Around(e, s) for e, s in zip(extents, strides, strict=True)], width * math.prod(extents)
    ahead = further_on(loops, width, LINE, distance=LINE, least=size, again=size + 1)
    if size < 4 * LINE:  # SEVERAL distances
        assert ahead is None
        return
    assert ahead.lines * LINE == width
    assert asked(loops, ahead, 0) == set(range(LINE, size + LINE))
    assert further_on(loops, width, LINE, LINE, size + 1, size + 1) is None  # the caches keep it
    assert further_on([loops[0], Around(3, 0), *loops[1:]], width, LINE, LINE, size, size) is None  # parts come 3 times
    assert further_on([Around(3, 0), *loops], width, LINE, LINE, size, size + 1) is None  # all of it comes 3 times
    assert further_on([Around(3, 0), *loops], width, LINE, LINE, size, size) is not None  # more than a cache keeps
    shared = Around(3, 0, shared=True)  # by 3 threads: once each
    assert further_on([shared, *loops], width, LINE, LINE, size, size + 1, threads=3) is not None


@pytest.mark.parametrize(
    ("loops", "width"),
    [
        ([], 32),
        ([Around(4096, 32)], 8),  # less than a line
        ([Around(4096, 40)], 32),  # with gaps
        ([Around(4096, -32)], 32),
        ([Around(4096, 64), Around(2, 32), Around(64, 0)], 32),  # the body has it many times
        ([Around(2048, 640), Around(2, 32)], 32),  # no neighbours for long
    ],
)
def test_no_stream(loops, width):
    assert further_on(loops, width, LINE, distance=1024, least=65536, again=65536) is None
