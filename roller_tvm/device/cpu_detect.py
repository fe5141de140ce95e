"""Detect this machine's CPU from the operating system: caches, cores, SIMD, and the share of it that is ours.

Linux is read from sysfs and procfs (under a root that tests replace), macOS from sysctl.  Values that cannot be read
are assumed from `data/_cpu.toml`, with a note in `notes`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from roller_tvm.device.known import Simd, estimate, simd_named, simd_table

_SIZE = re.compile(r"(\d+)\s*([KMG]?)")
_FACTOR = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Cache:
    """A data or unified cache: `bytes` of one instance, shared by `shared_by` cores."""

    level: int
    bytes: int
    line: int
    ways: int | None
    shared_by: int


@dataclass(frozen=True)
class CpuFacts:
    """This machine's CPU, as far as this process may use it.

    `logical` is the number of CPUs left by affinity and cgroup quota, `cores` that of the physical cores among them;
    `quota` is the quota in CPUs, or None.  `cpus` are the numbers of the CPUs we may use, one of each core first; empty
    if the system does not tell.  `caches` run from L1 to the last level.
    """

    model: str
    machine: str
    simd: Simd
    logical: int
    cores: int
    machine_logical: int
    quota: float | None
    clock_ghz: float
    caches: tuple[Cache, ...]
    memory_bytes: int
    flags: frozenset[str]
    cpus: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


    def cache(self, level: int) -> Cache | None:
        """Return the cache of a level, or None."""
        return next((c for c in self.caches if c.level == level), None)

    def has(self, flag: str) -> bool:
        """Return True if the CPU reports a feature, by its name in /proc/cpuinfo."""
        return flag in self.flags


def detect_cpu(
    root: str | os.PathLike[str] = "/",
    *,
    machine: str | None = None,
    affinity: frozenset[int] | None = None,
    system: str | None = None,
) -> CpuFacts:
    """Return the facts about this machine's CPU.

    Parameters
    ----------
    root : path
        Folder of `proc` and `sys`; tests give their own.
    machine, affinity, system
        Override `platform.machine()`, the CPUs this process may run on, and `platform.system()`.

    Examples
    --------
    >>> facts = detect_cpu()
    >>> facts.cores <= facts.logical <= facts.machine_logical
    True
    """
    machine = machine_named(machine or platform.machine())
    if (system or platform.system()) == "Darwin":
        return _detect_macos(machine)
    base = Path(root)
    notes: list[str] = []
    info = _cpuinfo(base / "proc/cpuinfo")
    flags = frozenset((info.get("flags") or info.get("Features") or "").split())
    online = _online(base)
    if affinity is None:
        affinity = _affinity()
    ours = sorted(set(online) & affinity) or online
    quota = _cgroup_quota(base)
    logical, cores = len(ours), _physical(base, ours)
    if len(ours) < len(online):
        notes.append(f"affinity leaves {len(ours)} of {len(online)} CPUs")
    if quota is not None and quota < logical:
        notes.append(f"the cgroup quota leaves {quota:g} CPUs of {logical}")
        logical = max(1, int(quota))
        cores = min(cores, logical)
    caches = _caches(base, ours[0], notes)
    clock = _clock(base, ours[0], info)
    if not clock:
        notes.append("clock assumed")
        clock = estimate("clock")
    return CpuFacts(
        model=info.get("model name") or info.get("Model") or info.get("Hardware") or f"unknown {machine}",
        machine=machine,
        simd=simd_for(machine, flags),
        logical=logical,
        cores=cores,
        machine_logical=len(online),
        quota=quota,
        clock_ghz=clock,
        caches=caches,
        memory_bytes=_memory(base, notes),
        flags=flags,
        cpus=tuple(_spread_out(base, ours)),
        notes=tuple(notes),
    )


def simd_for(machine: str, flags: frozenset[str]) -> Simd:
    """Return the widest SIMD that these flags allow."""
    for simd in simd_table():
        if simd.machine == machine and simd.flags <= flags:
            return simd
    # For an architecture that is not listed, 128-bit vectors are a safe guess: NEON and SSE2 have them.
    return simd_table()[-1]


def default_cpu_target(threads: int | None = None, facts: CpuFacts | None = None) -> str:
    """Return the TVM target of this machine, in terms of LLVM 10 and later.

    Parameters
    ----------
    threads : int, optional
        Value of -num-cores. Default: the physical cores that are ours.  Give the profiled device's `units` for the
        number to which threads really scale.

    Examples
    --------
    >>> default_cpu_target(threads=2).endswith("-num-cores=2")
    True
    """
    facts = facts or detect_cpu()
    if facts.machine == "aarch64":
        triple = "arm64-apple-darwin" if platform.system() == "Darwin" else "aarch64-linux-gnu"
        words = f"llvm -mtriple={triple} -mattr=+neon"
    else:
        words = f"llvm -mcpu={facts.simd.mcpu}"
    return f"{words} -num-cores={threads or facts.cores}"


def machine_named(name: str) -> str:
    """Return LLVM's name of an architecture, such as 'x86-64', from another of its names."""
    name = name.lower()
    return {"x86_64": "x86-64", "amd64": "x86-64", "arm64": "aarch64"}.get(name, name)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _cpuinfo(path: Path) -> Mapping[str, str]:
    """Return key -> value of the first processor (later ones repeat it)."""
    out: dict[str, str] = {}
    for line in _read(path).splitlines():
        key, colon, value = line.partition(":")
        if colon:
            out.setdefault(key.strip(), value.strip())
    return out


def cpu_list(text: str) -> list[int]:
    """Return the numbers of a list: '0-3,8' gives [0, 1, 2, 3, 8]; [] if it is malformed."""
    out: list[int] = []
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        try:
            out += range(int(first), int(last if dash else first) + 1)
        except ValueError:
            return []
    return out


def _online(base: Path) -> list[int]:
    listed = cpu_list(_read(base / "sys/devices/system/cpu/online"))
    if listed:
        return listed
    counted = len(re.findall(r"^processor\s*:", _read(base / "proc/cpuinfo"), re.MULTILINE))
    return list(range(counted or os.cpu_count() or 1))


def _affinity() -> frozenset[int]:
    """Return the CPUs of this thread; with TVM loaded, of all threads: it binds the one that runs a kernel to a CPU."""
    if not hasattr(os, "sched_getaffinity"):
        return frozenset(range(os.cpu_count() or 1))
    found = set(os.sched_getaffinity(0))
    threads = os.listdir("/proc/self/task") if "tvm" in sys.modules and os.path.isdir("/proc/self/task") else []
    for thread in threads:
        with contextlib.suppress(OSError):  # the thread ended meanwhile
            found |= os.sched_getaffinity(int(thread))
    return frozenset(found)


def _core_of(base: Path, cpu: int) -> tuple[str, str]:
    """Return a key of a CPU's core; the CPU itself if the system tells no topology."""
    topology = base / f"sys/devices/system/cpu/cpu{cpu}/topology"
    core = _read(topology / "core_id")
    return (_read(topology / "physical_package_id"), core) if core else ("", f"cpu{cpu}")


def _physical(base: Path, cpus: list[int]) -> int:
    """Return the number of distinct cores among these CPUs."""
    return len({_core_of(base, cpu) for cpu in cpus})


def _spread_out(base: Path, cpus: list[int]) -> list[int]:
    """Return the first CPU of every core, then the second of each, and so on."""
    seen: dict[tuple[str, str], int] = {}
    rank = {}
    for cpu in cpus:
        core = _core_of(base, cpu)
        rank[cpu] = seen.get(core, 0)
        seen[core] = rank[cpu] + 1
    return sorted(cpus, key=lambda cpu: (rank[cpu], cpu))


def _cgroup_quota(base: Path) -> float | None:
    """Return the CPUs granted by the tightest cgroup above us; None without a quota."""
    quotas = []
    fs = base / "sys/fs/cgroup"
    for line in _read(base / "proc/self/cgroup").splitlines() or ["0::/"]:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        parts = [p for p in path.split("/") if p and p != ".."]
        for depth in range(len(parts), -1, -1):
            below = Path(*parts[:depth])
            if number == "0":
                quota, _, period = _read(fs / below / "cpu.max").partition(" ")
            elif "cpu" in controllers.split(","):
                quota = _read(fs / "cpu" / below / "cpu.cfs_quota_us")
                period = _read(fs / "cpu" / below / "cpu.cfs_period_us")
            else:
                break
            if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _caches(base: Path, cpu: int, notes: list[str]) -> tuple[Cache, ...]:
    found: dict[int, Cache] = {}
    folder = base / f"sys/devices/system/cpu/cpu{cpu}/cache"
    for index in sorted(folder.glob("index*")) if folder.is_dir() else []:
        if _read(index / "type") not in ("Data", "Unified"):
            continue
        size = _SIZE.fullmatch(_read(index / "size"))
        level = _read(index / "level")
        if not size or not level.isdigit() or int(size[1]) == 0:
            continue
        line, ways = _read(index / "coherency_line_size"), _read(index / "ways_of_associativity")
        sharers = cpu_list(_read(index / "shared_cpu_list")) or [cpu]
        found[int(level)] = Cache(
            level=int(level),
            bytes=int(size[1]) * _FACTOR[size[2]],
            line=int(line) if line.isdigit() and int(line) else int(estimate("line")),
            ways=int(ways) if ways.isdigit() and int(ways) else None,
            shared_by=_physical(base, sharers),
        )
    return _complete(found, notes)


def _complete(found: dict[int, Cache], notes: list[str]) -> tuple[Cache, ...]:
    """Return caches with an L1 and an L2, as the planner needs; small ones are assumed if the system tells none."""
    for level in (1, 2):
        if level not in found:
            size = int(estimate(f"l{level}_capacity"))
            notes.append(f"L{level} assumed to be {size // 1024} KiB")
            found[level] = Cache(level, size, int(estimate("line")), None, 1)
    return tuple(found[level] for level in sorted(found) if level <= 3)


def _clock(base: Path, cpu: int, info: Mapping[str, str]) -> float:
    """Return the highest clock that the system tells, in GHz; 0 if it tells none."""
    text = _read(base / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq")
    if text.isdigit():
        return int(text) / 1e6
    try:
        return float(info.get("cpu MHz", "0")) / 1e3
    except ValueError:
        return 0.0


def _memory(base: Path, notes: list[str]) -> int:
    match = re.search(r"^MemTotal:\s*(\d+) kB", _read(base / "proc/meminfo"), re.MULTILINE)
    if match:
        return int(match[1]) * 1024
    notes.append("memory size assumed")
    return int(estimate("memory"))


def _detect_macos(machine: str) -> CpuFacts:
    notes: list[str] = []

    def ask(*keys: str) -> str:
        for key in keys:
            try:
                done = subprocess.run(
                    ["sysctl", "-n", key], capture_output=True, text=True, timeout=5, check=False
                )
            except (OSError, subprocess.TimeoutExpired):
                return ""
            if done.returncode == 0 and done.stdout.strip():
                return done.stdout.strip()
        return ""

    def whole(*keys: str) -> int:
        text = ask(*keys)
        return int(text) if text.isdigit() else 0

    line = whole("hw.cachelinesize") or int(estimate("line"))
    cores = whole("hw.perflevel0.physicalcpu", "hw.physicalcpu") or os.cpu_count() or 1
    found = {}
    for level, keys, sharers in (
        (1, ("hw.perflevel0.l1dcachesize", "hw.l1dcachesize"), 1),
        (2, ("hw.perflevel0.l2cachesize", "hw.l2cachesize"), whole("hw.perflevel0.cpusperl2") or 1),
        (3, ("hw.l3cachesize",), cores),
    ):
        size = whole(*keys)
        if size:
            found[level] = Cache(level, size, line, None, sharers)
    features = ask("machdep.cpu.features") + " " + ask("machdep.cpu.leaf7_features")
    flags = frozenset(features.lower().replace("avx1.0", "avx").split())
    clock = whole("hw.cpufrequency_max", "hw.cpufrequency") / 1e9
    if not clock:
        notes.append("clock assumed")
    return CpuFacts(
        model=ask("machdep.cpu.brand_string") or f"unknown {machine}",
        machine=machine,
        simd=simd_for(machine, flags),
        logical=cores,
        cores=cores,
        machine_logical=whole("hw.logicalcpu") or cores,
        quota=None,
        clock_ghz=clock or estimate("clock"),
        caches=_complete(found, notes),
        memory_bytes=whole("hw.memsize") or int(estimate("memory")),
        flags=flags,
        notes=tuple(notes),
    )


__all__ = ["Cache", "CpuFacts", "default_cpu_target", "detect_cpu", "simd_for", "simd_named"]
