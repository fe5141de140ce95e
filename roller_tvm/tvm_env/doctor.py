"""Checks this environment for tuning with TVM: reports found and missing parts, and a command to mend each."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from roller_tvm.children import python
from roller_tvm.codegen import find_compilers
from roller_tvm.tvm_env import probe
from roller_tvm.tvm_env.compiler import find_compiler, system_install
from roller_tvm.tvm_env.ffi import PAIRS, bad_pair, installed_ffi, pair_of
from roller_tvm.tvm_env.ffi import version_of as _distribution
from roller_tvm.tvm_env.locate import INSTALL, REMEDY, Line, TvmFound, find_tvm
from roller_tvm.tvm_env.threads import ENVIRONMENT
from roller_tvm.version import __version__

PROBE_SECONDS = 120
_PYTHON = "python" if shutil.which("python") == sys.executable else sys.executable
_PIP = f"{_PYTHON} -m pip install"
#: Packages that pip's apache-tvm needs, but pip does not install: name, use, whether it is needed.
BESIDE_RELAX = (
    ("cloudpickle", "MetaSchedule's builder and runner", True),
    ("psutil", "MetaSchedule's builder and runner", True),
    ("tornado", "measuring on another machine (RPC)", False),
)
_COMPARED = ("onnxruntime", "what outputs and speed are compared with", "onnxruntime", "onnxruntime")
#: Packages of use with a line: name, use, requirement, the module that has to be there.
PACKAGES = {
    Line.RELAY: (
        ("onnx", "reads ONNX models", "onnx==1.18.0", "onnx.mapping"),  # Relay's importer reads onnx.mapping
        _COMPARED,
        ("xgboost", "cost model of Ansor and AutoTVM, to compare with", "xgboost", "xgboost"),
    ),
    Line.RELAX: (
        ("onnx", "reads ONNX models", "onnx", "onnx"),
        ("onnxslim", "folds away the shapes that Relax's importer stumbles over", "onnxslim", "onnxslim"),
        ("torch", "reads PyTorch's exported programs (.pt2)", "torch", "torch"),
        _COMPARED,
        ("xgboost", "cost model of MetaSchedule, to compare with", "xgboost", "xgboost"),
    ),
}
#: Parts of a TVM of a line: name, use, whether it is needed.
PARTS = {
    Line.RELAY: (
        ("Relay", "whole models", True),
        ("TE schedules", "schedule primitives", True),
        ("auto_scheduler", "records are kept in its format", True),
        ("AutoTVM", "a tuner to compare with", False),
    ),
    Line.RELAX: (("Relax", "whole models", True), ("MetaSchedule", "tuning goes into its database", True)),
}


@dataclass(frozen=True)
class Check:
    """One thing looked for.

    Attributes
    ----------
    name : str
    found : bool
    detail : str
        Its version, or its use if it is missing.
    needed : bool
        True if the line cannot do its work without it.
    remedy : str
        The one command that mends it, if it is missing.
    """

    name: str
    found: bool
    detail: str
    needed: bool = False
    remedy: str = ""


@dataclass(frozen=True)
class Report:
    """All checks; healthy if nothing needed is missing."""

    tvm: TvmFound | None
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """True if all that the line needs is there."""
        return all(check.found or not check.needed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        tvm = self.tvm and {**asdict(self.tvm), "root": str(self.tvm.root), "line": self.tvm.line.value}
        checks = [asdict(check) for check in self.checks]
        return {"roller_tvm": __version__, "healthy": self.healthy, "tvm": tvm, "checks": checks}

    def __str__(self) -> str:
        rows = [f"roller-tvm {__version__}, Python {sys.version.split()[0]} at {sys.executable}"]
        width = max(len(check.name) for check in self.checks)
        for check in self.checks:
            state = "ok" if check.found else "MISSING" if check.needed else "-"
            rows.append(f"  {state:<8}{check.name:<{width}}  {check.detail}")
            if not check.found and check.remedy:
                rows.append(f"  {'':<8}{'':<{width}}  mend: {check.remedy}")
        rows.append("all that is needed is there" if self.healthy else "something needed is MISSING")
        return "\n".join(rows)


def examine(wanted: Line | None = None) -> Report:
    """Look at this environment. TVM is imported in a child process only.

    Parameters
    ----------
    wanted : Line, optional
        The line that is asked for; a TVM of the other counts as missing then.

    Examples
    --------
    >>> [check.name for check in examine().checks]
    ['TVM', ...]
    """
    found = find_tvm()
    line = wanted or (found.line if found else None)
    checks = [_tvm(found, wanted)]
    seen: dict[str, Any] = {}
    if found is not None and found.line is not Line.UNSUPPORTED:
        if found.line is Line.RELAX:
            checks += _beside_relax(found)
        seen, failure = _run_probe()
        if failure:
            checks.append(Check("import tvm", False, failure, True, _import_remedy(found)))
        else:
            checks += _capabilities(found, seen)
    checks += [_compiler(), *_cuda_compilers(), _gpu(seen), *_packages(line), _threads(seen), _profile()]
    return Report(found, tuple(checks))


def _tvm(found: TvmFound | None, wanted: Line | None) -> Check:
    if found is None:
        remedy = REMEDY[wanted] if wanted else f"{INSTALL} (Relay), or {REMEDY[Line.RELAX]} (Relax)"
        return Check("TVM", False, "no TVM can be imported (planning works without)", True, remedy)
    known = found.line is not Line.UNSUPPORTED
    supported = found.line is wanted if wanted else known
    line = f"{found.line.value} line" if known else "neither 0.13 to 0.19 nor 0.25 on"
    if known and not supported and wanted:
        line += f", not the {wanted.value} line that is asked for"
    detail = f"{found.version}, {line}, {'from the PyPI wheel' if found.from_wheel else 'your own'}, {found.root}"
    return Check("TVM", supported, detail, True, f"in a new environment: {REMEDY[wanted or Line.RELAX]}")


def _beside_relax(found: TvmFound) -> list[Check]:
    """Return the checks of packages that pip's TVM needs but pip does not install."""
    ffi = installed_ffi()
    bad = bad_pair(found.version, ffi)
    detail = ffi or "none: this TVM brings its own"
    if bad is not None:
        detail = f"{ffi} with apache-tvm {found.version}: {bad.how}"
    elif pair_of(found.version) is None:
        newest = ".".join(map(str, max(PAIRS)))
        detail += f"; apache-tvm {found.version} was not tried with roller-tvm (the newest that was: {newest})"
    checks = [Check("apache-tvm-ffi", bad is None, detail, True, bad.remedy if bad else "")]
    for name, use, needed in BESIDE_RELAX:
        there = _distribution(name)
        checks.append(Check(name, there is not None, there or use, needed, f"{_PIP} {name}"))
    return checks


def _import_remedy(found: TvmFound) -> str:
    if found.from_wheel:
        return INSTALL
    if found.line is Line.RELAX and (pair := pair_of(found.version)) is not None:
        return pair.remedy
    return "python -c 'import tvm' shows the whole error; mend or remove that TVM"


def _run_probe() -> tuple[dict[str, Any], str]:
    """Return the probe's report, or why there is none."""
    env = {k: v for k, v in os.environ.items() if k != ENVIRONMENT}  # the pool's own default is wanted
    words = python(str(Path(probe.__file__)))
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=PROBE_SECONDS, env=env)
    except subprocess.TimeoutExpired:
        return {}, f"gave no answer within {PROBE_SECONDS} s"
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1]), ""
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return {}, f"failed: {last}" if done.returncode > 0 else f"crashed (signal {-done.returncode}): {last}"


def _capabilities(found: TvmFound, seen: dict[str, Any]) -> list[Check]:
    other, codegen = f"in a new environment: {REMEDY[found.line]}", seen["codegen"]
    llvm = f"code for CPUs, LLVM {seen['info'].get('LLVM_VERSION', '')}"
    checks = [
        Check("llvm", "llvm" in codegen, llvm, True, other),
        Check("cuda", "cuda" in codegen, "code for NVIDIA GPUs", False, other),
    ]
    if extra := [name for name in codegen if name not in ("llvm", "cuda")]:
        checks.append(Check("other targets", True, ", ".join(extra)))
    there = {*seen["parts"], *(["TE schedules"] if seen["te_schedules"] else [])}
    checks += [Check(part, part in there, use, needed, other) for part, use, needed in PARTS[found.line]]
    return checks if found.line is Line.RELAY else [*checks, _target(seen)]


def _target(seen: dict[str, Any]) -> Check:
    """This CPU as the dict that the Relax line takes: what it leaves out makes code for the least CPU."""
    from roller_tvm.device import cpu_device
    from roller_tvm.device.known import tuned_name

    cpu = tuned_name(seen.get("cpu", ""))
    target: dict[str, Any] = {"kind": "llvm", "mcpu": cpu, "num-cores": cpu_device(profile=False).units}
    return Check("target", cpu not in ("", "generic"), f"this CPU: {json.dumps(target)}")


def _compiler() -> Check:
    path = find_compiler()
    use = path or "candidates are linked with it before they are measured"
    return Check("C compiler", path is not None, use, True, system_install("g++"))


def _cuda_compilers() -> list[Check]:
    """Those that `roller_tvm.codegen` would take."""
    told = {c.name: f"{c.version[0]}.{c.version[1]}, {c.path}" for c in find_compilers()}
    pip = f"{_PIP} nvidia-cuda-nvrtc-cu12"
    return [
        Check("nvcc", "nvcc" in told, told.get("nvcc", "not needed where NVRTC is")),
        Check("NVRTC", "nvrtc" in told, told.get("nvrtc", "compiles CUDA without nvcc"), False, pip),
    ]


def _gpu(seen: dict[str, Any]) -> Check:
    gpu = seen.get("gpu")
    return Check("GPU", bool(gpu), gpu or "none TVM can use; planning and compiling for GPUs work without")


def _packages(line: Line | None) -> list[Check]:
    checks = []
    for name, use, requirement, module in PACKAGES[line if line is Line.RELAX else Line.RELAY]:
        there = _distribution(name)
        detail = there or use
        if there and not _importable(module):
            there, detail = None, f"{there} has no {module}, which TVM's importer reads"
        checks.append(Check(name, there is not None, detail, False, f"{_PIP} {requirement}"))
    return checks


def _importable(module: str) -> bool:
    """Return True if the module's file is there; nothing of it is run."""
    package, _, part = module.partition(".")
    spec = importlib.util.find_spec(package)
    if spec is None or not part:
        return spec is not None
    return any((Path(root) / f"{part}.py").is_file() for root in spec.submodule_search_locations or ())


def _threads(seen: dict[str, Any]) -> Check:
    """TVM's pool takes half of the CPUs, unless told; then every kernel runs at half speed."""
    from roller_tvm.device import cpu_device

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    units, said = cpu_device(profile=False).units, os.environ.get(ENVIRONMENT, "")
    taken = int(said) if said.isdigit() else seen.get("pool")
    detail = f"{cpus} logical CPUs"
    if not taken:
        return Check("threads", True, detail)
    detail += f", kernels scale to {units}; TVM's pool takes {taken}" + (f" ({ENVIRONMENT})" if said else "")
    if taken != units:
        detail += " (roller-tvm sets it itself, other programs do not)"
    return Check("threads", taken == units, detail, False, f"export {ENVIRONMENT}={units}")


def _profile() -> Check:
    """Return the check of the CPU profile that plans rest on. Measures nothing."""
    from roller_tvm.device.cpu_profile import cpu_report

    report = cpu_report(profile=False)
    peak, far = report.spec.peak(), report.spec.far
    told = f"{peak:.0f} GFLOP/s on {report.spec.units} threads, {far.name} {far.bandwidth_gbps:.0f} GB/s"
    how = f"measured, {report.path}" if not report.reason else "assumed until it is measured, at the first tuning"
    return Check("CPU profile", not report.reason, f"{told}, {how}", False, "roller-tvm profile")
