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

#: States of plans that others take the place of.
DROPPED = ("spills", "refused")
#: A prediction of registers that is held to be right: at most this share below what the compiler took.
CLOSE = 0.75


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a result file, compressed or not."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return [json.loads(line) for line in text.splitlines()]


def kernels_for(results: Sequence[dict[str, Any]], arch: str) -> list[tuple[dict[str, Any], list[int]]]:
    """Return (prediction, [registers, local bytes, shared bytes]) of every accepted kernel compiled for `arch`."""
    return [(k, k[arch]) for r in results if r["status"] == "ok" for k in r["kernels"] if arch in k]


def summary(results: list[dict[str, Any]]) -> str:
    """Return the totals, as text."""
    ok = [r for r in results if r["status"] == "ok"]
    archs = sorted({a for r in ok for k in r["kernels"] for a in k if a.startswith("sm_")}, key=arch_number)
    states = Counter(r["status"] for r in results).most_common()
    devices = "/".join(sorted({r["device"] for r in results}))
    lines = [
        f"{len(results)} plans of {len({r['id'] for r in results})} operators, planned for "
        f"{devices}, {results[0]['dtype']}: " + ", ".join(f"{n} {s}" for s, n in states)
    ]
    recipes = Counter("+".join(r["recipe"]) for r in ok).most_common()
    lines.append("  recipes: " + ", ".join(f"{n} {r}" for r, n in recipes))
    changed = Counter(r["variant"] for r in ok if r["variant"])
    if changed:
        lines.append(
            "  a variant of the plan was taken because the compiler spilled: "
            + ", ".join(f"{n} {v}" for v, n in changed.most_common())
        )
    for r in results:
        if r["status"] != "ok":
            lines.append(f"  {r['id']}#{r['rank']} {r['status']}: " + r["error"].splitlines()[0][:160])
    lost = {r["id"] for r in results} - {r["id"] for r in ok}
    lines.append(f"  fallbacks to TVM's default schedule: {len(lost)}" + "".join(f" {i}" for i in sorted(lost)))
    for arch in archs:
        kernels = kernels_for(results, arch)
        spilled = sum(1 for _, (_, local, _) in kernels if local)
        exact = sum(1 for k, (_, _, shared) in kernels if k["predicted_shared"] == shared)
        ratio = sorted(k["predicted_registers"] / registers for k, (registers, _, _) in kernels)
        at = [ratio[round(q * (len(ratio) - 1))] for q in (0, 0.05, 0.5, 0.95, 1)]
        close = sum(1 for q in ratio if q >= CLOSE)
        lines.append(
            f"  {arch}: {len(kernels)} kernels, with local memory {spilled}, "
            f"shared memory as predicted {exact}"
            + (f", and their alignment more {len(kernels) - exact}" if exact < len(kernels) else "")
        )
        shares = "min {:.2f}, 5% {:.2f}, median {:.2f}, 95% {:.2f}, max {:.2f}".format(*at)
        lines.append(f"    registers predicted / actual: {shares}; within 25% or above: {close}")
    if ok:
        seconds = [r["build_s"] for r in ok]
        lines.append(
            f"  seconds to lower and compile a plan: median {statistics.median(seconds):.2f}, max {max(seconds):.2f}"
        )
    return "\n".join(lines)


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
