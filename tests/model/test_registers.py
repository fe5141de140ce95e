"""Registers: the cap of a block size, what a tile needs, what the compiler is expected to take."""

import csv
from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller_tvm.ir.operators import operator
from roller_tvm.micro_perf import registers as r
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.micro_perf.gpu_nest import GpuNest, columns

from ..plan.devices import GPUS, device

FIT = Path(__file__).parents[2] / "benchmarks" / "register_fit.csv"
gpus = st.sampled_from(GPUS)


def matmul():
    return GpuNest.of(Geometry.of(operator("matmul", m=1024, n=1024, k=1024), "matmul"))


def one(*tile):
    """A table of one tile."""
    return columns([tile], len(tile))


@given(gpus, st.integers(1, 1024))
def test_a_block_at_the_cap_fits_and_more_threads_never_have_more(name, threads):
    spec = device(name)
    cap = r.register_cap(spec, threads)
    warps = ceil(threads / spec.vector_width)
    assert 0 < cap <= spec.limits.max_registers_per_thread
    assert cap * warps * spec.vector_width <= spec.limits.registers_per_unit
    assert r.register_cap(spec, min(1024, threads + 1)) <= cap


def test_a_tile_needs_its_accumulators_and_both_fragments():
    nest, tile = matmul(), one(8, 4, 1)
    tiles = r.RegisterTiles.of(nest, tile)
    assert tiles.accumulators == 32 and tiles.fragments.ravel().tolist() == [8, 4]
    assert tiles.needed(device("a100")) == 32 + 12 + r.ADDRESSES


def test_a_kernel_takes_what_it_needs_up_to_the_cap():
    spec, threads = device("v100"), np.array([128, 1024, 1024])  # 65536 registers: 64 for each of 1024 threads
    assert r.within_cap(spec, np.array([40, 64, 65]), threads).tolist() == [40, 64, 64]
    few = replace(spec, limits=replace(spec.limits, registers_per_unit=512, max_registers_per_block=None))
    assert r.within_cap(few, np.array([65]), np.array([1024])).tolist() == [65]  # none a thread: it will not fit


@given(gpus, st.integers(0, 5), st.integers(0, 5), st.integers(0, 4))
def test_larger_tiles_and_longer_unrolling_take_no_fewer(name, m, n, k):
    nest, spec = matmul(), device(name)

    def taken(m, n, k):
        thread = one(2**m, 2**n, 1)
        read = nest.elements(nest.boxes(r.body_of(nest, thread, one(1, 1, 2**k))))
        return r.RegisterTiles.of(nest, thread).predicted(spec, read, np.array([256]))[0]

    assert taken(m, n, k) <= min(taken(m + 1, n, k), taken(m, n + 1, k), taken(m, n, k + 1))


@given(st.sampled_from([(1, 1), (8, 8), (16, 8), (3, 5)]), st.integers(1, 64))
def test_unrolling_divides_the_step_and_keeps_the_body_short(tile, step):
    _, _, (length,) = r.unrolled_steps(matmul(), one(*tile, 1), one(64, 64, step))
    assert step % length == 0
    assert length == 1 or tile[0] * tile[1] * length <= r.STATEMENTS


def test_windows_are_unrolled_whole_before_channels():
    e = operator("conv2d_nchw", n=1, c=64, h=28, w=28, f=64, kh=3, kw=3, stride=1, padding=1)
    geometry = Geometry.of(e, "conv2d", ("pad",))
    assert geometry.window == {5, 6}
    steps = r.unrolled_steps(GpuNest.of(geometry), one(1, 4, 7, 1, 1, 1, 1), one(1, 32, 7, 28, 8, 3, 3))
    assert steps.ravel().tolist() == [1, 1, 1, 1, 2, 3, 3]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_what_the_rule_admits_hardly_spills(arch):
    """Of 380 compiled random plans; the few that do lose a few bytes of addresses, and the compile check finds them."""
    admitted, spilled, within = 0, 0, 0
    for line in csv.DictReader(FIT.open()):
        row = {k: int(v) for k, v in line.items()}
        cap = r.register_cap(device("a100"), row["threads"])
        needed = row["accumulators"] + row["fragments_a"] + row["fragments_b"] + r.ADDRESSES
        fetches = max(row["fetches_a"], row["fetches_b"])
        if needed > r.USABLE * cap or fetches > r.FETCHES or row["accumulators"] > r.ACCUMULATORS:
            continue
        admitted += 1
        spilled += row[f"{arch}_local"] > 0
        within += row[f"{arch}_local"] <= 32
    assert admitted > 250 and spilled <= 0.06 * admitted and within >= 0.98 * admitted
