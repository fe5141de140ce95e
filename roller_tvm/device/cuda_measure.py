"""Measure a CUDA device's rates, and check that they are plausible."""

from __future__ import annotations

from dataclasses import dataclass

from roller_tvm.device.cuda_bench import WHERE
from roller_tvm.device.cuda_driver import CudaFacts
from roller_tvm.device.known import sanity
from roller_tvm.device.profile import Profile, inverse, refusal
from roller_tvm.device.rates import (
    Rates,
    Request,
    Runner,
    best,
    clock_change,
    disorder,
    noise,
    positive,
    settle,
    spread,
    usual,
)  # fmt: skip

DTYPES = {"float32": "fma32", "float64": "fma64", "float16": "fma16", "int32": "int32"}
#: Sizes read, as multiples of L2: inside it (the best counts, as halves of a big L2 may lie at different distances),
#: and outside it (the largest counts, as L2 holds the smallest part of it).
L2_SHARES = (1 / 8, 1 / 4, 1 / 2)
DRAM_SHARES = (4, 8, 16)
#: Largest share of the memory to touch, as other processes may hold some.
MEMORY_SHARE = 1 / 4
_ALIGNED = 1 << 20


@dataclass(frozen=True)
class CudaProfile(Profile):
    """Measured rates of a card, in GHz, cycles, GFLOP/s (whole device), GB/s (whole device), ns and us.

    `by_size` is GB/s by bytes read; the bandwidths of L2 and DRAM are taken from it. `spread` is, for each measurement,
    the share by which the median of its repeats lies below the best.
    """

    clock_ghz: float
    fma_latency_cycles: float
    peak: dict[str, float]
    bandwidth: dict[str, float]
    by_size: dict[int, float]
    latency_ns: dict[str, float]
    launch_us: float
    spread: dict[str, float]


def sizes(facts: CudaFacts, shares: tuple[float, ...]) -> list[int]:
    """Return the bytes to read for these multiples of L2."""
    most = int(facts.memory_bytes * MEMORY_SHARE)
    wanted = [min(int(facts.l2_bytes * share), most) for share in shares]
    return sorted({max(_ALIGNED, size // _ALIGNED * _ALIGNED) for size in wanted})


def measure_cuda(facts: CudaFacts, run: Runner) -> CudaProfile:
    """Measure the card; raises ProfileError if the numbers stay implausible after several attempts."""
    near, far = sizes(facts, L2_SHARES), sizes(facts, DRAM_SHARES)
    clock = Request("clock", repeats=20)
    reads = {size: Request("read", bytes=size, repeats=30) for size in (*near, *far)}
    peaks = {dtype: Request(kind, repeats=20) for dtype, kind in DTYPES.items()}
    chases = {
        "shared": Request("shared_chase", repeats=10),
        "l2": Request("chase", bytes=near[0], repeats=10),
        "dram": Request("chase", bytes=far[0], repeats=10),
    }
    shared, latency, launch = Request("shared", repeats=20), Request("latency32", repeats=10), Request("launch")
    wanted = [*peaks.values(), *reads.values(), shared, latency, *chases.values(), launch]

    before: Rates = {}
    rates: Rates = {}
    after: Rates = {}
    settle(run, before, [clock])
    settle(run, rates, wanted)
    settle(run, after, [clock])

    ghz = best(before, clock)
    by_size = {size: best(rates, r) for size, r in reads.items()}
    bandwidth = {"shared": best(rates, shared), "l2": max(by_size[s] for s in near), "dram": by_size[far[-1]]}
    told = {"clock": spread(before, clock), "launch": spread(rates, launch), "shared": spread(rates, shared)}
    told |= {dtype: spread(rates, r) for dtype, r in peaks.items() if r in rates}
    told |= {"l2": spread(rates, reads[max(near, key=by_size.__getitem__)]), "dram": spread(rates, reads[far[-1]])}
    profile = CudaProfile(
        clock_ghz=ghz,
        fma_latency_cycles=ghz * inverse(rates, latency),
        peak={dtype: best(rates, r) for dtype, r in peaks.items() if r in rates},
        bandwidth=bandwidth,
        by_size=by_size,
        latency_ns={level: 1 / rate if (rate := usual(rates, r)) else 0.0 for level, r in chases.items()},
        launch_us=inverse(rates, launch) / 1e3,
        spread=told,
    )
    problems = check_profile(facts, profile)
    problems += noise({**rates, **before}, [clock, *wanted])
    problems += clock_change(ghz, best(after, clock))
    if problems:
        again = f"roller-tvm profile --device cuda:{facts.ordinal} --refresh"
        raise refusal(problems, f"{WHERE} {facts.ordinal} ({facts.name})",
                      f"wait until nobody else uses the card, then '{again}'")  # fmt: skip
    return profile


def lanes(facts: CudaFacts, profile: CudaProfile) -> float:
    """Return the float32 multiply-adds of a unit per cycle."""
    return profile.peak.get("float32", 0.0) / (2 * facts.units * profile.clock_ghz) if profile.clock_ghz else 0.0


def memory_limit(facts: CudaFacts) -> float:
    """Return the GB/s allowed by bus width and memory clock (two transfers per cycle); 0.0 if unknown."""
    return 2 * facts.memory_clock_khz * 1e3 * facts.memory_bus_bits / 8 / 1e9


def check_profile(facts: CudaFacts, profile: CudaProfile) -> list[str]:
    """Return the reasons that these numbers are implausible; [] if they are plausible."""
    numbers = [profile.clock_ghz, profile.fma_latency_cycles, profile.launch_us, *profile.peak.values()]
    if not positive([*numbers, *profile.bandwidth.values(), *profile.latency_ns.values()]) or not profile.peak:
        return ["a rate is zero or not a number"]
    bad: list[str] = []
    told = facts.clock_khz / 1e6
    low, high = sanity("cuda", "clock_share_min") * told, sanity("cuda", "clock_share_max") * told
    if told and not low <= profile.clock_ghz <= high:
        bad.append(f"a clock of {profile.clock_ghz:.2f} GHz where the driver tells {told:.2f}")
    ours = lanes(facts, profile)
    if not sanity("cuda", "fma_lanes_min") <= ours <= sanity("cuda", "fma_lanes_max"):
        bad.append(f"{ours:.1f} float32 multiply-adds a unit and cycle")
    if not sanity("cuda", "fma_latency_min") <= profile.fma_latency_cycles <= sanity("cuda", "fma_latency_max"):
        bad.append(f"{profile.fma_latency_cycles:.1f} cycles for a multiply-add")
    limit, dram = memory_limit(facts), profile.bandwidth["dram"]
    if limit and not sanity("cuda", "memory_share_min") * limit <= dram <= sanity("cuda", "memory_share_max") * limit:
        bad.append(f"{dram:.0f} GB/s from memory whose bus allows {limit:.0f}")
    per_cycle = profile.bandwidth["shared"] / (facts.units * profile.clock_ghz)
    if not sanity("cuda", "shared_min") <= per_cycle <= sanity("cuda", "shared_max"):
        bad.append(f"{per_cycle:.0f} B a unit and cycle from shared memory")
    if profile.launch_us > sanity("cuda", "launch_max"):
        bad.append(f"{profile.launch_us:.0f} us for a launch")
    return bad + disorder(profile.bandwidth, profile.latency_ns)
