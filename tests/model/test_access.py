"""Addresses of lanes, enumerated: sectors and bank conflicts against what is known of them."""

from collections import Counter
from dataclasses import fields, replace
from math import prod

import numpy as np
import pytest

from roller_tvm.ir.operators import operator
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.micro_perf.gpu_access import (
    Copies,
    Fetches,
    _read_cycles,
    fetches,
    read_cycles,
    store_sectors,
    strides_of,
)
from roller_tvm.micro_perf.kernel import StagedKernel, StagedTable, unrolled_loops


def product(block=(64, 64, 16), thread=(8, 8, 1), vthreads=(1, 1, 1), vectors=(1, 1), padding=(0, 0), store=1):
    g = Geometry.of(operator("matmul", m=512, n=512, k=512), "matmul")
    loops = ((2, block[2]), (0, thread[0] // vthreads[0]), (1, thread[1] // vthreads[1]))
    return StagedKernel(g, block, thread, vthreads, loops, None, vectors, padding, store)


def fetch(kernel, number, warp=32, sector=32):
    """The copy of one kernel: a table of one row."""
    found = fetches(StagedTable.of([kernel]), warp, sector)
    return Fetches(*(getattr(found, field.name)[number] for field in fields(found)))


@pytest.mark.parametrize("vectors", [(1, 1), (4, 4), (2, 1)])
def test_aligned_rows_move_what_they_hold(vectors):
    kernel = product(vectors=vectors)
    for number, op in enumerate(kernel.geometry.operands):
        box = op.box(kernel.block)
        copy = fetch(kernel, number, 32, 32)
        assert copy.moved == pytest.approx(prod(box) * 4)
        assert copy.rounds * copy.vector * kernel.threads == prod(box)
        assert copy.vectorised == (vectors[number] > 1)


def test_a_tile_starts_within_a_sector_and_its_vectors_may_cross_the_next():
    """A sector holds 8 float32: a tile from element 13 on begins 5 behind a start, where only pairs' halves fit."""
    copies = replace(Copies.of(StagedTable.of([product(vectors=(4, 4))])), first=np.array([13, 16]))
    assert copies.offset(32).tolist() == [5, 0] and copies.within(32).tolist() == [False, True]
    assert replace(copies, first=np.array([12, 20])).within(32).tolist() == [True, True]
    wide = replace(copies, first=np.array([16, 16]), vector=np.array([16, 8]))
    assert wide.within(32).tolist() == [False, True]  # 64 bytes are two sectors, 32 are one


def test_short_rows_move_whole_sectors():
    """Rows of two elements are a quarter of a sector each."""
    copy = fetch(product(block=(64, 64, 2)), 0, 32, 32)
    assert copy.moved == pytest.approx(64 * 32) and copy.requested == pytest.approx(64 * 32)


def test_elements_of_a_vector_that_is_none_are_asked_for_again():
    """Vectors of three do not divide rows of 16: each load asks for its sectors by itself."""
    copy = fetch(product(vectors=(3, 1)), 0, 32, 32)
    assert not copy.vectorised and copy.requested > 2 * copy.moved


def test_a_vector_longer_than_the_tile_moves_nothing():
    """A record may ask for one: no lane has a whole vector to copy."""
    assert fetch(product(block=(8, 64, 2), thread=(1, 8, 1), vectors=(32, 1)), 0, 32, 32).moved == 0.0


def test_bank_conflicts_of_shared_reads():
    def cycles(kernel, number):
        return read_cycles(StagedTable.of([kernel]), 32, np.array([[1], [1]]))[number, 0]

    neighbours = product(thread=(8, 1, 1), block=(64, 64, 16))
    assert cycles(neighbours, 1) == 1.0  # lanes read neighbours of B
    assert cycles(neighbours, 0) == 1.0  # and one element of A
    # Rows of A are 32 elements long: lanes down a column meet in one bank, unless rows are padded.
    down = product(block=(256, 8, 32), thread=(8, 8, 1))
    assert cycles(down, 0) == 32.0
    assert cycles(replace(down, padding=(1, 0)), 0) < 32.0


def test_stores_touch_a_sector_each_where_lanes_stand_apart():
    apart = product(block=(8, 256, 16), thread=(8, 8, 1))
    assert store_sectors(StagedTable.of([apart]), 32, 32) == 32
    beside = replace(apart, vthreads=(1, 8, 1), loops=((2, 16), (0, 8), (1, 1)))
    assert store_sectors(StagedTable.of([beside]), 32, 32) == 4


def test_stores_of_kernels_side_by_side_are_their_own():
    """A table of two: one output a store, and four, which are one sector of two or half of one."""
    one = product(block=(8, 256, 16), thread=(8, 8, 1))
    four = replace(one, store=4)
    alone = [int(store_sectors(StagedTable.of([kernel]), 32, 32)[0]) for kernel in (one, four)]
    assert alone == [32, 32] and store_sectors(StagedTable.of([one, four]), 32, 32).tolist() == alone
    assert store_sectors(StagedTable.of([replace(four, store=2), four]), 32, 8).tolist() == [32, 64]


def test_strides_and_unrolling():
    assert strides_of((4, 3, 2)) == [6, 2, 1] and strides_of(()) == []
    # A loop that stays stops those around it, however short.
    assert unrolled_loops([2, 100, 2], 1, 64) == (False, False, True)
    assert unrolled_loops([1, 100, 2], 1, 64) == (True, False, True)
    # More than 16 virtual threads are a loop of their own.
    assert unrolled_loops([2], 32, 64) == (True,) and unrolled_loops([2], 32, 16) == (False,)


def touched_one_by_one(kernel, number, warp, sector):
    """Lane after lane: bytes that each load of a copy asks for, and that a warp's loads touch together; its warps.

    Then the mean cycles in which the banks take a warp's stores of its lanes' first elements.
    """
    op, vector = kernel.geometry.operands[number], kernel.vectors[number]
    box = op.box(kernel.block)
    strides, source = strides_of(op.shape), op.sources[0]
    memory = strides_of(kernel.geometry.expression.tensors[source.tensor].shape)
    base = sum(i.const * s for i, s in zip(source.indices, memory, strict=True)) % (sector // 4)
    if len(memory) == len(strides):
        strides = memory
    total, threads = prod(box), kernel.threads
    requested, moved, warps, active, cycles = 0, 0, 0, 0, 0
    for first in range(0, total, threads * vector):
        for warp_start in range(0, threads, warp):
            loads, words = [set() for _ in range(vector)], set()
            for lane in range(warp_start, min(warp_start + warp, threads)):
                start = first + lane * vector
                if start + vector <= total:
                    words.add(start + start // box[-1] * kernel.padding[number])
                for j in range(vector) if start + vector <= total else ():
                    rest, address = start + j, base
                    for extent, stride in zip(reversed(box), reversed(strides), strict=True):
                        rest, at = divmod(rest, extent)
                        address += at * stride
                    loads[j].add(address * 4 // sector)
            requested += sum(map(len, loads)) * sector
            moved += len(set().union(*loads)) * sector
            warps, active = warps + 1, active + bool(loads[0])
            cycles += max(Counter(word % 32 for word in words).values(), default=0)
    # A warp that has nothing to copy counts as the mean of the others.
    share = op.stored_share * warps / active
    return requested * share, moved * share, warps, cycles / active


@pytest.mark.parametrize("warm", [False, True])
def test_few_warps_are_counted_as_one_by_one(warm):
    """Copies of at most six warps are looked at whole; what was counted of other tiles before changes nothing."""
    conv = operator("conv2d_nchw", n=2, c=8, h=14, w=14, f=32, kh=3, kw=3, stride=1, padding=1)
    tiles = [((1, 8, 7, 14, 1, 3, 3), (1, 2, 1, 2)), ((1, 16, 2, 14, 1, 3, 1), (1, 4, 1, 1)),
             ((2, 8, 2, 7, 2, 1, 1), (1, 2, 1, 1))]  # fmt: skip
    shared, checked, conflicts = Geometry.of(conv, "conv2d", ("pad",)), 0, set()
    for block, thread in tiles:
        for vectors in ((1, 1), (1, 3), (2, 2)):
            g = shared if warm else Geometry.of(conv, "conv2d", ("pad",))
            for padding in (0, 1, 3):
                kernel = StagedKernel(g, block, (*thread, 1, 1, 1), (1,) * 7, (), None, vectors, (padding, padding))
                for number in range(2):
                    copy = fetch(kernel, number, 32, 32)
                    requested, moved, warps, cycles = touched_one_by_one(kernel, number, 32, 32)
                    if warps <= 6 and not copy.vectorised:
                        assert (copy.requested, copy.moved) == (pytest.approx(requested), pytest.approx(moved))
                        assert copy.conflicts == pytest.approx(cycles)
                        checked += 1
                        conflicts.add(cycles)
    assert checked >= 18 and max(conflicts) >= 2


LANES = np.arange(32)


@pytest.mark.parametrize(("vector", "address", "lanes", "cycles"), [
    (1, LANES, 32, 1), (1, 32 * LANES, 32, 32), (1, 2 * LANES, 32, 2), (1, 32 * LANES, 5, 32),
    (2, 2 * LANES, 32, 2), (4, 4 * LANES, 32, 4),  # neighbours: a row of all banks a cycle
    (4, 0 * LANES, 32, 1), (4, LANES // 4 * 4, 32, 1), (2, LANES // 2 * 2, 32, 1),  # 32 words in all
    (4, 32 * LANES, 32, 32), (2, 32 * LANES, 32, 32), (4, 64 * (LANES // 2), 32, 16),  # in the same banks
    (4, 4 * LANES, 8, 1), (4, 4 * LANES, 9, 2), (2, 2 * LANES, 16, 1),  # few lanes are a part of a warp
])  # fmt: skip
def test_vectors_are_read_a_row_of_banks_at_a_time_and_none_twice(vector, address, lanes, cycles):
    """Lanes beyond a block do nothing: those of whole words are where others are."""
    found = _read_cycles(np.stack([address, address]), vector, np.array([lanes, lanes]))
    assert found.tolist() == [cycles, cycles]
