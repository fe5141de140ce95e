"""Transposed convolutions on a CPU: terms of the model, by hand."""

import json
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest

from roller_tvm.ir import TensorExpression
from roller_tvm.micro_perf.cpu_rates import CpuRates
from roller_tvm.micro_perf.geometry import Geometry, in_memory
from roller_tvm.recipes.cpu_dilated import _loads, dilated_times, live_share
from roller_tvm.recipes.dilated_nests import strides
from roller_tvm.roller.partition import partition, store_packed

from ..plan.devices import device

CPU = device("avx2")


@pytest.fixture(scope="module")
def geometry():
    """A convolution of stride two, transposed, its weights packed."""
    text = Path(__file__).parents[1].joinpath("plan", "read", "transposed_convolution.json").read_text()
    expression = TensorExpression.from_json(json.loads(text))
    nests = partition(expression, store_packed)
    product = next(n for n in nests if expression.stage(n.anchor).reduce)
    return in_memory(Geometry.of(expression, product.anchor, product.inlined), product.inlined)


def cycles(geometry, spec, chunk, vector=True):
    """Cycles of one parallel task in tiles of one step and one vector."""
    rates, steps = CpuRates.of(spec, geometry), strides(geometry)
    tile = [steps.get(i, rates.lanes if i == geometry.vector_axis else 1) for i in range(len(geometry.extents))]
    times = dilated_times(geometry, spec, np.array(chunk)[:, None], np.array(tile)[:, None], vector)
    number = geometry.covering(np.array(chunk)[:, None])
    return (times.compute_seconds / number * spec.units / rates.cycle).item()


def test_a_stride_of_two_both_ways_leaves_a_quarter_of_the_products(geometry):
    assert sorted(strides(geometry).values()) == [2, 2, 2, 2] and live_share(geometry) == 1 / 4


@pytest.mark.parametrize("element", [4, 32])  # neighbours that share a line: all 4 of the last axis, or 2
@pytest.mark.parametrize("vector", [True, False])
def test_results_that_the_nearest_cache_cannot_hold_pass_the_next_one(geometry, vector, element):
    """Once on the way out, and once for each of the neighbours that share a line, turned element by element."""
    geometry = replace(geometry, output_bytes=element)
    last, chunk = geometry.vector_axis, list(geometry.extents)
    held = geometry.outputs(chunk) * element
    rates = CpuRates.of(CPU, geometry)
    (near, *_), (*_, rate), *_ = rates.caches

    def of(capacity):
        levels = tuple(replace(lv, capacity_bytes=capacity if lv.name == near else 1 << 30) for lv in CPU.levels)
        return cycles(geometry, replace(CPU, levels=levels), chunk, vector)

    passes = 1 + (min(chunk[last], 64 // element) if vector else 1)
    assert of(held // 2) - of(held * 2) == pytest.approx(passes * held / rate)


def test_vectors_are_loaded_where_an_operand_runs_along_them(geometry):
    """Of a tile of 2 x 2 pixels and 4 filters: vectors of the weights, elements of the data."""
    last, wide = geometry.vector_axis, 4
    tile = tuple(strides(geometry).get(i, wide if i == last else 1) for i in range(len(geometry.extents)))
    registers = [1 if i == last else e for i, e in enumerate(tile)]
    found = {op.name: _loads(op, tile, last, registers) for op in geometry.operands}
    data, weights = (op.name for op in geometry.operands)
    box = {op.name: prod(op.box(tile)) for op in geometry.operands}
    assert found == {data: box[data], weights: box[weights] // wide}
    assert {op.name: _loads(op, tile, None, registers) for op in geometry.operands} == box
