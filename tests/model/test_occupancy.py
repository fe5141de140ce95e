"""Occupancy against numbers worked out by hand with NVIDIA's occupancy calculator's rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller_tvm.device import load_device
from roller_tvm.micro_perf.occupancy import occupancy

from ..plan.devices import GPUS, device

# Registers go to warps in units of 256, shared memory to blocks in units of 256 bytes (sm_70) or 128 (sm_80, sm_90);
# since sm_80 each block also takes 1 KiB that the system reserves.
CASES = [
    # V100: 2048 threads, 64 warps, 32 blocks, 65536 registers, 96 KiB a unit.
    ("v100", 256, 32, 0, 8, "threads"),  # 2048 / 256
    ("v100", 64, 32, 0, 32, "blocks per unit"),  # 2048 / 64
    ("v100", 256, 64, 0, 4, "registers"),  # 65536 / (8 warps * 2048)
    ("v100", 256, 65, 0, 3, "registers"),  # 65 * 32 = 2080 -> 2304 a warp; 65536 / 18432
    ("v100", 1024, 64, 0, 1, "registers"),
    ("v100", 1024, 65, 0, 0, "registers"),  # does not launch
    ("v100", 128, 32, 24 * 1024, 4, "shared memory"),  # 96 / 24
    ("v100", 128, 32, 24 * 1024 + 1, 3, "shared memory"),
    ("v100", 33, 128, 0, 8, "registers"),  # two warps of 4096 registers: 65536 / 8192
    # Each of four schedulers has 16384 registers and warps of its own.
    ("v100", 160, 136, 0, 2, "registers"),  # 3 warps of 4352 a scheduler, 12 in all; 5 a block
    ("v100", 32, 136, 0, 12, "registers"),
    # A100: 164 KiB a unit, 32 blocks, 1 KiB reserved a block.
    ("a100", 128, 32, 40 * 1024, 4, "shared memory"),  # 164 / 41
    ("a100", 128, 32, 41 * 1024, 3, "shared memory"),  # 164 / 42
    ("a100", 256, 255, 0, 1, "registers"),  # 255 * 32 = 8160 -> 8192 a warp; 65536 / 65536
    # H100 and H200: 228 KiB a unit.
    ("h200", 256, 32, 113 * 1024, 2, "shared memory"),  # 228 / 114
    ("h200", 256, 32, 114 * 1024, 1, "shared memory"),
    # RTX 4090: 1536 threads and 24 blocks a unit.
    ("rtx4090", 256, 32, 0, 6, "threads"),
    ("rtx4090", 32, 32, 0, 24, "blocks per unit"),
]


@pytest.mark.parametrize(("name", "threads", "registers", "shared", "blocks", "limit"), CASES)
def test_known_cases(name, threads, registers, shared, blocks, limit):
    assert occupancy(load_device(name), threads, registers, shared) == (blocks, limit)


launches = st.tuples(st.integers(1, 1024), st.integers(16, 255), st.integers(0, 48 * 1024))


@given(st.sampled_from(GPUS), launches, launches)
def test_asking_for_less_never_lowers_it(name, one, other):
    less = [min(a, b) for a, b in zip(one, other, strict=True)]
    assert occupancy(device(name), *less)[0] >= occupancy(device(name), *one)[0]


@given(st.sampled_from(GPUS), launches)
def test_what_is_resident_fits(name, launch):
    threads, registers, shared = launch
    spec = device(name)
    blocks, limit = occupancy(spec, *launch)
    warps = -(-threads // spec.vector_width)
    assert blocks * warps * spec.vector_width <= spec.limits.max_threads_per_unit
    assert blocks * warps * spec.vector_width * registers <= spec.limits.registers_per_unit
    assert blocks * shared <= spec.level("shared").capacity_bytes
    assert limit
