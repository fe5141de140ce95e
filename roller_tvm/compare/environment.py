"""Where a comparison ran: facts that its figures depend on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from roller_tvm.version import __version__

_PACKAGES = ("numpy", "xgboost", "onnxruntime", "torch")
_CPUINFO, _CPUS = Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu")
#: Of a card: what stays, and the clocks of the moment.
_CARD, _CLOCKS = "name,driver_version,clocks.max.sm,clocks.max.mem,power.limit", "clocks.sm,clocks.mem"


def environment(
    line: str, target: str, threads: int, facts: Mapping[str, Any], peaks: Mapping[str, float]
) -> dict[str, Any]:
    """Facts of this machine, under an id that is the same while they are.

    Parameters
    ----------
    line, target : str
    threads : int
        Of each kernel.
    facts : mapping
        What the line tells: versions of TVM, LLVM and what else is compared.
    peaks : mapping
        Of the device: 'gflops', 'gbytes_per_s'.
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
    """Of what tuners learn with and models run in beside TVM, where it is installed."""
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def cpu_name() -> str:
    """The CPU's name for itself."""
    for text in _read(_CPUINFO).splitlines():
        key, _, value = text.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def cpu_id() -> str:
    """What tells CPUs apart that have one name: a virtual machine's may be just 'AMD EPYC'."""
    wanted = {"vendor_id": "", "cpu family": "family", "model": "model", "stepping": "stepping"}
    found: dict[str, str] = {}
    for text in _read(_CPUINFO).splitlines():
        key, _, value = text.partition(":")
        if key.strip() in wanted:
            found.setdefault(key.strip(), f"{wanted[key.strip()]} {value.strip()}".strip())
    return " ".join(found[key] for key in wanted if key in found)


def caches() -> str:
    """Sizes of the first CPU's caches: 'L1d 32K, L2 512K, L3 32768K'."""
    found = {}
    for index in sorted(_CPUS.glob("cpu0/cache/index*")):
        kind = _read(index / "type")
        if kind != "Instruction":
            found[f"L{_read(index / 'level')}{'d' if kind == 'Data' else ''}"] = _read(index / "size")
    return ", ".join(f"{level} {size}" for level, size in found.items())


def cpu_mhz() -> float | None:
    """The clock of the fastest CPU just now, as the kernel tells it."""
    found = [
        float(text.partition(":")[2]) for text in _read(_CPUINFO).splitlines() if text.lower().startswith("cpu mhz")
    ]
    return max(found) if found else None


def gpu_facts(asked: str) -> str:
    """What ``nvidia-smi --query-gpu`` tells of the first card, or ''."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.splitlines()[0].strip()
    return ""


def commit(package: Path = Path(__file__).parent.parent) -> str:
    """The last that changed the package in a checkout, with '+' where files differ from it; '' of an installed one.

    Commits of other files, results among them, leave it as it is.

    Parameters
    ----------
    package : Path
        Folder of the package. Only the repository that it is at the top of is its own: another that it is
        installed in says nothing of it.

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
