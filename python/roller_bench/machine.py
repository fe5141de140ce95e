"""The machine of a comparison: the facts that its figures depend on, and whether two machines are the same."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import roller_tvm
from roller_tvm.device import DeviceSpec
from roller_tvm.device.matrix_unit import matrix_features
from roller_tvm.errors import RecordError
from roller_tvm.version import __version__

_PACKAGES = ("numpy", "xgboost", "onnxruntime", "torch")
_CPUINFO, _CPUS = Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu")
#: Fields of nvidia-smi: a card's constant facts, and its current clocks.
_CARD, _CLOCKS = "name,driver_version,clocks.max.sm,clocks.max.mem,power.limit", "clocks.sm,clocks.mem"


def environment(
    line: str, target: str, threads: int, facts: Mapping[str, Any], peaks: Mapping[str, float]
) -> dict[str, Any]:
    """Return the facts of this machine; 'id' is a digest of the constant ones.

    Parameters
    ----------
    line, target : str
    threads : int
        Threads of each kernel.
    facts : mapping
        Facts from the line of TVM: versions of TVM, LLVM and other compared software.
    peaks : mapping
        Peaks of the device: 'gflops', 'gbytes_per_s'.
    """
    known: dict[str, Any] = {
        "line": line, "target": target, "threads": threads, "roller-tvm": __version__,
        "python": platform.python_version(), "system": f"{platform.system()} {platform.release()}",
        "commit": commit(), **versions(), "cpu": cpu_name(), "cpu_id": cpu_id(), "caches": caches(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "governor": _read(_CPUS / "cpu0/cpufreq/scaling_governor"), "gpu": gpu_facts(_CARD), **facts, **peaks,
    }  # fmt: skip
    identity = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:12]
    changing = {"mhz": cpu_mhz(), "gpu_clocks": gpu_facts(_CLOCKS), "load": _load(),
                "date": datetime.now(timezone.utc).isoformat(timespec="seconds")}  # fmt: skip
    return {"id": identity, **known, **changing}


def versions() -> dict[str, str]:
    """Return the versions of the installed packages that tuners learn with or models run in, TVM excepted."""
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def cpu_name() -> str:
    """Return the CPU's model name."""
    for text in _read(_CPUINFO).splitlines():
        key, _, value = text.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def cpu_id() -> str:
    """Return vendor, family, model and stepping, because a virtual machine's CPU name may be just 'AMD EPYC'."""
    wanted = {"vendor_id": "", "cpu family": "family", "model": "model", "stepping": "stepping"}
    found: dict[str, str] = {}
    for text in _read(_CPUINFO).splitlines():
        key, _, value = text.partition(":")
        if key.strip() in wanted:
            found.setdefault(key.strip(), f"{wanted[key.strip()]} {value.strip()}".strip())
    return " ".join(found[key] for key in wanted if key in found)


def cpu_kind(device: DeviceSpec, threads: int | None = None) -> str:
    """Return what tells kinds of CPU apart in kept results: a virtual machine may hide its CPU's matrix unit."""
    unit = ", matrix unit" if matrix_features() else ""
    used = f"{device.units} cores" if threads is None else f"{threads} threads"
    return f"{cpu_id()}, {device.vector_bytes * 8} bit{unit}, {used}"


def caches() -> str:
    """Return the sizes of the first CPU's caches: 'L1d 32K, L2 512K, L3 32768K'."""
    found = {}
    for index in sorted(_CPUS.glob("cpu0/cache/index*")):
        kind = _read(index / "type")
        if kind != "Instruction":
            found[f"L{_read(index / 'level')}{'d' if kind == 'Data' else ''}"] = _read(index / "size")
    return ", ".join(f"{level} {size}" for level, size in found.items())


def cpu_mhz() -> float | None:
    """Return the current clock of the fastest CPU in MHz, or None if the kernel does not tell."""
    found = [
        float(text.partition(":")[2]) for text in _read(_CPUINFO).splitlines() if text.lower().startswith("cpu mhz")
    ]
    return max(found) if found else None


def gpu_facts(asked: str) -> str:
    """Return fields of the first card from ``nvidia-smi --query-gpu``, or '' if there is none."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.splitlines()[0].strip()
    return ""


def commit(package: Path = Path(roller_tvm.__file__).parent) -> str:
    """Return the last commit that changed the package, with '+' if files differ from it; '' outside a checkout.

    Commits of other files, results among them, do not change the answer.

    Parameters
    ----------
    package : Path
        Folder of the package. Only a repository with the package at its top counts: one that it is merely installed
        in does not.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     commit(Path(folder, "roller_tvm"))
    ''
    """
    if not (package.parent / ".git").exists():
        return ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        head = _git(package, "log", "-1", "--format=%h", "--abbrev=10", "HEAD", "--", str(package))
        same = _git(package, "diff", "--quiet", "HEAD", "--", str(package))
        known = head.stdout.strip()
        return f"{known}+" if known and same.returncode else known
    return ""


def _git(package: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=package, capture_output=True, text=True, timeout=20, check=False)


def _load() -> float | None:
    with contextlib.suppress(OSError, AttributeError):
        return round(os.getloadavg()[0], 2)
    return None


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""


#: Facts that all figures of a comparison must share.
SAME = ("line", "threads", "tvm", "llvm")
#: Facts of a machine. With --mix-machines they may differ between the cases of a folder, but never within a case.
PLACE = ("target", "machine", "cpu", "cpu_id", "caches", "gpu")


def changed(names: Iterable[str], other: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return how an environment differs from this one; a fact that it lacks (an older file) is no difference.

    Examples
    --------
    >>> changed(PLACE, {"cpu": "one"}, {"cpu": "two", "caches": "L2 512K"})
    ["cpu 'one', now 'two'"]
    """
    return [f"{n} {other[n]!r}, now {here.get(n)!r}" for n in names if n in other and other[n] != here.get(n)]


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if two environments are of one machine, as far as both tell.

    Examples
    --------
    >>> same({"cpu": "one"}, {"cpu": "one", "caches": "L2 512K"}), same({"machine": "a"}, {"machine": "b"})
    (True, False)
    """
    return not changed((n for n in PLACE if n in other), one, other)


def others(
    environments: Mapping[str, Mapping[str, Any]], here: Mapping[str, Any], mixed: bool, folder: str
) -> frozenset[str]:
    """Return the ids of the environments that are of another machine.

    Parameters
    ----------
    mixed : bool
        True to allow other machines.

    Raises
    ------
    RecordError
        A fact that all must share differs, or the machine differs and `mixed` is False.
    """
    found = set()
    for name, other in environments.items():
        if told := changed(SAME, other, here):
            raise RecordError(f"holds results of another environment: {'; '.join(told)}", folder, "give another folder")
        if told := changed(PLACE, other, here):
            if not mixed:
                remedy = "give another folder, or allow a machine per case with --mix-machines; the report names them"
                raise RecordError(f"holds results of another machine: {'; '.join(told)}", folder, remedy)
            found.add(name)
    return frozenset(found)


def place(environment: Mapping[str, Any]) -> str:
    """Return a short description of a machine.

    Examples
    --------
    >>> place({"cpu": "AMD EPYC", "cpu_id": "AuthenticAMD family 25 model 1 stepping 1", "caches": "L2 512K"})
    'AMD EPYC (AuthenticAMD family 25 model 1 stepping 1; L2 512K)'
    """
    if environment.get("gpu"):
        return str(environment["gpu"])
    more = "; ".join(str(environment[n]) for n in ("cpu_id", "caches") if environment.get(n))
    return f"{environment.get('cpu') or 'unknown machine'}{f' ({more})' if more else ''}"


def names(machines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a distinct name for each machine: `place`, and the differing facts of machines with the same `place`.

    Examples
    --------
    >>> names([{"cpu": "Xeon", "target": "llvm"}, {"cpu": "Xeon", "target": "llvm -mcpu=core-avx2"}, {"cpu": "EPYC"}])
    ['Xeon, target llvm', 'Xeon, target llvm -mcpu=core-avx2', 'EPYC']
    """
    found = []
    for machine in machines:
        alike = [m for m in machines if place(m) == place(machine)]
        differ = [n for n in PLACE if len({str(m.get(n)) for m in alike}) > 1]
        found.append(", ".join([place(machine), *(f"{n} {machine.get(n)}" for n in differ)]))
    return found
