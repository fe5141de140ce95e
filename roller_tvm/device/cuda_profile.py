"""CUDA cards of this machine: queried, profiled once by micro-benchmarks, and kept as spec files in the user's cache.

From then on, the targets of its architecture mean the profiled card (`device_for_target`).  If a card cannot be
profiled, its numbers are those of the nearest shipped device, with the limits from its driver.

Not yet run on a card.  Compiled for sm_50 to sm_120; tested with made-up cards.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from roller_tvm.device.arch import arch_number, device_of_arch
from roller_tvm.device.cache import cache_folder, one_at_a_time, write_whole
from roller_tvm.device.cuda_bench import SOURCE, WHERE, CudaRunner
from roller_tvm.device.cuda_driver import LIBRARIES, CudaFacts
from roller_tvm.device.cuda_measure import CudaProfile, lanes, measure_cuda
from roller_tvm.device.files import read_file, shipped
from roller_tvm.device.profile import Sources, spread_words
from roller_tvm.device.spec import DeviceSpec, FrozenMap, MemoryLevel
from roller_tvm.device.write import spec_text
from roller_tvm.errors import ProfileError, SpecError, TargetError

#: Limit in a spec -> the driver's fact.
QUERIED = {
    "max_threads_per_block": "max_threads_per_block", "max_threads_per_unit": "max_threads_per_unit",
    "max_blocks_per_unit": "max_blocks_per_unit", "registers_per_unit": "registers_per_unit",
    "max_registers_per_block": "registers_per_block", "shared_per_block_bytes": "shared_per_block",
    "shared_per_block_optin_bytes": "shared_per_block_optin", "shared_reserved_bytes": "shared_reserved",
}  # fmt: skip


@dataclass(frozen=True)
class CudaReport:
    """A card's device and the origin of its numbers; `refused` is the error if it could not be profiled (again)."""

    spec: DeviceSpec
    facts: CudaFacts
    path: Path
    cached: bool
    seconds: float
    profile: CudaProfile | None = None
    refused: ProfileError | None = None


def cuda_report(ordinal: int = 0, refresh: bool = False, *, runner: CudaRunner | None = None) -> CudaReport:
    """Return card `ordinal` as a device: from the cache, else profiled now (some seconds, once per card).

    Raises
    ------
    ProfileError
        The driver or the card is missing.  A card that cannot be profiled is no error: see `refused`.
    """
    run = runner or CudaRunner(ordinal)
    facts = run.facts()
    path = cache_path(facts)
    stored = _load(path)
    if stored is not None and not refresh:
        return CudaReport(stored, facts, path, True, 0.0)
    with one_at_a_time(path):
        again = _load(path)
        if again is not None and not refresh:  # another process has measured meanwhile
            return CudaReport(again, facts, path, True, 0.0)
        return _measured(path, facts, run, stored)


def _measured(path: Path, facts: CudaFacts, run: CudaRunner, stored: DeviceSpec | None) -> CudaReport:
    start = time.perf_counter()
    try:
        profile = measure_cuda(facts, run)
    except ProfileError as err:
        spent = time.perf_counter() - start
        if stored is not None:
            kept = replace(stored, notes=(*stored.notes, f"the earlier profile is kept: {err.what}"))
            return CudaReport(kept, facts, path, True, spent, refused=err)
        spec = cuda_spec(facts, None, (f"not measured: {err.what}",))
        return CudaReport(spec, facts, path, False, spent, refused=err)
    when = time.strftime("%Y-%m-%d", time.gmtime())
    read = ", ".join(f"{size >> 20} MiB {rate:.0f}" for size, rate in profile.by_size.items())
    driver = f"CUDA driver {facts.driver // 1000}.{facts.driver % 1000 // 10}"
    spec = cuda_spec(facts, profile, (f"profiled on {when}, {driver}", f"GB/s read: {read}"))
    problem = write_whole(path, spec_text(spec))
    if problem:
        spec = replace(spec, notes=(*spec.notes, f"the profile is not kept: {problem}"))
    return CudaReport(spec, facts, path, False, time.perf_counter() - start, profile)


def profiled_card(
    number: int, model: str = "", *, cards: Callable[[], list[CudaFacts]] | None = None
) -> DeviceSpec | None:
    """Return this machine's card that a target means, profiled if it never was; None if there is none.

    Parameters
    ----------
    number : int
        Number of the architecture.
    model : str
        Value of the target's -model; '' for any card of the architecture.
    """
    present = present_models()
    found = [s for s in _stored() if arch_number(s.arch) == number and means(model, s.title)]
    found = [s for s in found if not present or s.title in present]
    if found:
        rest = sorted({s.title for s in found} - {found[0].title})
        more = (f"also profiled: {', '.join(rest)}; -model names one",) if rest else ()
        return replace(found[0], notes=(*found[0].notes, *more)) if more else found[0]
    if cards is None and not _driver_here():
        return None
    for facts in (cards or _cards)():
        if int(f"{facts.major}{facts.minor}") == number and means(model, facts.name):
            return _profiled_now(facts.ordinal)
    return None


def means(model: str, title: str) -> bool:
    """Return True if a target's -model can be this card: 'h100', 'nvidia-h100', 'rtx4090', 'nvidia/geforce-rtx-4090'.

    Examples
    --------
    >>> means("rtx4090", "NVIDIA GeForce RTX 4090"), means("a10", "NVIDIA A100-SXM4-80GB"), means("", "any")
    (True, False, True)
    """
    words = re.findall(r"[a-z0-9]+", title.lower())
    runs = {"".join(words[first:end]) for first, end in combinations(range(len(words) + 1), 2)}
    return not model or re.sub(r"[^a-z0-9]", "", model.lower().removeprefix("nvidia/")) in runs


def present_models(root: str = "/") -> set[str]:
    """Return the names of the cards that the Linux driver lists in /proc, without calling the driver."""
    folder = Path(root, "proc/driver/nvidia/gpus")
    texts = [_text(path) for path in folder.glob("*/information")] if folder.is_dir() else []
    return {match[1].strip() for text in texts if (match := re.search(r"^Model:\s*(.+)$", text, re.MULTILINE))}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _driver_here() -> bool:
    for name in LIBRARIES:
        try:
            return hasattr(ctypes.CDLL(name), "cuInit")
        except OSError:
            continue
    return False


@functools.lru_cache(maxsize=1)
def _cards() -> list[CudaFacts]:
    """Return the cards of this machine, queried once per process."""
    try:
        return CudaRunner().cards()
    except ProfileError:
        return []


@functools.lru_cache(maxsize=16)
def _profiled_now(ordinal: int) -> DeviceSpec | None:
    """Profile a card, once per process whatever the result; None if the card is older than any known one."""
    try:
        return cuda_report(ordinal).spec
    except ProfileError:  # a card older than any that is known
        return None


# The cache --------------------------------------------------------------------------------------------


def _version() -> str:
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:8]


def cache_path(facts: CudaFacts) -> Path:
    """Return the path of a card's spec file; it depends on name, size (MIG) and the benchmarks' version."""
    name = re.sub(r"[^a-z0-9]+", "-", facts.name.lower()).strip("-")
    key = f"cuda-{name}-{facts.arch}-{facts.units}sm-{facts.memory_bytes >> 30}gib"
    return cache_folder() / f"{key}-{_version()}.toml"


def _stored() -> list[DeviceSpec]:
    """Return the profiled cards in the cache, the last profiled first."""
    folder = cache_folder()
    paths = [p for p in folder.glob(f"cuda-*-{_version()}.toml") if p.is_file()] if folder.is_dir() else []
    specs = [_load(p) for p in sorted(paths, key=lambda p: (-p.stat().st_mtime, p.name))]
    return [s for s in specs if s is not None]


def _load(path: Path) -> DeviceSpec | None:
    """Return a stored spec; None if it is missing or cannot be read (profiling replaces it)."""
    try:
        return read_file(path, shipped) if path.is_file() else None
    except SpecError:
        return None


# The device -------------------------------------------------------------------------------------------


def cuda_spec(facts: CudaFacts, profile: CudaProfile | None, notes: tuple[str, ...] = ()) -> DeviceSpec:
    """Return the device made of these facts and this profile; without a profile, speeds are scaled by units and clock.

    Values known from neither (transactions, lines, banks, granularities, tensor cores) are the nearest shipped
    device's.
    """
    try:
        base = device_of_arch(int(f"{facts.major}{facts.minor}"), WHERE, others=False)
    except TargetError as err:
        remedy = "write a spec file for it: --device FILE.toml"
        raise ProfileError(err.what, f"{WHERE} {facts.ordinal}", remedy) from err
    clock = profile.clock_ghz if profile else facts.clock_khz / 1e6 or base.clock_ghz
    scale, scaled = facts.units * clock / (base.units * base.clock_ghz), f"{base.name}'s, by units and clock"
    sources = Sources(base.sources)
    told = sources.told

    def measured(what: str, name: str = "") -> str:
        return f"measured: {what}{spread_words(profile.spread, name)}" if profile else scaled

    peaks = {dtype: told(f"peak.{dtype}", rate * scale, scaled) for dtype, rate in base.peak_gflops.items()}
    for dtype, rate in profile.peak.items() if profile else ():
        peaks[dtype] = told(f"peak.{dtype}", rate, measured("16 chains a thread", dtype))
    tensor = {dtype: told(f"tensor_peak.{dtype}", rate * scale, scaled) for dtype, rate in base.tensor_gflops.items()}
    limits = replace(base.limits, **_queried_limits(facts, sources))
    if profile:
        limits = replace(
            limits, fma_latency_cycles=told("limits.fma_latency", profile.fma_latency_cycles, measured("one chain")),
            fma_per_cycle=told("limits.fma_per_cycle", lanes(facts, profile) / facts.warp,
                               measured("peak by units, clock and warp", "float32")),
        )  # fmt: skip
    capacity = {"dram": facts.memory_bytes, "l2": facts.l2_bytes, "shared": facts.shared_per_unit}
    levels: list[MemoryLevel] = []
    for level in base.levels:
        at, name, size, latency = f"level.{level.name}", level.name, level.capacity_bytes, level.latency_ns
        if profile and name in profile.bandwidth:
            rate = told(f"{at}.bandwidth", profile.bandwidth[name], measured("read, whole device", name))
        elif name == base.near.name:
            operands = "three 4 B operands for each float32 multiply-add"
            rate = told(f"{at}.bandwidth", 3 * 4 * peaks["float32"] / 2, operands)
        else:
            rate = told(f"{at}.bandwidth", level.bandwidth_gbps * scale, scaled)
        if profile and name in profile.latency_ns:
            latency = told(f"{at}.latency", profile.latency_ns[name], measured("dependent loads"))
        if capacity.get(name):
            size = told(f"{at}.capacity", capacity[name], "queried: memory that the driver tells")
        farther = levels[-1].bandwidth_gbps if levels else 0.0
        levels.append(replace(level, capacity_bytes=size, bandwidth_gbps=max(rate, farther), latency_ns=latency))
    launch = profile.launch_us if profile else base.launch_overhead_us
    return replace(
        base, name=re.sub(r"[^a-z0-9]+", "-", facts.name.lower()).strip("-") or "cuda", title=facts.name,
        arch=facts.arch, units=told("units", facts.units, "queried: multiprocessors"),
        vector_width=told("vector_width", facts.warp, "queried: warp"), levels=tuple(levels), limits=limits,
        peak_gflops=FrozenMap(peaks), tensor_gflops=FrozenMap(tensor),
        clock_ghz=told("clock", clock, measured("cycles by time, all units at work", "clock")),
        launch_overhead_us=told("launch_overhead", launch, measured("empty kernels, one after the other", "launch")),
        source="profiled" if profile else "estimated", sources=FrozenMap(sources),
        notes=(*notes, f"values without a query or benchmark are those of {base.name} ({base.arch})"),
    )  # fmt: skip


def _queried_limits(facts: CudaFacts, sources: Sources) -> dict[str, int]:
    """Return the limits that the driver tells, by field."""
    limits = {own: getattr(facts, fact) for own, fact in QUERIED.items() if getattr(facts, fact)}
    if limits.get("shared_per_block_optin_bytes", 0) < limits.get("shared_per_block_bytes", 0):
        limits["shared_per_block_optin_bytes"] = limits["shared_per_block_bytes"]
    for own in limits:
        sources[f"limits.{own.removesuffix('_bytes')}"] = "queried: limits that the driver tells"
    return limits
