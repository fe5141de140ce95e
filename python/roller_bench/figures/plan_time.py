"""Planning time, operator by operator."""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import time
from pathlib import Path

from roller_bench.figures import OPERATORS, names
from roller_tvm.device import load_device
from roller_tvm.ir.operators import operator, parse_params
from roller_tvm.planner import construct


def plan_time(parser: argparse.ArgumentParser) -> None:
    """Time the planning of every operator of a CSV file (columns id, operator, params), top-K, on one core.

    One pinned process plans each operator in turn, without a cache between operators; with --repeat the fastest of
    several counts. Prints median, p95 and maximum per device.
    """
    parser.add_argument("operators", type=Path, nargs="?", default=OPERATORS, help="CSV file; default the paper's")
    parser.add_argument("--devices", default="v100,h200", help="names of devices, with commas; default %(default)s")
    parser.add_argument("--top", type=int, default=10, help="plans per operator; default 10")
    parser.add_argument("--repeat", type=int, default=1,
                        help="times to plan each operator, the fastest counts; default 1")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the times as JSON")
    parser.set_defaults(run=_run)


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


def _run(args: argparse.Namespace) -> int:
    if hasattr(os, "sched_setaffinity"):
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(before)})
    try:
        return _timed(args)
    finally:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, before)


def _timed(args: argparse.Namespace) -> int:
    summary = {}
    for name in names(args.devices):
        results = plan_times(args.operators, name, args.top, args.repeat)
        times = sorted(t * 1e3 for _, t, _ in results)
        s = summary[name] = {
            "operators": len(results), "median_ms": round(statistics.median(times), 1),
            "mean_ms": round(statistics.mean(times), 1),
            "p95_ms": round(times[min(len(times) - 1, int(0.95 * len(times)))], 1), "max_ms": round(times[-1], 1),
            "slowest": max(results, key=lambda r: r[1])[0], "fewer_plans": [i for i, _, n in results if n < args.top],
        }  # fmt: skip
        if not args.json:
            print(f"{name}: {s['operators']} operators, top-{args.top}, one core: median {s['median_ms']} ms, "
                  f"mean {s['mean_ms']} ms, p95 {s['p95_ms']} ms, max {s['max_ms']} ms ({s['slowest']})")  # fmt: skip
            if fewer := [i for i, _, n in results if n < args.top]:
                print(f"  fewer than {args.top} legal plans: {', '.join(fewer)}")
    if args.json:
        print(json.dumps(summary, indent=1))
    return 0
