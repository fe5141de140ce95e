"""Planes of Winograd's tiles in a CPU's nearest cache: where they evict each other, they start apart by odd lines."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from roller_tvm.ir import TensorExpression
from roller_tvm.planner import construct
from roller_tvm.planner.lower import lower
from roller_tvm.roller.steps import StorageAlign

from .devices import device

#: Of float32: a line, and the distance at which lines share a set of 8 ways of 4 KB.
LINE, WAY = 16, 1024


def planes(spec, name="winograd_cpu"):
    text = Path(__file__).with_name("read").joinpath(f"{name}.json").read_text()
    plan = construct(TensorExpression.from_json(json.loads(text)), spec, top=1).best.plan
    return plan, [step for step in lower(plan) if isinstance(step, StorageAlign)]


@pytest.mark.parametrize("name", ["avx2", "avx512"])
def test_crowded_planes_start_in_different_sets(name):
    """36 planes of 196 x 64 elements lie 50,176 bytes apart: in 16 sets of a cache of 8 ways."""
    plan, found = planes(device(name))
    assert [step.stage for step in found] == ["bgemm", "data_pack"]  # not the tile that is computed in its reader
    for step in found:
        *_, rows, columns = plan.expression.tensors[step.stage].shape
        distance = rows * columns
        distance += (step.offset - distance) % step.factor
        assert (distance - rows * columns) < 2 * LINE  # what it takes more
        sets = {(plane * distance) % WAY // LINE for plane in range(36)}
        assert len(sets) == 36 > len({(plane * rows * columns) % WAY // LINE for plane in range(36)})


def test_planes_that_a_cache_holds_side_by_side_stay():
    assert not planes(device("avx2"), "winograd_cpu_odd")[1]
    spec = device("avx2")
    assert not planes(replace(spec, limits=replace(spec.limits, l1_ways=64)))[1]
