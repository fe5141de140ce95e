#!/usr/bin/env python3
"""Profile this machine's CPU and print what was found: peak, bandwidths, latencies, how far threads scale.

python python/profile_cpu.py             # the cached profile, measured if there is none
python python/profile_cpu.py --refresh   # measure again
python python/profile_cpu.py --json      # the device, for machines
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from roller_tvm.device import CpuReport, cpu_report, default_cpu_target  # noqa: E402


def table(report: CpuReport) -> str:
    """The report as text."""
    facts, profile = report.facts, report.profile
    measured = "assumed" if report.reason else "measured"
    how = "read from the cache" if report.cached else f"measured in {report.seconds:.1f} s"
    lines = [
        report.spec.describe(),
        "",
        f"detected: {facts.machine_logical} CPUs, {facts.logical} ours, {facts.cores} cores",
        f"vectors: {facts.simd.name}",
        f"quota: {facts.quota if facts.quota is not None else 'none'}",
        f"clock: {facts.clock_ghz:.2f} GHz told, {profile.clock_ghz:.2f} GHz {measured}",
        f"FMA: {profile.fma_per_cycle:.2f} vectors a cycle, latency {profile.fma_latency_cycles:.1f} cycles",
        "",
        f"{'float32 by threads':<20} {'GFLOP/s':>9} {'of one':>7}",
    ]
    one = profile.scaling[1]
    for threads, rate in profile.scaling.items():
        mark = "  <- as far as threads scale" if threads == profile.units else ""
        lines.append(f"{threads:<20} {rate:>9.1f} {rate / one:>6.2f}x{mark}")
    lines += ["", f"{'':<20} {'1 thread':>9} {f'{profile.units} threads':>10} {'median below best':>18}"]
    for title, unit, rates in (("peak", "GFLOP/s", profile.peak), ("read", "GB/s", profile.bandwidth)):
        for key, (single, full) in rates.items():
            spread = profile.spread.get(key)
            told = f"{spread:.0%}" if spread is not None else "-"
            lines.append(f"{f'{title} {key}, {unit}':<20} {single:>9.1f} {full:>10.1f} {told:>18}")
    lines += ["", f"{how}; {report.path}", f"target: {default_cpu_target(profile.units, facts)}"]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Entry point; 0 if measured, 1 if there are only estimates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--refresh", action="store_true", help="measure again")
    parser.add_argument("--json", action="store_true", help="print the device as JSON")
    args = parser.parse_args(argv)
    report = cpu_report(refresh=args.refresh)
    print(report.spec.to_json(indent=1) if args.json else table(report))
    return 1 if report.reason else 0


if __name__ == "__main__":
    sys.exit(main())
