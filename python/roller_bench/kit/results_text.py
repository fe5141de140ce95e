"""Figures of a kit's results, and a report in Markdown."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from roller_bench.kit.cases import RTASKS
from roller_bench.kit.reference import UNFUSED
from roller_tvm.stats import geomean, spearman

#: Largest ratio of predicted and measured time, either way, that counts as near.
NEAR = 1.5
#: Least number of an operator's plans for which a rank correlation is computed.
ORDERED = 4

Row = Mapping[str, Any]


def timed(operator: Row) -> dict[int, tuple[float, float]]:
    """Return rank -> (predicted, measured) microseconds, for the plans with right answers."""
    return {
        int(rank): (plan["predicted_us"], plan["us"]["median"])
        for rank, plan in operator["plans"].items() if plan.get("verdict") == "right"
    }  # fmt: skip


def family(operator: Row) -> str:
    """Return the name of an operator's family: operator and type."""
    return f"{operator['operator']} {operator['dtype']}"


def torch_us(operator: Row, mode: str = "") -> float | None:
    """Return torch's median time in microseconds, by default in the operator's type; None if not measured."""
    found = operator["torch"].get(mode or operator["dtype"], {}).get("us")
    return found["median"] if found else None


def figures(operators: Iterable[Row]) -> dict[str, Any]:
    """Return figures of some operators: verdicts, the model against measured times, torch.

    Returns
    -------
    dict
        'verdicts'; 'predicted_over_measured' (geomean of the plans), 'near' (share of plans within `NEAR`);
        'top1_regret' (the first plan's time over the best's, geomean), 'rank_correlation' (of an operator's plans,
        mean); 'top1_over_torch', 'best_over_torch' (torch's time over ours, geomean).
    """
    rows = list(operators)
    times = [timed(r) for r in rows]
    ratios = [p / m for t in times for p, m in t.values()]
    regrets = [t[0][1] / min(m for _, m in t.values()) for t in times if 0 in t and len(t) > 1]
    orders = [spearman((p for p, _ in t.values()), (m for _, m in t.values())) for t in times if len(t) >= ORDERED]
    beside = [(t, torch_us(r)) for t, r in zip(times, rows, strict=True)]
    return {
        "operators": len(rows),
        "verdicts": dict(Counter(p.get("verdict", "not reached") for r in rows for p in r["plans"].values())),
        "predicted_over_measured": geomean(ratios),
        "near": sum(1 / NEAR <= r <= NEAR for r in ratios) / len(ratios) if ratios else math.nan,
        "top1_regret": geomean(regrets),
        "rank_correlation": statistics.fmean(o) if (o := [v for v in orders if not math.isnan(v)]) else math.nan,
        "top1_over_torch": geomean(u / t[0][1] for t, u in beside if u and 0 in t),
        "best_over_torch": geomean(u / min(m for _, m in t.values()) for t, u in beside if u and t),
    }


def by_family(results: Row) -> dict[str, dict[str, Any]]:
    """Return the figures of each family, and of all operators under 'all'."""
    groups: dict[str, list[Row]] = {}
    for operator in results["operators"].values():
        groups.setdefault(family(operator), []).append(operator)
    found = {name: figures(rows) for name, rows in sorted(groups.items())}
    return {**found, "all": figures(results["operators"].values())}


def report(results: Row) -> str:
    """Return the report, in Markdown.

    Examples
    --------
    >>> print(report({"status": "no device", "why": "no CUDA driver", "when": "now", "card": None}))
    # GPU kit: no device
    <BLANKLINE>
    no CUDA driver
    <BLANKLINE>
    """
    if not results["card"]:
        return f"# GPU kit: {results['status']}\n\n{results.get('why', '')}\n"
    lines = [*_head(results), *_families(results), *_wrong(results), *_graphs(results), *_table(results)]
    return "\n".join(lines) + "\n"


def _head(results: Row) -> Iterator[str]:
    card, profile, torch = results["card"], results["profile"] or {}, results["torch"] or {}
    spent = sum(results["seconds"].values())
    yield f"# GPU kit: {card['name']}"
    yield ""
    yield (f"{results['when']}, {results['made_by']}, kernels for {results.get('arch', '?')}, CUDA driver "
           f"{card['driver'] // 1000}.{card['driver'] % 1000 // 10}; {spent:.0f} s; {results['status']}.")  # fmt: skip
    yield ("Medians of events on the card in microseconds, L2 overwritten before each run, launches queued beforehand"
           + (f"; an empty kernel takes {results['floor_us']:.1f}." if "floor_us" in results else "."))  # fmt: skip
    if torch.get("torch"):
        yield f"torch {torch['torch']}, CUDA {torch['cuda']}, cuDNN {torch['cudnn']}, on inputs of the same layout."
    else:
        yield f"torch: {torch.get('why', 'not asked')}."
    if measured := profile.get("profile"):
        rates = ", ".join(f"{level} {rate:.0f}" for level, rate in measured["bandwidth"].items())
        peaks = ", ".join(f"{dtype} {rate / 1e3:.1f}" for dtype, rate in measured["peak"].items())
        yield (f"Profiled: {measured['clock_ghz']:.2f} GHz; GB/s: {rates}; TFLOP/s: {peaks}; "
               f"a launch {measured['launch_us']:.1f} us.")  # fmt: skip
    elif profile:
        yield f"The profile is not believed: {profile.get('refused', '')}."
    if profile.get("tensor"):
        peaks = ", ".join(f"{dtype} {rate / 1e3:.0f}" for dtype, rate in profile["tensor"].items())
        waits = ", ".join(f"{threads}: {ns:.0f}" for threads, ns in profile["barrier_ns"].items())
        yield f"Tensor cores by mma.sync, TFLOP/s: {peaks}. A barrier of so many threads, ns: {waits}."
    seen = [c for _, c in results["clocks"] if c]
    if seen:
        values = "; ".join(f"{name} {c.get('clocks.sm', '?')}" for name, c in results["clocks"] if c)
        yield f"Clock of the multiprocessors after each phase: {values}."
    yield ""


def _number(value: float | None, form: str = ".2f") -> str:
    return "" if value is None or math.isnan(value) else format(value, form)


def _families(results: Row) -> Iterator[str]:
    heads = ("operators", "", "plans right", "other", "predicted / measured", "near", "top-1 regret", "order",
             "torch / top-1", "torch / best")  # fmt: skip
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    for name, f in by_family(results).items():
        right = f["verdicts"].get("right", 0)
        other = ", ".join(f"{count} {verdict}" for verdict, count in f["verdicts"].items() if verdict != "right")
        numbers = [_number(f[key]) for key in ("predicted_over_measured", "near", "top1_regret", "rank_correlation",
                                               "top1_over_torch", "best_over_torch")]  # fmt: skip
        yield f"| {name} | {f['operators']} | {right} | {other} | {' | '.join(numbers)} |"
    yield ""
    yield (f"near: the share of plans predicted within {NEAR}x; regret: the first plan's time over the best's; order: "
           "Spearman's of an operator's plans; torch / ours above 1: ours is faster.")  # fmt: skip
    yield ""


def _wrong(results: Row) -> Iterator[str]:
    bad = [
        f"- {name}#{rank} {plan['verdict']}: {plan.get('why', '')}"
        for name, operator in results["operators"].items() for rank, plan in operator["plans"].items()
        if plan.get("verdict") in ("wrong", "failed", "skipped")
    ]  # fmt: skip
    if bad:
        yield from ("## Not right", "", *bad, "")


def fused_us(operator: Row) -> tuple[float, float] | None:
    """Return a graph's measured microseconds (one by one, fused), or None unless plans of both kinds are right."""
    plans = operator["plans"].values()
    found = {p["variant"]: p["us"]["median"] for p in plans if p.get("verdict") == "right"}
    if UNFUSED not in found:
        return None
    fused = [us for variant, us in found.items() if variant != UNFUSED]
    return (found[UNFUSED], min(fused)) if fused else None


def _graphs(results: Row) -> Iterator[str]:
    """Yield the table of graphs: fused against one by one."""
    rows = {n: o for n, o in results["operators"].items() if o["operator"] == RTASKS}
    if not rows:
        return
    yield from ("## Fused by rTasks", "", "| graph | kernels | fused | us | fused | faster | predicted |",
                "| --- | --- | --- | --- | --- | --- | --- |")
    for name, operator in rows.items():
        plans = list(operator["plans"].values())
        apart = next(p for p in plans if p["variant"] == UNFUSED)
        fused = [p for p in plans if p is not apart]
        times = fused_us(operator)
        told = (f"{times[0]:.1f}", f"{times[1]:.1f}", f"{times[0] / times[1]:.2f}x") if times else ("", "", "")
        yield (f"| {name} {operator['params']} | {apart['kernels']} | {min(p['kernels'] for p in fused)} | "
               f"{' | '.join(told)} | {apart['predicted_us'] / min(p['predicted_us'] for p in fused):.2f}x |")
    yield ""


def _table(results: Row) -> Iterator[str]:
    yield "## Operators"
    yield ""
    yield "| operator | plan | predicted | top-1 | best | of | GFLOP/s | GB/s | torch | torch tf32 | torch / best |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for name, operator in results["operators"].items():
        times = timed(operator)
        if not times:
            continue
        best = min(m for _, m in times.values())
        rank = next(r for r, (_, m) in times.items() if m == best)
        recipes = "+".join(r.removeprefix("gpu.") for r in operator["plans"][str(rank)]["recipes"])
        first, torch = times.get(0), torch_us(operator)
        cells = [
            name, f"{recipes} #{rank}", _number(first and first[0], ".1f"), _number(first and first[1], ".1f"),
            f"{best:.1f}", str(len(times)), f"{operator['flops'] / best / 1e3:.0f}",
            f"{operator['bytes'] / best / 1e3:.0f}", _number(torch, ".1f"),
            _number(torch_us(operator, "tfloat32"), ".1f"), _number(torch and torch / best),
        ]  # fmt: skip
        yield f"| {' | '.join(cells)} |"
