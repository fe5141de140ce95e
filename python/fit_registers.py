#!/usr/bin/env python3
"""Fit the register estimate of roller_tvm/micro_perf/registers.py to registers of compiled kernels.

    python python/fit_registers.py                          # the random plans of benchmarks/register_fit.csv
    python python/fit_registers.py compiled.jsonl.gz ...    # plans of python/compile_operators.py as well

Prints the quantile regression (needs scipy), and the quality of the constants in use on each source.
"""

from __future__ import annotations

import csv
import sys
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from compiling import read_results  # noqa: E402

from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.micro_perf import registers as r  # noqa: E402

RANDOM = Path(__file__).resolve().parent.parent / "benchmarks" / "register_fit.csv"
ARCHS = ("sm_75", "sm_80", "sm_90")
QUANTILE = 0.9


def random_plans() -> list[dict[str, Any]]:
    """Return one row per plan and architecture, without plans that spilled."""
    rows = []
    for line in csv.DictReader(RANDOM.open()):
        numbers = {k: int(v) for k, v in line.items()}
        pairs = {k: [numbers[f"{k}_a"], numbers[f"{k}_b"]] for k in ("fragments", "prefetched", "fetches")}
        rows += [
            {"accumulators": numbers["accumulators"], "threads": numbers["threads"], **pairs, "registers": numbers[a]}
            for a in ARCHS if a in numbers and not numbers[f"{a}_local"]
        ]  # fmt: skip
    return rows


def real_plans(paths: list[Path]) -> list[dict[str, Any]]:
    """Return the same from results of compile_operators.py."""
    kernels = [k for path in paths for result in read_results(path) for k in result.get("kernels", [])]
    return [{**k, "registers": k[a][0]} for k in kernels if "accumulators" in k for a in ARCHS if a in k]


def features(row: dict[str, Any]) -> list[float]:
    smaller = sum(row["fragments"]) - max(row["fragments"])
    ahead = sum(min(n, r.PREFETCHED_MOST) for n in row["prefetched"])
    fetched = sum(n * v for n, v in zip(row["fetches"], row.get("vectors") or [1, 1], strict=True))
    return [1, row["accumulators"], smaller, ahead, sum(row["fetches"]), fetched]


def expected(row: dict[str, Any], weights: Any, device: Any) -> int:
    raw = ceil(float(np.dot(features(row), weights)) / r.ROUNDED_TO) * r.ROUNDED_TO
    return min(raw, r.register_cap(device, row["threads"]) or raw)


def fit(rows: list[dict[str, Any]], device: Any) -> Any:
    """Return weights that minimise the relative quantile loss over plans that are not at the cap."""
    from scipy.optimize import linprog

    rows = [row for row in rows if row["registers"] < (r.register_cap(device, row["threads"]) or 256) - 1]
    x, y = np.array([features(row) for row in rows]), np.array([row["registers"] for row in rows])
    n, p = x.shape
    cost = np.r_[np.zeros(p), QUANTILE / y, (1 - QUANTILE) / y]
    solved = linprog(cost, A_eq=np.c_[x, np.eye(n), -np.eye(n)], b_eq=y, bounds=[(0, None)] * (p + 2 * n))
    return solved.x[:p]


def main() -> int:
    device = load_device("a100")
    sources = {"random plans": random_plans(), "constructed plans": real_plans([Path(p) for p in sys.argv[1:]])}
    used = [r.BASE, r.PER_ACCUMULATOR, r.PER_FRAGMENT, r.PER_PREFETCHED, r.PER_FETCH, r.PER_FETCHED]
    print("                     base  accumulator  fragment  prefetched  fetch  fetched")
    print("in use               " + "  ".join(f"{w:.2f}" for w in used))
    fitted = fit([row for rows in sources.values() for row in rows], device)
    print(f"fitted, quantile {QUANTILE} " + "  ".join(f"{w:.2f}" for w in fitted))
    for name, rows in sources.items():
        if rows:
            ratio = np.array([expected(row, used, device) / row["registers"] for row in rows])
            at = np.quantile(ratio, [0.05, 0.5, 0.95])
            print(f"{name}: {len(rows)} kernels, expected / taken 5% {at[0]:.2f}, median {at[1]:.2f}, 95% {at[2]:.2f}; "
                  f"within 25% or above {np.mean(ratio >= 0.75):.1%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
