"""Kernels without shared memory: what consecutive outputs read, and what the cache of a unit loses."""

from math import prod

import pytest

from roller_tvm.device import load_device
from roller_tvm.ir.operators import operator
from roller_tvm.micro_perf.geometry import Geometry, in_memory
from roller_tvm.micro_perf.kernel import DirectKernel, ReduceKernel
from roller_tvm.planner.predict import predict

V100 = load_device("v100")


def sums(rows, length):
    expression = operator("reduce_sum", shape=(rows, length), axis=(1,))
    return Geometry.of(expression, expression.anchor.name)


def seconds(kernel):
    return predict(kernel, V100).seconds


def test_rows_that_threads_walk_alone_are_lost_where_the_cache_has_no_room_for_all_of_them():
    """Recorded on V100 for rows of 121: 0.37 ms with 12 threads a block, 1.09 ms with 63."""
    few, many = (seconds(DirectKernel(sums(516096, 121), threads)) for threads in (12, 63))
    assert 2 < many / few < 4
    shared = seconds(DirectKernel(sums(516096 // 121, 121 * 121), 32))
    assert shared > few, "as many bytes"


def test_threads_that_share_a_row_lose_nothing():
    at_once = seconds(ReduceKernel(sums(65536, 1024), 32))
    moved = 65536 * 1024 * 4 / (V100.far.bandwidth_gbps * 1e9)
    assert moved < at_once < 1.3 * moved


@pytest.mark.parametrize("threads", [42, 64, 128])
def test_outputs_that_go_on_in_the_next_row_are_read_once(threads):
    """Rows of 83: blocks of 64 outputs are no two to a row, and windows of neighbours overlap."""
    expression = operator("max_pool2d_nchw", n=128, c=42, h=165, w=165, kh=3, kw=3, stride=2, padding="SAME")
    pad = tuple(s.name for s in expression.stages if s.name == "pad")
    geometry = in_memory(Geometry.of(expression, expression.anchor.name, pad), pad)
    kernel = DirectKernel(geometry, threads)
    told = predict(kernel, V100)
    moved = geometry.operands[0].source_bytes + prod(expression.output.shape) * 4
    least = moved / (V100.far.bandwidth_gbps * 1e9)
    assert least <= told.seconds < 1.4 * max(least, kernel.blocks * 1.56e-9)
