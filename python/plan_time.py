#!/usr/bin/env python3
"""Time the planning of every operator of a CSV file, top-K, on one core.

python python/plan_time.py python/roller_osdi22_operators.csv --devices v100,h200 --top 10

The CSV has the columns id, operator, params. One pinned process plans each operator in turn, without a cache between
operators; with --repeat the fastest of several counts. Prints median, p95 and maximum per device.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.ir.operators import operator, parse_params  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402


def plan_times(path: Path, device_name: str, top: int, repeat: int) -> list[tuple[str, float, int]]:
    """Return id, seconds and number of plans of every operator."""
    device = load_device(device_name)
    results = []
    for row in csv.DictReader(path.open()):
        expression = operator(row["operator"], **parse_params(row["params"]))
        taken, plans = float("inf"), 0
        for _ in range(repeat):
            start = time.perf_counter()
            plans = len(construct(expression, device, top).plans)
            taken = min(taken, time.perf_counter() - start)
        results.append((row["id"], taken, plans))
    return results


def main(argv: list[str] | None = None) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("operators", type=Path, help="CSV file with the columns id, operator, params")
    parser.add_argument("--devices", default="v100,h200", help="names of devices, with commas; default %(default)s")
    parser.add_argument("--top", type=int, default=10, help="plans per operator; default 10")
    parser.add_argument("--repeat", type=int, default=1,
                        help="times to plan each operator, the fastest counts; default 1")
    parser.add_argument("--json", action="store_true", help="print the times as JSON")
    args = parser.parse_args(argv)
    summary = {}
    for name in args.devices.split(","):
        results = plan_times(args.operators, name, args.top, args.repeat)
        times = sorted(t * 1e3 for _, t, _ in results)
        slowest = max(results, key=lambda r: r[1])
        summary[name] = {
            "operators": len(results),
            "median_ms": round(statistics.median(times), 1),
            "mean_ms": round(statistics.mean(times), 1),
            "p95_ms": round(times[min(len(times) - 1, int(0.95 * len(times)))], 1),
            "max_ms": round(times[-1], 1),
            "slowest": slowest[0],
            "fewer_plans": [i for i, _, n in results if n < args.top],
        }
        if not args.json:
            s = summary[name]
            print(f"{name}: {s['operators']} operators, top-{args.top}, one core: "
                  f"median {s['median_ms']} ms, mean {s['mean_ms']} ms, "
                  f"p95 {s['p95_ms']} ms, max {s['max_ms']} ms ({slowest[0]})")  # fmt: skip
            if s["fewer_plans"]:
                print(f"  fewer than {args.top} legal plans: {', '.join(s['fewer_plans'])}")
    if args.json:
        print(json.dumps(summary, indent=1))
    return 0


if __name__ == "__main__":
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sys.exit(main())
