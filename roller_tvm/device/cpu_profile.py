"""The device 'cpu': detected, profiled once by micro-benchmarks, and kept in the user's cache folder.

The profile is keyed by CPU model, cores, SIMD and version of the benchmarks.  If the file cannot be read, the CPU is
measured again.  Without a compiler, or if too much else runs, the numbers are estimates, and the spec and `cpu_report`
say why.  Implausible numbers are never kept.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from roller_tvm import foreign
from roller_tvm.device.cache import cache_folder, one_at_a_time, write_whole
from roller_tvm.device.cpu_bench import SOURCE, NativeRunner
from roller_tvm.device.cpu_detect import CpuFacts, detect_cpu
from roller_tvm.device.cpu_measure import DTYPES, CpuProfile, check_profile, estimated_profile, levels_of, measure_cpu
from roller_tvm.device.known import Simd, estimate
from roller_tvm.device.profile import Sources, spread_words
from roller_tvm.device.rates import Runner
from roller_tvm.device.spec import DeviceSpec, FrozenMap, Limits, MemoryLevel
from roller_tvm.errors import ProfileError

#: Function from (bytes of a vector, CPUs to use) to a context in which requests are measured.
RunnerOf = Callable[[int, Sequence[int]], contextlib.AbstractContextManager[Runner]]
#: Flag of a CPU in a virtual machine.
VIRTUAL = "hypervisor"
PROFILE_VERSION = 5
#: Share by which a median below the best means that other programs used the machine.
BUSY_SPREAD = 0.4


@dataclass(frozen=True)
class CpuReport:
    """The device and the origin of its numbers.

    `reason` says why there are estimates instead of measurements ('' if measured). `refused` is the error of a new
    measurement that failed or was implausible, so that the earlier profile or estimates stand. `path` is the cache
    file, `cached` is True if it was read from there, and `seconds` is the time of measuring.
    """

    spec: DeviceSpec
    facts: CpuFacts
    profile: CpuProfile
    reason: str
    path: Path
    cached: bool
    seconds: float
    refused: ProfileError | None = None


def cache_path(facts: CpuFacts) -> Path:
    """Return the path of this CPU's profile; it depends on the model, our share of it and the benchmarks' version."""
    code = hashlib.sha256(SOURCE.read_bytes()).hexdigest() if SOURCE.is_file() else ""
    key = [PROFILE_VERSION, facts.model, facts.machine, facts.simd.name, facts.machine_logical, facts.logical]
    text = json.dumps([*key, facts.cores, [(c.level, c.bytes, c.shared_by) for c in facts.caches], code])
    return cache_folder() / f"cpu-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def cpu_device(profile: bool = True, refresh: bool = False) -> DeviceSpec:
    """Return this machine's CPU as a device.

    Parameters
    ----------
    profile : bool
        True to measure if the cache has no profile (some seconds, once per machine).  If False, a cached profile or
        else estimates are used.
    refresh : bool
        True to measure even if there is a profile; it stays if the new numbers are implausible.

    Examples
    --------
    >>> cpu = cpu_device(profile=False)
    >>> cpu.kind, cpu.level("l1").scope
    ('cpu', 'unit')
    """
    return cpu_report(profile=profile, refresh=refresh).spec


_remembered: dict[Path, CpuReport] = {}


def cpu_report(
    profile: bool = True, refresh: bool = False, *, facts: CpuFacts | None = None, runner: RunnerOf = NativeRunner
) -> CpuReport:
    """Return the device of `cpu_device` with everything that `roller-tvm profile` prints about it."""
    facts = facts or detected()
    path = cache_path(facts)
    known = _remembered.get(path)
    if known is not None and not refresh and (path.is_file() or known.refused):
        return known  # once a process, also where measuring failed
    report = None if refresh else _stored(path, facts)
    if report is None and not profile:
        reason = "not profiled yet ('roller-tvm profile' does it)"
        return _report(facts, estimated_profile(facts), reason, path, False, 0.0, list(facts.notes))
    if report is None:
        with one_at_a_time(path):
            # Another process may have measured meanwhile.
            report = (None if refresh else _stored(path, facts)) or _measured(path, facts, refresh, runner)
    if report.refused is None or known is None:
        _remembered[path] = report
    return report


def _stored(path: Path, facts: CpuFacts) -> CpuReport | None:
    notes = list(facts.notes)
    stored = _load(path, facts, notes)
    return _report(facts, stored, "", path, True, 0.0, notes) if stored is not None else None


def _measured(path: Path, facts: CpuFacts, refresh: bool, runner: RunnerOf) -> CpuReport:
    """Measure the CPU and keep the profile; if that fails, return the earlier profile or estimates."""
    notes = list(facts.notes)
    if not refresh:
        _load(path, facts, notes)  # why what is there cannot be used
    start = time.perf_counter()
    try:
        with runner(facts.simd.vector_bytes, facts.cpus) as run:
            measured = measure_cpu(facts, run)
    except ProfileError as err:
        taken = time.perf_counter() - start
        kept = _load(path, facts, notes) if refresh else None
        if kept is not None:
            notes.append(f"the earlier profile is kept: {err.what}")
            report = _report(facts, kept, "", path, True, taken, notes)
        else:
            report = _report(facts, estimated_profile(facts), f"{err.what} ({err.remedy})", path, False, taken, notes)
        return replace(report, refused=err)
    problem = _store(path, facts, measured)
    if problem:
        notes.append(f"the profile is not kept: {problem}")
    return _report(facts, measured, "", path, False, time.perf_counter() - start, notes)


@functools.lru_cache(maxsize=1)
def detected() -> CpuFacts:
    """Return the result of `detect_cpu()`, cached for the process."""
    return detect_cpu()


def _load(path: Path, facts: CpuFacts, notes: list[str]) -> CpuProfile | None:
    try:
        data = foreign.loads(path.read_text(encoding="utf-8"))
        if data["format"] != PROFILE_VERSION:
            raise ValueError(f"format {data['format']!r}")
        profile = CpuProfile.from_dict(data["profile"])
        problems = check_profile(facts, profile)
        if problems:
            raise ValueError("; ".join(problems))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as err:
        notes.append(f"cache file {path.name} could not be used ({err}), measured again")
        return None
    return profile


def _store(path: Path, facts: CpuFacts, profile: CpuProfile) -> Exception | None:
    """Write the profile atomically; return the error, or None."""
    data = {
        "format": PROFILE_VERSION, "cpu": facts.model, "simd": facts.simd.name, "logical": facts.logical,
        "cores": facts.cores, "measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "profile": profile.to_dict(),
    }  # fmt: skip
    return write_whole(path, json.dumps(data, indent=1))


def _report(
    facts: CpuFacts, profile: CpuProfile, reason: str, path: Path, cached: bool, seconds: float, notes: list[str]
) -> CpuReport:
    if reason:
        notes.append(f"estimated, not measured: {reason}")
    busy = [key for key, share in profile.spread.items() if share > BUSY_SPREAD]
    if busy:
        notes.append(f"the machine was busy while {', '.join(busy)} was measured; the best repeat counts")
    if profile.units < facts.cores:
        told = f"{profile.units} of {facts.cores} cores are used, because more threads were no faster"
        notes.append(f"{told}; if another program ran meanwhile: 'roller-tvm profile --refresh'")
    spec = cpu_spec(facts, profile, "estimated" if reason else "profiled", tuple(notes))
    return CpuReport(spec, facts, profile, reason, path, cached, seconds)


def cpu_spec(
    facts: CpuFacts, profile: CpuProfile, source: str = "profiled", notes: tuple[str, ...] = (), *,
    threads: int | None = None, simd: Simd | None = None,
) -> DeviceSpec:  # fmt: skip
    """Return the device made of these facts and this profile.

    Parameters
    ----------
    threads : int, optional
        Number of threads to use, if fewer than scale (a target's -num-cores).
    simd : Simd, optional
        Instruction set to use, if narrower than the machine's (a target's -mcpu).
    """
    full = facts.simd
    if simd is None or simd.machine != full.machine or simd.vector_bytes >= full.vector_bytes:
        simd = full
    narrow, vector = simd.vector_bytes / full.vector_bytes, simd.vector_bytes
    slower = narrow * (0.5 if full.fma and not simd.fma else 1.0)
    units = max(1, min(threads or profile.units, profile.units))
    sources = Sources()

    def measured(key: str, kind: str) -> str:
        if source == "estimated":
            return "estimated from detection and data/_cpu.toml"
        return f"measured, {kind}{spread_words(profile.spread, key)}"

    peak = {
        dtype: sources.told(f"peak.{dtype}", profile.rate(profile.peak, dtype, units) * slower,
                            measured(dtype, f"{units} threads")) for dtype in profile.peak if dtype in DTYPES
    }  # fmt: skip

    def level(name: str) -> MemoryLevel:
        at, cache = f"level.{name}", None if name == "dram" else facts.cache(int(name[1]))
        rate = profile.rate(profile.bandwidth, name, units) * (narrow if name == "l1" else 1.0)
        rate = sources.told(f"{at}.bandwidth", rate, measured(name, f"{units} threads"))
        line = cache.line if cache else facts.caches[-1].line
        capacity = cache.bytes if cache else facts.memory_bytes
        shared = cache is None or name == "l3"
        if cache and not shared:
            # A cache of several cores below the last level (Apple's L2) counts as a share for each.
            capacity //= max(1, cache.shared_by)
        ours = profile.last_bytes if name == "l3" else 0
        known = f"measured, what {profile.units} threads read at its rate" if ours else "detected"
        capacity = sources.told(f"{at}.capacity", min(capacity, ours or capacity), known)
        transaction = sources.told(f"{at}.transaction", min(vector, line) if name == "l1" else line, "detected")
        line = sources.told(f"{at}.line", line, "detected")
        loads = measured(f"{name} latency", "dependent loads")
        latency = sources.told(f"{at}.latency", profile.latency_ns[name], loads)
        scope = "device" if shared else "unit"
        return MemoryLevel(name, scope, capacity, rate, transaction, line, latency_ns=latency)

    levels = _monotone([level(name) for name in reversed(levels_of(facts))])
    # An FMA reads three operands; wide narrowing can bring an unchanged L2 above a halved L1.
    near = max(levels[-1].bandwidth_gbps, 3 * 4 * peak["float32"] / 2)
    levels.append(MemoryLevel("register", "thread", simd.registers * vector, near, vector, vector))
    scaling = ", ".join(f"{n} {rate:.0f}" for n, rate in profile.scaling.items())
    launch = measured("launch", f"a parallel region of {profile.units} threads")
    return DeviceSpec(
        name="cpu", title=facts.model, kind="cpu", arch=facts.machine,
        clock_ghz=sources.told("clock", profile.clock_ghz, measured("clock", "dependent adds")),
        vector_width=sources.told("vector_width", vector // 4, f"detected: {simd.name}"),
        units=sources.told("units", units, f"as far as threads scale, float32 GFLOP/s: {scaling}"),
        vector_bytes=sources.told("vector_load", vector, f"detected: {simd.name}"),
        launch_overhead_us=sources.told("launch_overhead", profile.launch_us if units > 1 else 0.0, launch),
        levels=tuple(levels), limits=_limits(facts, profile, simd), peak_gflops=FrozenMap(peak),
        tensor_gflops=FrozenMap(), source=source, sources=FrozenMap(sources), notes=notes,
    )  # fmt: skip


def _limits(facts: CpuFacts, profile: CpuProfile, simd: Simd) -> Limits:
    shared, dispatch = None, profile.dispatch_per_cycle
    if facts.has(VIRTUAL):  # a neighbour may have had the core's other thread all the while
        shared, dispatch = estimate("dispatch_shared"), max(dispatch, estimate("dispatch"))
    l1, l2, l3 = (cache.ways if (cache := facts.cache(level)) else None for level in (1, 2, 3))
    return Limits(
        vector_registers=simd.registers, fma_latency_cycles=profile.fma_latency_cycles,
        fma_per_cycle=profile.fma_per_cycle, dispatch_per_cycle=dispatch, dispatch_shared=shared,
        reorder_window=int(estimate("reorder_window")), stores_per_cycle=estimate("stores_per_cycle"),
        page_bytes=int(estimate("page")), page_walk_cycles=estimate("page_walk"), l1_ways=l1, l2_ways=l2, l3_ways=l3,
    )  # fmt: skip


def _monotone(levels: list[MemoryLevel]) -> list[MemoryLevel]:
    """Return the levels, each at least as fast as the next farther one."""
    out = levels[:1]
    for level in levels[1:]:
        out.append(replace(level, bandwidth_gbps=max(level.bandwidth_gbps, out[-1].bandwidth_gbps)))
    return out
