"""Compiled resources beside the predicted ones: totals, a line an operator, the errors."""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from roller_tvm.device import load_device
from roller_tvm.device.arch import arch_number
from roller_tvm.errors import UsageError
from roller_tvm.planner.explain.resources import ResourcesCompared
from roller_tvm.planner.explain.words import table


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a result file, compressed or not."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return [json.loads(line) for line in text.splitlines()]


QUANTILES = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)


def compared(results: Sequence[dict[str, Any]], arch: str) -> list[tuple[dict[str, Any], str, ResourcesCompared]]:
    """Return (plan, recipe, its kernel's resources) of every accepted kernel compiled for an architecture."""
    found = []
    for result in results:
        if result["status"] != "ok":
            continue
        device = load_device(result["device"])
        for recipe, kernel in zip(result["recipe"], result["kernels"], strict=True):
            if arch in kernel:
                registers, local, shared = kernel[arch]
                found.append((result, recipe, ResourcesCompared.from_numbers(
                    device, kernel["threads"], kernel["predicted_registers"], kernel["predicted_shared"], registers,
                    shared, local,
                )))  # fmt: skip
    return found


def architectures(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the architectures that the kernels were compiled for, oldest first."""
    names = {key for r in results for kernel in r.get("kernels", ()) for key in kernel if key.startswith("sm_")}
    return sorted(names, key=arch_number)


def at(values: Sequence[float], quantile: float) -> float:
    """Return the value at a quantile, one of those given.

    Examples
    --------
    >>> at([3.0, 1.0, 2.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    return ordered[round(quantile * (len(ordered) - 1))]


def distribution(rows: Sequence[tuple[dict[str, Any], str, ResourcesCompared]]) -> list[str]:
    """Return the distribution of the errors of a set of kernels, as text."""
    quantities: list[tuple[str, Callable[[ResourcesCompared], tuple[int, int]]]] = [
        ("registers", lambda k: k.registers),
        ("shared memory", lambda k: k.shared_bytes),
        ("blocks a unit", lambda k: k.occupancy),
    ]
    head = ["predicted / compiled", *(f"{q:.0%}" for q in QUANTILES), "mean |log2|", "same"]
    lines = [head]
    for name, of in quantities:
        pairs = [of(kernel) for _, _, kernel in rows if min(of(kernel)) > 0]
        if not pairs:
            continue
        ratios = [predicted / actual for predicted, actual in pairs]
        apart = statistics.fmean(abs(math.log2(r)) for r in ratios)
        same = sum(p == a for p, a in pairs) / len(pairs)
        lines.append([name, *(f"{at(ratios, q):.2f}" for q in QUANTILES), f"{apart:.2f}", f"{same:.0%}"])
    return table(lines, left=1, indent="  ")


def report(results: Sequence[dict[str, Any]], arch: str, every: bool) -> str:
    """Return the table and the distribution of errors, for all kernels and by recipe."""
    rows = compared(results, arch)
    head = ["id", "plan", "recipe", "threads", "registers", "shared", "blocks a unit", "limited by", "local"]
    lines = [head]
    for result, recipe, k in rows:
        if every or not result["rank"]:
            lines.append([
                result["id"], f"#{result['rank'] + 1}", recipe, str(k.threads), "{} | {}".format(*k.registers),
                "{} | {}".format(*k.shared_bytes), "{} | {}".format(*k.occupancy), k.limit, str(k.local_bytes),
            ])  # fmt: skip
    operators, spilled = len({r["id"] for r, _, _ in rows}), sum(k.local_bytes > 0 for _, _, k in rows)
    states = Counter(r["status"] for r in results)
    told = [f"{len(rows)} kernels of {operators} operators compiled for {arch}: predicted | by the compiler"]
    told += table(lines, left=3, indent="")
    told += ["", f"{len(rows)} kernels, every plan: {spilled} with local memory; plans by outcome: "
             + ", ".join(f"{n} {state}" for state, n in states.most_common())]  # fmt: skip
    told += [f"  {r['id']}#{r['rank'] + 1} {r['status']}: {r['error'].splitlines()[0][:160]}"
             for r in results if r["status"] != "ok"]  # fmt: skip
    told += distribution(rows)
    for recipe, number in Counter(recipe for _, recipe, _ in rows).most_common():
        told += [f"{recipe}, {number} kernels", *distribution([row for row in rows if row[1] == recipe])]
    return "\n".join(told)


def resources(parser: argparse.ArgumentParser) -> None:
    """Compare predicted with compiled resources of kernels: a line per operator, and the distribution of errors.

        python -m roller_bench resources benchmarks/compiled_a100.jsonl.gz            # Relay line, the 119 operators
        python -m roller_bench resources benchmarks/compiled_relax_a100.jsonl.gz --arch sm_80 --all

    Reads the output of compile-operators; compiles nothing, needs no TVM and no GPU.
    """
    parser.add_argument("FILES", type=Path, nargs="+", help="output of compile-operators (.jsonl, .jsonl.gz)")
    parser.add_argument("--arch", default="", help="architecture; default all in the files")
    parser.add_argument("--all", action="store_true",
                        help="print a line for every plan instead of each operator's best")
    parser.set_defaults(run=_resources)


def _resources(args: argparse.Namespace) -> int:
    for path in args.FILES:
        results = read_results(path)
        known = architectures(results)
        if args.arch and args.arch not in known:
            text = f"no kernel was compiled for {args.arch}"
            raise UsageError(text, str(path), f"there are {', '.join(known) or 'none'}")
        for arch in [args.arch] if args.arch else known:
            print(f"{path.name}\n{report(results, arch, args.all)}\n")
    return 0
