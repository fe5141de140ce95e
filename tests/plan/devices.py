"""Devices of the planning tests: every shipped GPU, and CPUs as detected without measuring."""

from dataclasses import replace
from functools import cache

from roller_tvm.device import DeviceSpec, load_device
from roller_tvm.device.cpu_detect import Cache, CpuFacts
from roller_tvm.device.cpu_measure import estimated_profile
from roller_tvm.device.cpu_profile import cpu_spec
from roller_tvm.device.known import simd_named

GPUS = ("a100", "h100", "h200", "k80", "mi50", "rtx4090", "t4", "v100")
CPUS = ("avx2", "avx512")


def facts_of(name: str, cores: int = 4) -> CpuFacts:
    """Return a CPU of that many cores with the named vectors."""
    return CpuFacts(
        model="Test CPU", machine="x86-64", simd=simd_named(name), logical=cores, cores=cores, machine_logical=cores,
        quota=None, clock_ghz=3.0,
        caches=(Cache(1, 32 << 10, 64, 8, 1), Cache(2, 1 << 20, 64, 8, 1), Cache(3, 16 << 20, 64, 16, cores)),
        memory_bytes=16 << 30, flags=frozenset({"avx2", "fma"}), cpus=tuple(range(cores)),
    )  # fmt: skip


@cache
def device(name: str) -> DeviceSpec:
    """A shipped device, or four cores with the named vectors."""
    if name not in CPUS:
        return load_device(name)
    facts = facts_of(name)
    return replace(cpu_spec(facts, estimated_profile(facts), "estimated"), name="cpu")


def of_cores(one: DeviceSpec, units: int) -> DeviceSpec:
    """A CPU of that many such cores (`DeviceSpec.one_unit`): what they share grows with them."""
    def level(of):
        own = units if of.scope == "device" else 1
        return replace(of, bandwidth_gbps=of.bandwidth_gbps * units, capacity_bytes=of.capacity_bytes * own)

    return replace(one, units=units, levels=tuple(map(level, one.levels)))
