"""DeviceSpec as a value: it round-trips, hashes stably and cannot be inconsistent."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller_tvm.device import DeviceSpec, FrozenMap, Limits, MemoryLevel, load_device
from roller_tvm.errors import SpecError

V100 = load_device("v100")


def level(**changes) -> MemoryLevel:
    values = dict(
        name="l2",
        scope="device",
        capacity_bytes=1024,
        bandwidth_gbps=10.0,
        transaction_bytes=32,
        line_bytes=128,
    )
    return MemoryLevel(**{**values, **changes})


def test_round_trip_keeps_every_field_and_what_is_outside_equality():
    back = DeviceSpec.from_json(V100.to_json())
    assert back == V100 and hash(back) == hash(V100)
    assert back.sources == V100.sources and back.notes == V100.notes
    assert DeviceSpec.from_json(V100.to_dict()) == V100


def test_digest_is_the_same_in_another_process_and_follows_numbers_alone():
    code = "from roller_tvm.device import load_device; print(load_device('v100').digest())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == V100.digest()
    assert replace(V100, notes=("x",), title="y", sources=FrozenMap({"a": "b"})).digest() == V100.digest()
    assert replace(V100, units=79).digest() != V100.digest()
    assert replace(V100, limits=replace(V100.limits, max_blocks_per_unit=16)).digest() != V100.digest()


def test_frozen():
    with pytest.raises(FrozenInstanceError):
        V100.units = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        V100.peak_gflops["float32"] = 1.0  # type: ignore[index]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"scope": "warp"}, "scope"),
        ({"capacity_bytes": 0}, "capacity"),
        ({"capacity_bytes": 1.5}, "capacity"),
        ({"bandwidth_gbps": -1.0}, "bandwidth"),
        ({"bandwidth_gbps": float("nan")}, "bandwidth"),
        ({"transaction_bytes": 48}, "does not divide the line"),
        ({"banks": 32}, "banks"),
        ({"latency_ns": -1.0}, "latency"),
        ({"name": ""}, "name"),
    ],
)
def test_level_refuses(changes, word):
    with pytest.raises(SpecError, match=word):
        level(**changes)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"max_threads_per_block": 0}, "max_threads_per_block"),
        ({"registers_per_unit": 1.5}, "registers_per_unit"),
        ({"shared_per_block_bytes": 100, "shared_per_block_optin_bytes": 99}, "below the default"),
    ],
)
def test_limits_refuse(changes, word):
    with pytest.raises(SpecError, match=word):
        Limits(**changes)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"kind": "tpu"}, "kind"),
        ({"units": 0}, "units"),
        ({"clock_ghz": 0.0}, "clock"),
        ({"peak_gflops": FrozenMap({"float16": 1.0})}, "float32 is missing"),
        ({"peak_gflops": FrozenMap({"float32": -1.0})}, "peak of float32"),
        ({"levels": V100.levels[::-1]}, "far to near"),
        ({"levels": V100.levels[:1]}, "at least two"),
        ({"levels": (V100.levels[0], V100.levels[0])}, "one name"),
        ({"levels": (V100.levels[0], replace(V100.levels[1], bandwidth_gbps=1.0))}, "slower than dram"),
        ({"source": "hearsay"}, "source"),
    ],
)
def test_device_refuses(changes, word):
    with pytest.raises(SpecError, match=word):
        replace(V100, **changes)


def test_unknown_level_lists_the_known():
    assert V100.has("shared") and not V100.has("l1")
    with pytest.raises(SpecError, match="dram, l2, shared, register"):
        V100.level("l1")


def test_rates():
    assert V100.machine_balance("dram") == pytest.approx(15700 / 900)
    assert V100.peak("float16", tensor=True) == 125e3 and V100.peak("float32", tensor=True) == 0
    assert V100.peak("int8") == V100.peak("int32")  # no figure of its own: the rate of int32
    assert load_device("k80").peak("float16") == load_device("k80").peak("float32")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 99}',
        json.dumps({**V100.to_dict(), "extra": 1}),
        '{"format": 1, "levels": 3}',
    ],
)
def test_what_is_not_a_device_is_refused(text):
    with pytest.raises(SpecError):
        DeviceSpec.from_json(text)


@given(
    bandwidths=st.lists(st.floats(1, 1e6), min_size=2, max_size=5),
    capacity=st.integers(1, 2**40),
    peak=st.floats(1e-3, 1e9),
    fma=st.one_of(st.none(), st.floats(0.1, 64)),
)
def test_any_valid_device_round_trips(bandwidths, capacity, peak, fma):
    levels = tuple(
        level(name=f"m{i}", bandwidth_gbps=bw, capacity_bytes=capacity)
        for i, bw in enumerate(sorted(bandwidths))
    )
    spec = replace(
        V100, levels=levels, limits=Limits(fma_per_cycle=fma), peak_gflops=FrozenMap({"float32": peak})
    )
    back = DeviceSpec.from_json(spec.to_json())
    assert back == spec and back.digest() == spec.digest()


def test_describe_names_every_level_and_limit():
    text = V100.describe(sources=True)
    for word in ("dram", "l2", "shared", "register", "32x4B", "max_threads_per_block 1024", "Jia et al."):
        assert word in text
    assert "80 units" in str(V100)
