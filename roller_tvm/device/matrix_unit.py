"""A CPU's matrix unit: which targets may use it, and whether this process may."""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Mapping
from dataclasses import replace

from roller_tvm.device import cpu_profile
from roller_tvm.device.cpu_detect import CpuFacts
from roller_tvm.device.cpu_measure import CpuProfile
from roller_tvm.device.files import read_shipped
from roller_tvm.device.frozen import FrozenMap
from roller_tvm.device.known import canonical
from roller_tvm.device.profile import spread_words
from roller_tvm.device.spec import DeviceSpec

#: Linux on x86-64: arch_prctl, which asks for the state of the tiles (ARCH_REQ_XCOMP_PERM of XFEATURE_XTILEDATA).
SYSTEM_CALL, ASK, TILE_STATE = 158, 0x1023, 18


def matrix_words() -> list[str]:
    """Return LLVM's names of the unit's features."""
    return list(read_shipped("_cpu")["matrix"]["mattr"])


def names_matrix_unit(attrs: Mapping[str, str]) -> bool:
    """Return whether a target's attributes name a CPU with a matrix unit; 'native' is this machine.

    Examples
    --------
    >>> names_matrix_unit({"mcpu": "sapphirerapids"}), names_matrix_unit({"mcpu": "znver4"})
    (True, False)
    >>> names_matrix_unit({"mattr": "+amx-tile,+amx-bf16"}), names_matrix_unit({"mcpu": "native", "mattr": "-amx-tile"})
    (True, False)
    """
    mattr, words = {word.strip() for word in attrs.get("mattr", "").split(",")}, matrix_words()
    if any(f"-{word}" in mattr for word in words):
        return False
    cpus = ("native", *read_shipped("_cpu")["matrix"]["cpus"])
    return attrs.get("mcpu") in cpus or all(f"+{word}" in mattr for word in words)


def with_matrix_unit(
    spec: DeviceSpec, facts: CpuFacts, attrs: Mapping[str, str], profile: CpuProfile | None = None
) -> DeviceSpec:
    """Return a CPU with its matrix unit, if the target names one and this machine has it.

    Parameters
    ----------
    attrs : mapping
        Attributes of the target.
    profile : CpuProfile, optional
        Tells the unit's rate; without, it is what the data sheet says at the clock of other instructions.

    Examples
    --------
    >>> from roller_tvm.device import cpu_report
    >>> report = cpu_report()
    >>> dict(with_matrix_unit(report.spec, report.facts, {"mcpu": "haswell"}).tensor_gflops)
    {}
    """
    if not names_matrix_unit(attrs) or not matrix_features(facts):
        return spec
    known = read_shipped("_cpu")["matrix"]
    dtype, told = known["dtype"], str(known["rate"]["source"])
    gflops = 2 * float(canonical(known["rate"], "_cpu.toml: matrix.rate", "fma")) * spec.clock_ghz * spec.units
    if profile is not None and dtype in profile.peak:
        gflops = profile.rate(profile.peak, dtype, spec.units)
        told = f"measured, {spec.units} threads{spread_words(profile.spread, dtype)}"
    sources = FrozenMap({**spec.sources, f"tensor_peak.{dtype}": told})
    return replace(spec, tensor_gflops=FrozenMap({dtype: gflops}), sources=sources)


def matrix_features(facts: CpuFacts | None = None) -> list[str]:
    """Return LLVM's words for this machine's matrix unit, for a target's mattr; empty if it has none."""
    known = read_shipped("_cpu")["matrix"]
    facts = facts or cpu_profile.detected()
    usable = facts.flags.issuperset(known["flags"]) and tiles_granted()
    return [f"+{word}" for word in known["mattr"]] if usable else []


@functools.lru_cache(maxsize=1)
def tiles_granted() -> bool:
    """Return whether the system lets this process use tiles: Linux 5.16 or later on a CPU that has them."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    return int(ctypes.CDLL(None).syscall(SYSTEM_CALL, ASK, TILE_STATE)) == 0
