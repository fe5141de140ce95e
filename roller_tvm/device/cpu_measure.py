"""What is measured of a CPU, and what a measurement must look like to be believed.

Other programs only ever slow a repeat down, so the best of many short repeats is the machine's rate; how far
the median lies below it (`spread`) tells how busy the machine was.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from roller_tvm.device.cpu_bench import CannotProfile, Rates, Request, Runner
from roller_tvm.device.cpu_data import estimate, sanity
from roller_tvm.device.cpu_detect import CpuFacts

LEVELS = ("l1", "l2", "l3", "dram")
DTYPES = {"float32": "fma32", "float64": "fma64", "float16": "fma16"}
#: Threads "scale" up to the least number that reaches this share of the best rate of all.
SCALING_SHARE = 0.92
#: Fewer of the cores at work than this share, and phase one is tried again: more likely noise than hardware.
SCALING_EXPECTED = 0.85
ATTEMPTS = 3


@dataclass(frozen=True)
class CpuProfile:
    """Measured rates of this machine's CPU.

    `scaling` is float32 GFLOP/s by number of threads; `peak` and `bandwidth` hold (one thread, `units`
    threads) in GFLOP/s and GB/s; `latency_ns` is that of dependent loads; `spread` is by measurement the
    share by which the median of its repeats lies below the best.
    """

    clock_ghz: float
    fma_latency_cycles: float
    fma_per_cycle: float
    units: int
    scaling: dict[int, float]
    peak: dict[str, tuple[float, float]]
    bandwidth: dict[str, tuple[float, float]]
    latency_ns: dict[str, float]
    spread: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CpuProfile:
        """The inverse of `to_dict` after JSON; ValueError for anything else."""
        try:
            values = {f.name: data[f.name] for f in fields(cls)}
            values["scaling"] = {int(k): float(v) for k, v in values["scaling"].items()}
            for key in ("peak", "bandwidth"):
                values[key] = {k: (float(v[0]), float(v[1])) for k, v in values[key].items()}
            for key in ("latency_ns", "spread"):
                values[key] = {k: float(v) for k, v in values[key].items()}
            for key in ("clock_ghz", "fma_latency_cycles", "fma_per_cycle"):
                values[key] = float(values[key])
            values["units"] = int(values["units"])
        except (KeyError, TypeError, AttributeError, IndexError) as err:
            raise ValueError(f"not a CPU profile: {err!r}") from err
        return cls(**values)

    def rate(self, table: Mapping[str, tuple[float, float]], key: str, threads: int) -> float:
        """A rate of `table` on `threads` threads: a straight line from one to `units`."""
        one, full = table[key]
        if self.units == 1 or threads >= self.units:
            return full
        return one + (full - one) * (threads - 1) / (self.units - 1)


def thread_counts(facts: CpuFacts) -> list[int]:
    """Numbers of threads to try: powers of two, all cores, all logical CPUs."""
    counts = {1, facts.cores, facts.logical}
    power = 2
    while power < facts.logical:
        counts.add(power)
        power *= 2
    return sorted(counts)


def working_set(facts: CpuFacts, level: str, threads: int) -> int:
    """Bytes a thread, so that `threads` of them live in `level` and in none nearer."""
    if level == "dram":
        last = facts.caches[-1]
        # All instances of the last level, four times, but never so much that a small machine swaps.
        instances = -(-facts.cores // max(1, last.shared_by))
        total = min(max(4 * last.bytes * instances, 64 << 20), 1 << 30, facts.memory_bytes // 8)
        return max(total // threads, 4 << 20) // 4096 * 4096
    cache = facts.cache(int(level[1]))
    assert cache is not None
    share = cache.bytes // max(1, min(threads, cache.shared_by))
    half = share // 2
    nearer = facts.cache(cache.level - 1)
    if nearer is not None and half < 2 * nearer.bytes:
        half = min(2 * nearer.bytes, share * 3 // 4)
    return max(half // 4096, 1) * 4096


def chased_set(facts: CpuFacts, level: str) -> int:
    """Bytes to chase pointers through: of L3 what the TLB covers, of DRAM what is set up quickly."""
    size = min(working_set(facts, level, 1), 256 << 20)
    nearer = facts.cache(2)
    return min(size, 4 * nearer.bytes) if level == "l3" and nearer else size


def levels_of(facts: CpuFacts) -> tuple[str, ...]:
    """Memory levels of this CPU, near to far."""
    return tuple(lv for lv in LEVELS if lv == "dram" or facts.cache(int(lv[1])) is not None)


def measure_cpu(facts: CpuFacts, run: Runner) -> CpuProfile:
    """Measure; CannotProfile if what comes out cannot be true, even at a second and third try."""
    merged: Rates = {}
    speed = [Request("clock", budget_ms=40), Request("latency32", budget_ms=40)]
    scaling = {n: Request("fma32", n) for n in thread_counts(facts)}
    for _ in range(ATTEMPTS):
        _merge(merged, run([*speed, *scaling.values()]))
        one = _best(merged, scaling[1])
        if all(
            _best(merged, r) >= SCALING_EXPECTED * n * one for n, r in scaling.items() if n <= facts.cores
        ):
            break
    rates = {n: _best(merged, r) for n, r in scaling.items()}
    units = min(n for n, rate in rates.items() if rate >= SCALING_SHARE * max(rates.values()))

    peaks = {k: (Request(k, 1), Request(k, units)) for k in DTYPES.values()}
    reads = {
        lv: tuple(Request("read", n, working_set(facts, lv, n), repeats=60) for n in (1, units))
        for lv in levels_of(facts)
    }
    chases = {lv: Request("chase", 1, chased_set(facts, lv), budget_ms=80) for lv in levels_of(facts)}
    wanted = [r for pair in peaks.values() for r in pair] + [r for pair in reads.values() for r in pair]
    wanted = [r for r in dict.fromkeys([*wanted, *chases.values()]) if r not in merged]
    problems: list[str] = []
    for _ in range(ATTEMPTS):
        _merge(merged, run(wanted))
        profile = _profile(facts, merged, speed, rates, units, peaks, reads, chases)
        problems = check_profile(facts, profile)
        if not problems and not _disturbed(facts, profile):
            break
    if not problems:
        return _in_order(profile, levels_of(facts))
    raise CannotProfile("measured numbers that cannot be true: " + "; ".join(problems))


def _profile(
    facts: CpuFacts,
    merged: Rates,
    speed: Sequence[Request],
    rates: dict[int, float],
    units: int,
    peaks: Mapping[str, tuple[Request, Request]],
    reads: Mapping[str, tuple[Request, ...]],
    chases: Mapping[str, Request],
) -> CpuProfile:
    clock = _best(merged, speed[0])
    latency = clock / _best(merged, speed[1]) if _best(merged, speed[1]) else 0.0
    peak = {
        dtype: (_best(merged, peaks[kind][0]), _best(merged, peaks[kind][1]))
        for dtype, kind in DTYPES.items()
        if merged.get(peaks[kind][0])
    }
    lanes = facts.simd.vector_bytes // 4
    per_cycle = rates[1] / (2 * lanes * clock) if clock else 0.0
    spread = {"clock": _spread(merged, speed[0])}
    spread |= {dtype: _spread(merged, peaks[DTYPES[dtype]][1]) for dtype in peak}
    spread |= {lv: _spread(merged, pair[1]) for lv, pair in reads.items()}
    return CpuProfile(
        clock_ghz=clock,
        fma_latency_cycles=latency,
        fma_per_cycle=per_cycle,
        units=units,
        scaling=rates,
        peak=peak,
        bandwidth={lv: (_best(merged, pair[0]), _best(merged, pair[1])) for lv, pair in reads.items()},
        latency_ns={lv: 1 / _best(merged, r) if _best(merged, r) else 0.0 for lv, r in chases.items()},
        spread=spread,
    )


def _disturbed(facts: CpuFacts, profile: CpuProfile) -> bool:
    """Whether what each core has for itself scaled worse than float32 FMA did: others were at work."""
    expected = SCALING_EXPECTED * profile.scaling[profile.units] / profile.scaling[1]
    own = [lv for lv in levels_of(facts) if lv in ("l1", "l2")]
    pairs = [*profile.peak.values(), *(profile.bandwidth[lv] for lv in own)]
    return any(full < expected * one for one, full in pairs)


def check_profile(facts: CpuFacts, profile: CpuProfile) -> list[str]:
    """Why these numbers cannot be true; empty if they can."""
    bad: list[str] = []
    numbers = [profile.clock_ghz, profile.fma_latency_cycles, *profile.scaling.values()]
    numbers += [v for pair in (*profile.peak.values(), *profile.bandwidth.values()) for v in pair]
    numbers += profile.latency_ns.values()
    if not all(math.isfinite(v) and v > 0 for v in numbers):
        return ["a rate is zero or not a number"]
    if set(profile.bandwidth) != set(levels_of(facts)):
        return [
            f"bandwidth of {', '.join(profile.bandwidth)} where the CPU has {', '.join(levels_of(facts))}"
        ]
    if not 1 <= profile.units <= facts.machine_logical:
        bad.append(f"threads scale to {profile.units} on {facts.machine_logical} CPUs")
    if not sanity("clock_min") <= profile.clock_ghz <= sanity("clock_max"):
        bad.append(f"a clock of {profile.clock_ghz:.2f} GHz")
    if not sanity("fma_per_cycle_min") <= profile.fma_per_cycle <= sanity("fma_per_cycle_max"):
        bad.append(f"{profile.fma_per_cycle:.2f} vector FMA a cycle")
    one = profile.scaling.get(1, 0.0)
    for threads, rate in profile.scaling.items():
        if rate > 1.25 * threads * one:
            bad.append(f"{threads} threads are {rate / one:.1f} times as fast as one")
    limit = 2 * facts.simd.vector_bytes / 4 * profile.clock_ghz * sanity("fma_per_cycle_max") * profile.units
    if profile.peak.get("float32", (0, 0))[1] > limit:
        bad.append(f"a float32 peak of {profile.peak['float32'][1]:.0f} GFLOP/s, above {limit:.0f}")
    loads = facts.simd.vector_bytes * profile.clock_ghz * sanity("loads_per_cycle_max") * profile.units
    if profile.bandwidth["l1"][1] > loads:
        bad.append(f"{profile.bandwidth['l1'][1]:.0f} GB/s from L1, above {loads:.0f}")
    order = levels_of(facts)
    for near, far in zip(order, order[1:], strict=False):
        if profile.bandwidth[near][1] < 0.9 * profile.bandwidth[far][1]:
            bad.append(f"{near} slower than {far}")
    return bad


def estimated_profile(facts: CpuFacts) -> CpuProfile:
    """What to assume where nothing can be measured: detection and `data/_cpu.toml`."""
    clock, units = facts.clock_ghz, facts.cores
    lanes = facts.simd.vector_bytes // 4
    per_cycle = estimate("fma_per_cycle") * (1.0 if facts.simd.fma else 0.5)
    core = 2 * lanes * per_cycle * clock
    bandwidth = {"l1": estimate("l1_bandwidth") * facts.simd.vector_bytes * clock}
    bandwidth |= {lv: estimate(f"{lv}_bandwidth", clock) for lv in levels_of(facts)[1:]}
    dram = bandwidth["dram"]
    return CpuProfile(
        clock_ghz=clock,
        fma_latency_cycles=estimate("fma_latency"),
        fma_per_cycle=per_cycle,
        units=units,
        scaling={n: n * core for n in range(1, units + 1)},
        peak={"float32": (core, core * units), "float64": (core / 2, core * units / 2)},
        bandwidth={lv: (bw, dram if lv == "dram" else bw * units) for lv, bw in bandwidth.items()},
        latency_ns={lv: estimate(f"{lv}_latency", clock) for lv in levels_of(facts)},
        spread={},
    )


def _merge(into: Rates, more: Rates) -> None:
    for request, rates in more.items():
        into.setdefault(request, []).extend(rates)


def _best(rates: Rates, request: Request) -> float:
    return max(rates.get(request, ()), default=0.0)


def _spread(rates: Rates, request: Request) -> float:
    values = rates.get(request, ())
    return 1 - statistics.median(values) / max(values) if values else 0.0


def _in_order(profile: CpuProfile, order: Sequence[str]) -> CpuProfile:
    """Lift a level that noise put a little behind the one farther away, as a spec must be monotone."""
    bandwidth, latency = dict(profile.bandwidth), dict(profile.latency_ns)
    for far, near in zip(order[::-1], order[-2::-1], strict=False):
        bandwidth[near] = (
            max(bandwidth[near][0], bandwidth[far][0]),
            max(bandwidth[near][1], bandwidth[far][1]),
        )
        latency[near] = min(latency[near], latency[far])
    return replace(profile, bandwidth=bandwidth, latency_ns=latency)
