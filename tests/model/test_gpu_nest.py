"""Tables of tiles count as one tile after the other: boxes, runs, bytes, divisors."""

from math import prod
from operator import truediv

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller_tvm.ir import Access, Axis, Index, Stage, Tensor, TensorExpression
from roller_tvm.ir.operators import operator
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.micro_perf.gpu_nest import GpuNest, columns, looked_up
from roller_tvm.micro_perf.registers import unrolled_steps
from roller_tvm.roller.partition import partition

from ..expr.examples import EXAMPLES
from ..sampling import examples


def of_quotients():
    """A dilated window, walked backwards along one axis, beside a gather."""
    dilated = Access("x", (Index.of({"i": 2, "k": -1}, 3, divisor=2), Index.of({"j": 1, "k": 1}, -1, divisor=3)))
    gathered = Access("w", (Index.whole(), Index.axis("k")))
    axes = (Axis("i", 12), Axis("j", 30), Axis("k", 5, kind="reduce"))
    stage = Stage("y", axes, (dilated, gathered), "float32", (("fma", 1),), "sum")
    return TensorExpression("quotients", (Tensor("x", (16, 12)), Tensor("w", (9, 5))), (stage,), "y")


def nests():
    """Every nest of the examples, and quotients and gathers."""
    yield Geometry.of(of_quotients(), "y")
    for name, params in EXAMPLES:
        expression = operator(name, **params)
        for nest in partition(expression):
            yield Geometry.of(expression, nest.anchor, nest.inlined, nest.output)


NESTS = list(nests())


def test_there_are_quotients_and_opaque_indices_among_them():
    operands = [op for g in NESTS for op in g.operands]
    assert any(op.divided for op in operands) and any(any(op.opaque) for op in operands)


@settings(max_examples=examples(150), deadline=None)
@given(st.one_of(st.just(0), st.sampled_from(range(len(NESTS)))), st.data())
def test_a_table_counts_as_its_tiles_one_by_one(number, data):
    g = NESTS[number]
    tiles = data.draw(st.lists(st.tuples(*(st.integers(1, e) for e in g.extents)), min_size=1, max_size=5))
    nest, table = GpuNest.of(g), columns(tiles, len(g.extents))
    boxes = nest.boxes(table)
    counts = nest.runs(boxes), nest.over_own_axes(table[nest.outer]), nest.read_once(boxes, table)
    for op, box, before, *found in zip(g.operands, boxes, nest.before, *counts, strict=True):
        assert box.T.tolist() == [[1] * before + op.box(tile) for tile in tiles]
        own = [op.axes & g.spatial_set for _ in tiles]
        points = [[prod(t[a] for a, _ in dim) for dim in op.dims] for t in tiles]
        assert [n.tolist() for n in found] == [
            [op.run(op.box(tile)) for tile in tiles],
            [prod(t[i] for i in axes) for t, axes in zip(tiles, own, strict=True)],
            [prod(map(min, op.box(t), p)) for t, p in zip(tiles, points, strict=True)],
        ]
    assert nest.input_bytes(table).tolist() == [g.input_bytes(tile) for tile in tiles]
    moved, inputs, held = nest.traffic_and_footprint(table)
    assert moved.tolist() == [g.input_bytes(t) * prod(map(truediv, g.extents, t)) for t in tiles]
    assert held.tolist() == [g.input_bytes(t) + prod(t[i] for i in g.spatial) * g.output_bytes for t in tiles]
    over = [[i in g.spatial and g.extents[i] % e != 0 for i, e in enumerate(t)] for t in tiles]
    assert nest.overhangs(table).T.tolist() == over


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=30))
def test_a_function_looked_up_is_the_function(pairs):
    left, right = np.array(pairs).T
    assert looked_up(lambda a, b: 100 * a + b, left, right).tolist() == [100 * a + b for a, b in pairs]


@pytest.mark.parametrize("step", [1, 6, 7, 16, 36])
def test_unrolled_parts_are_the_largest_divisors_that_fit(step):
    nest = GpuNest.of(Geometry.of(operator("matmul", m=64, n=64, k=step), "matmul"))
    thread = columns([(8, 4, 1), (16, 8, 1)], 3)
    found = unrolled_steps(nest, thread, columns([(64, 64, step)] * 2, 3))[2].tolist()
    assert found == [max(d for d in range(1, step + 1) if step % d == 0 and body * d <= 512) for body in (32, 128)]
