"""A CPU's matrix unit: for which targets, on which machines."""

from dataclasses import replace

import pytest

from roller_tvm.device import matrix_unit
from roller_tvm.device.cpu_measure import estimated_profile
from roller_tvm.device.cpu_profile import cpu_spec
from roller_tvm.device.known import estimate
from roller_tvm.device.matrix_unit import matrix_features, with_matrix_unit

from ..plan.devices import device, facts_of

FACTS = replace(facts_of("avx512"), flags=frozenset({"avx512f", "amx_tile", "amx_bf16"}))
NAMED = {"mattr": "+amx-tile,+amx-bf16"}


@pytest.fixture(autouse=True)
def granted(monkeypatch):
    monkeypatch.setattr(matrix_unit, "tiles_granted", lambda: True)


def test_a_target_that_names_it():
    spec = device("avx512")
    made = with_matrix_unit(spec, FACTS, NAMED)
    assert made.peak("bfloat16", tensor=True) == 2 * 512 * spec.clock_ghz * spec.units
    assert "TDPBF16PS" in made.sources["tensor_peak.bfloat16"]
    assert made.digest != spec.digest  # plans for it are kept apart


def test_its_rate_is_the_measured_one():
    peak = {"float32": (100.0, 800.0), "bfloat16": (3000.0, 24000.0)}
    profile = replace(estimated_profile(FACTS), peak=peak, units=8)
    spec = replace(device("avx512"), units=8)
    made = with_matrix_unit(spec, FACTS, NAMED, profile)
    assert made.peak("bfloat16", tensor=True) == 24000.0 and "measured" in made.sources["tensor_peak.bfloat16"]
    assert "bfloat16" not in cpu_spec(FACTS, profile, "profiled").peak_gflops


@pytest.mark.parametrize(
    "attrs", [{}, {"mcpu": "skylake-avx512"}, {"mcpu": "znver5"}, {"mattr": "+amx-tile"},
              {"mcpu": "sapphirerapids", "mattr": "-amx-bf16"}, {**NAMED, "mcpu": "native", "mattr": "-amx-tile"}],
)  # fmt: skip
def test_a_target_that_does_not(attrs):
    assert not with_matrix_unit(device("avx512"), FACTS, attrs).tensor_gflops


def test_a_machine_without_it(monkeypatch):
    others = replace(FACTS, flags=frozenset({"avx512f", "amx_tile"}))
    assert not with_matrix_unit(device("avx512"), others, NAMED).tensor_gflops
    assert not matrix_features(others) and matrix_features(FACTS) == ["+amx-tile", "+amx-bf16"]
    monkeypatch.setattr(matrix_unit, "tiles_granted", lambda: False)
    assert not with_matrix_unit(device("avx512"), FACTS, NAMED).tensor_gflops


def test_what_is_asked_for_ahead_fits_the_first_cache():
    assert estimate("prefetch_distance") < estimate("l1_capacity")
