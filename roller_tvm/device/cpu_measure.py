"""Measure a CPU's rates, and check that they are plausible."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from roller_tvm.device.cpu_bench import WHERE
from roller_tvm.device.cpu_detect import CpuFacts
from roller_tvm.device.known import estimate, sanity
from roller_tvm.device.profile import Profile, inverse, refusal
from roller_tvm.device.rates import (
    Rates,
    Request,
    Runner,
    best,
    clock_change,
    disorder,
    merge,
    noise,
    positive,
    settle,
    spread,
    usual,
)  # fmt: skip

LEVELS = ("l1", "l2", "l3", "dram")
DTYPES = {"float32": "fma32", "float64": "fma64", "float16": "fma16"}
#: The same of a matrix unit.
MATRIX_DTYPES = {"bfloat16": "matrix"}
#: Threads scale up to the least number that reaches this share of the best rate.
SCALING_SHARE = 0.92
#: Scaling below this share of the cores is measured again: it is more likely noise than hardware.
SCALING_EXPECTED = 0.85
#: What a thread reads in L3, in caches of its own: little of it lies nearer, and a page table's cache covers it.
OWN_CACHES = 4
#: Share of DRAM's latency above which a cache's latency is suspect: other programs filled the cache.
FAR_SHARE = 0.6
REMEDY = "stop other programs (or wait until they end) and run 'roller-tvm profile --refresh'"


@dataclass(frozen=True)
class CpuProfile(Profile):
    """Measured rates of this machine's CPU.

    `dispatch_per_cycle` is the number of instructions that a core begins, of which a third are vector multiply-adds.
    `scaling` is float32 GFLOP/s by number of threads. `peak` and `bandwidth` hold (one thread, `units` threads) in
    GFLOP/s and GB/s. `latency_ns` is the latency of dependent loads. `launch_us` is the cost of a parallel region on
    `units` spinning threads, as TVM's spin between operators. `last_bytes` is the part of the last cache in which
    `units` threads read at its rate, if that is less than half (other virtual machines have the rest), else 0. `spread`
    is, for each measurement, the share by which the median of its repeats lies below the best.
    """

    clock_ghz: float
    fma_latency_cycles: float
    fma_per_cycle: float
    dispatch_per_cycle: float
    units: int
    scaling: dict[int, float]
    peak: dict[str, tuple[float, float]]
    bandwidth: dict[str, tuple[float, float]]
    latency_ns: dict[str, float]
    launch_us: float
    last_bytes: int
    spread: dict[str, float]

    def rate(self, table: Mapping[str, tuple[float, float]], key: str, threads: int) -> float:
        """Return a rate of `table` on `threads` threads, interpolated linearly from one to `units`."""
        one, full = table[key]
        if self.units == 1 or threads >= self.units:
            return full
        return one + (full - one) * (threads - 1) / (self.units - 1)


def thread_counts(facts: CpuFacts) -> list[int]:
    """Return the numbers of threads to try: powers of two, all cores, all logical CPUs."""
    counts = {1, facts.cores, facts.logical}
    power = 2
    while power < facts.logical:
        counts.add(power)
        power *= 2
    return sorted(counts)


def working_set(facts: CpuFacts, level: str, threads: int) -> int:
    """Return the bytes per thread with which `threads` threads live in `level` and in no nearer level."""
    if level == "dram":
        last = facts.caches[-1]
        # All instances of the last level, four times, but never so much that a small machine swaps.
        instances = -(-facts.cores // max(1, last.shared_by))
        total = min(max(4 * last.bytes * instances, 64 << 20), 1 << 30, facts.memory_bytes // 8)
        return max(total // threads, 4 << 20) // 4096 * 4096
    most, own = _half_share(facts, level, threads), facts.cache(2)
    return min(OWN_CACHES * own.bytes, most) if level == "l3" and own else most


def _half_share(facts: CpuFacts, level: str, threads: int) -> int:
    """Return half of a thread's bytes of a cache, a little more where the nearer cache is nearly as large."""
    cache = facts.cache(int(level[1]))
    assert cache is not None
    share = cache.bytes // max(1, min(threads, cache.shared_by))
    half = share // 2
    nearer = facts.cache(cache.level - 1)
    if nearer is not None and half < 2 * nearer.bytes:
        half = min(2 * nearer.bytes, share * 3 // 4)
    return max(half // 4096, 1) * 4096


def larger_sets(facts: CpuFacts, threads: int) -> list[int]:
    """Return more bytes per thread to read in L3, each twice the one before, up to half of the threads' share.

    A virtual machine is told the whole size of a cache that others fill, too.
    """
    if facts.cache(3) is None:
        return []
    size, most, out = working_set(facts, "l3", threads), _half_share(facts, "l3", threads), []
    while size < most:
        size = min(2 * size, most)
        out.append(size)
    return out


def chased_set(facts: CpuFacts, level: str) -> int:
    """Return the bytes for pointer chasing: in DRAM as much as is set up quickly."""
    return min(working_set(facts, level, 1), 256 << 20)


def levels_of(facts: CpuFacts) -> tuple[str, ...]:
    """Return the names of this CPU's memory levels, near to far."""
    return tuple(lv for lv in LEVELS if lv == "dram" or facts.cache(int(lv[1])) is not None)


def measure_cpu(facts: CpuFacts, run: Runner) -> CpuProfile:
    """Measure the CPU; raises ProfileError if the numbers stay implausible after several attempts."""
    rates: Rates = {}
    clock = Request("clock", budget_ms=40)
    before: Rates = {}
    settle(run, before, [clock])
    scaling = {n: Request("fma32", n) for n in thread_counts(facts)}

    def not_scaling() -> list[Request]:
        one = best(rates, scaling[1])
        return [r for n, r in scaling.items() if n <= facts.cores and best(rates, r) < SCALING_EXPECTED * n * one]

    settle(run, rates, [*scaling.values()], not_scaling)
    reached = {n: best(rates, r) for n, r in scaling.items()}
    if not positive([best(before, clock), reached[1]]):
        raise refusal(["not one repeat on one thread was left alone"], WHERE, REMEDY)
    units = min(n for n, rate in reached.items() if rate >= SCALING_SHARE * max(reached.values()))

    plan = _Plan.of(facts, units)

    def suspects() -> list[Request]:
        return plan.disturbed(facts, _profile(facts, rates, plan, before, reached))

    settle(run, rates, [r for r in plan.requests() if r not in rates], suspects)
    merge(rates, run([r for r in plan.larger if r not in rates]))
    after: Rates = {}
    settle(run, after, [clock])
    profile = _profile(facts, rates, plan, before, reached)
    problems = check_profile(facts, profile)
    problems += noise({**rates, **before}, [clock, *scaling.values(), *plan.requests()])
    problems += clock_change(best(before, clock), best(after, clock))
    if problems:
        raise refusal(problems, WHERE, REMEDY)
    return _in_order(profile, levels_of(facts))


@dataclass(frozen=True)
class _Plan:
    """The requests of a profile by purpose; pairs are (one thread, all threads that scale)."""

    units: int
    latency: Request
    begin: Request
    launch: Request
    peaks: dict[str, tuple[Request, Request]]
    reads: dict[str, tuple[Request, Request]]
    chases: dict[str, Request]
    larger: tuple[Request, ...]

    @classmethod
    def of(cls, facts: CpuFacts, units: int) -> _Plan:
        def read(level: str, threads: int, size: int = 0) -> Request:
            return Request("read", threads, size or working_set(facts, level, threads), repeats=60)

        levels = levels_of(facts)
        return cls(
            units=units,
            latency=Request("latency32", budget_ms=40),
            begin=Request("begin", budget_ms=250, repeats=400),
            launch=Request("launch", units),
            peaks={dtype: (Request(kind, 1), Request(kind, units)) for dtype, kind in (DTYPES | MATRIX_DTYPES).items()},
            reads={lv: (read(lv, 1), read(lv, units)) for lv in levels},
            chases={lv: Request("chase", 1, chased_set(facts, lv), budget_ms=80) for lv in levels},
            larger=tuple(read("l3", units, size) for size in larger_sets(facts, units)),
        )

    def requests(self) -> list[Request]:
        pairs = [*self.peaks.values(), *self.reads.values()]
        flat = [r for pair in pairs for r in pair]
        return list(dict.fromkeys([self.latency, self.begin, self.launch, *flat, *self.chases.values()]))

    def disturbed(self, facts: CpuFacts, profile: CpuProfile) -> list[Request]:
        """Return the requests that other programs seem to have slowed down: they scaled worse than expected."""
        expected = SCALING_EXPECTED * profile.scaling[profile.units] / profile.scaling[1]
        own = {lv: pair for lv, pair in self.reads.items() if lv in ("l1", "l2")}
        out: list[Request] = []
        for pairs, measured in ((self.peaks, profile.peak), (own, profile.bandwidth)):
            for key, (one, full) in pairs.items():
                if key in measured and measured[key][1] < expected * measured[key][0]:
                    out += [one, full]
        far = profile.latency_ns["dram"]
        out += [r for lv, r in self.chases.items() if lv != "dram" and profile.latency_ns[lv] > FAR_SHARE * far]
        return out


def _last_bytes(rates: Rates, plan: _Plan) -> int:
    """Return `CpuProfile.last_bytes`: sets count up to the first whose rate is nearer to DRAM's than to the cache's."""
    if not plan.larger:
        return 0
    first, far = (plan.reads[level][1] for level in ("l3", "dram"))
    least, size = math.sqrt(best(rates, first) * best(rates, far)), first.bytes
    for request in plan.larger:
        if 0 < best(rates, request) < least:
            return size * plan.units
        size = request.bytes
    return 0


def _profile(facts: CpuFacts, rates: Rates, plan: _Plan, clock_rates: Rates, scaling: dict[int, float]) -> CpuProfile:
    """Return the profile made of these rates; missing rates are zero."""
    clock = max((v for repeats in clock_rates.values() for v in repeats), default=0.0)

    peak = {
        dtype: (best(rates, one), best(rates, full)) for dtype, (one, full) in plan.peaks.items() if best(rates, one)
    }
    lanes, launch = facts.simd.vector_bytes // 4, inverse(rates, plan.launch)
    shares = {"clock": spread(clock_rates, Request("clock", budget_ms=40)), "launch": spread(rates, plan.launch)}
    shares |= {dtype: spread(rates, plan.peaks[dtype][1]) for dtype in peak}
    shares |= {lv: spread(rates, pair[1]) for lv, pair in plan.reads.items()}
    return CpuProfile(
        clock_ghz=clock,
        fma_latency_cycles=clock * inverse(rates, plan.latency),
        fma_per_cycle=scaling[1] / (2 * lanes * clock) if clock else 0.0,
        dispatch_per_cycle=best(rates, plan.begin) / clock if clock else 0.0,
        units=plan.units,
        scaling=scaling,
        peak=peak,
        bandwidth={lv: (best(rates, one), best(rates, full)) for lv, (one, full) in plan.reads.items()},
        latency_ns={lv: 1 / rate if (rate := usual(rates, r)) else 0.0 for lv, r in plan.chases.items()},
        launch_us=launch / 1e3 + estimate("launch_software") if launch else 0.0,
        last_bytes=_last_bytes(rates, plan),
        spread=shares,
    )


def check_profile(facts: CpuFacts, profile: CpuProfile) -> list[str]:
    """Return the reasons that these numbers are implausible; [] if they are plausible."""
    bad: list[str] = []
    numbers = [profile.clock_ghz, profile.fma_latency_cycles, profile.dispatch_per_cycle, profile.launch_us]
    numbers += profile.scaling.values()
    numbers += [v for pair in (*profile.peak.values(), *profile.bandwidth.values()) for v in pair]
    numbers += profile.latency_ns.values()
    if not positive(numbers):
        return ["a rate is zero or not a number"]
    if set(profile.bandwidth) != set(levels_of(facts)):
        return [f"bandwidth of {', '.join(profile.bandwidth)} where the CPU has {', '.join(levels_of(facts))}"]
    if not 1 <= profile.units <= facts.machine_logical:
        bad.append(f"threads scale to {profile.units} on {facts.machine_logical} CPUs")
    if not sanity("cpu", "clock_min") <= profile.clock_ghz <= sanity("cpu", "clock_max"):
        bad.append(f"a clock of {profile.clock_ghz:.2f} GHz")
    if not sanity("cpu", "fma_per_cycle_min") <= profile.fma_per_cycle <= sanity("cpu", "fma_per_cycle_max"):
        bad.append(f"{profile.fma_per_cycle:.2f} vector FMA a cycle")
    one = profile.scaling.get(1, 0.0)
    for threads, rate in profile.scaling.items():
        if rate > 1.25 * threads * one:
            bad.append(f"{threads} threads are {rate / one:.1f} times as fast as one")
    limit = 2 * facts.simd.vector_bytes / 4 * profile.clock_ghz * sanity("cpu", "fma_per_cycle_max") * profile.units
    if profile.peak.get("float32", (0, 0))[1] > limit:
        bad.append(f"a float32 peak of {profile.peak['float32'][1]:.0f} GFLOP/s, above {limit:.0f}")
    loads = facts.simd.vector_bytes * profile.clock_ghz * sanity("cpu", "loads_per_cycle_max") * profile.units
    if profile.bandwidth["l1"][1] > loads:
        bad.append(f"{profile.bandwidth['l1'][1]:.0f} GB/s from L1, above {loads:.0f}")
    if profile.dispatch_per_cycle > sanity("cpu", "dispatch_max"):
        bad.append(f"{profile.dispatch_per_cycle:.1f} instructions begun a cycle")
    if profile.launch_us > sanity("cpu", "launch_max"):
        bad.append(f"{profile.launch_us:.0f} us to start threads that spin")
    order = levels_of(facts)
    return bad + disorder({lv: profile.bandwidth[lv][1] for lv in order}, {lv: profile.latency_ns[lv] for lv in order})


def estimated_profile(facts: CpuFacts) -> CpuProfile:
    """Return assumed rates if nothing can be measured, from detection and `data/_cpu.toml`."""
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
        dispatch_per_cycle=estimate("dispatch"),
        units=units,
        scaling={n: n * core for n in range(1, units + 1)},
        peak={"float32": (core, core * units), "float64": (core / 2, core * units / 2)},
        bandwidth={lv: (bw, dram if lv == "dram" else bw * units) for lv, bw in bandwidth.items()},
        latency_ns={lv: estimate(f"{lv}_latency", clock) for lv in levels_of(facts)},
        launch_us=estimate("launch_overhead"),
        last_bytes=0,
        spread={},
    )


def _in_order(profile: CpuProfile, order: Sequence[str]) -> CpuProfile:
    """Raise each level that noise put slightly behind the next farther one, because a spec must be monotone."""
    bandwidth, latency = dict(profile.bandwidth), dict(profile.latency_ns)
    for far, near in zip(order[::-1], order[-2::-1], strict=False):
        bandwidth[near] = (max(bandwidth[near][0], bandwidth[far][0]), max(bandwidth[near][1], bandwidth[far][1]))
        latency[near] = min(latency[near], latency[far])
    return replace(profile, bandwidth=bandwidth, latency_ns=latency)
