"""Report of a replay as text and JSON: figures per file and per kind, beside chance and a learned model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Any

import numpy as np

from roller_tvm.micro_perf.kernel import StagedKernel
from roller_tvm.planner.explain.words import count, seconds

from .judge import Figures, by_chance, judge, overall
from .replay import Entry, Miss, Predictions, Replayed, misses
from .workload import HASHED

#: Kinds with joint figures; other kinds are listed beside them.
JUDGED = ("conv2d", "depthwise", "matmul", "pooling")
#: Number of skipped lines that are listed.
NAMED = 5


@dataclass
class FileReport:
    """Figures of one file by the model, by chance and by a learned model, on the first records and on all."""

    file: Replayed
    first: dict[str, Figures] = field(default_factory=dict)
    whole: dict[str, Figures] = field(default_factory=dict)
    chosen: Miss | None = None
    farthest: Miss | None = None
    points: list[tuple[float, float, bool]] = field(default_factory=list)  # measured, predicted, among the first

    def to_json(self) -> dict[str, Any]:
        file = self.file
        return {
            "file": str(file.path), "name": file.name, "kind": file.kind, "lines": file.records, "ran": file.ran,
            "read": len(file.entries), "share_read": round(file.share, 6),
            "skipped": [{"line": s.number, "reason": s.reason} for s in file.skipped],
            "first": {k: f.to_json() for k, f in self.first.items()},
            "all": {k: f.to_json() for k, f in self.whole.items()},
            "misses": [_miss_json(m) for m in (self.chosen, self.farthest) if m is not None],
        }  # fmt: skip


def _miss_json(miss: Miss) -> dict[str, Any]:
    return {
        "line": miss.entry.record.number, "measured_s": miss.entry.measured, "predicted_s": miss.predicted,
        "best_line": miss.best.record.number, "best_s": miss.best.measured, "why": explain_miss(miss),
    }  # fmt: skip


def report_file(file: Replayed, predictions: Predictions, first: int | None, every: bool = True) -> FileReport:
    """Judge one file on its first records that ran, and, if `every` is True, on all of them."""
    report = FileReport(file)
    entries = file.entries if every else file.first(first)
    if not entries:
        return report
    predicted = predictions.seconds(entries)
    measured = [e.measured for e in entries]
    among = [first is None or e.order < first for e in entries]
    report.points = list(zip(measured, predicted, among, strict=True))
    chosen = [i for i, yes in enumerate(among) if yes]
    if chosen:
        truth = [measured[i] for i in chosen]
        report.first = {"model": judge([predicted[i] for i in chosen], truth), "random": by_chance(truth)}
        report.chosen, report.farthest = misses(file, [entries[i] for i in chosen], predictions)
    if every:
        report.whole = {"model": judge(predicted, measured), "random": by_chance(measured)}
    return report


def add_learned(reports: Sequence[FileReport], predictions: Predictions, first: int | None) -> None:
    """Add the figures of a learned model, trained on the first records of the other operators only."""
    from roller_bench.learned import kernel_features, left_out

    rows, names, times, ideal = [], [], [], []
    for number, report in enumerate(reports):
        for entry in report.file.first(first):
            rows.append(kernel_features(entry.kernels, predictions.device))
            names.append(str(number))
            times.append(entry.measured)
            ideal.append(ideal_seconds(entry, predictions))
    if len(set(names)) < 2:
        return
    measured, scale = np.array(times), np.array(ideal)
    guess = left_out(names, np.array(rows), measured / scale) * scale
    own = np.array(names)
    for number, report in enumerate(reports):
        mask = own == str(number)
        if mask.any():
            report.first["xgboost"] = judge(guess[mask].tolist(), measured[mask].tolist())


def ideal_seconds(entry: Entry, predictions: Predictions) -> float:
    """Return an entry's least time in seconds: its operations at the device's peak, or its bytes at its bandwidth."""
    device = predictions.device
    flops = sum(k.geometry.stage.flops for k in entry.kernels)
    moved = sum(op.source_bytes for k in entry.kernels for op in k.geometry.operands)
    return max(flops / (device.peak() * 1e9), moved / (device.far.bandwidth_gbps * 1e9))


def explain_miss(miss: Miss) -> str:
    """Return the model's reasons for a wrong prediction, as one line."""
    parts = []
    for kernel, prediction in zip(miss.entry.kernels, miss.predictions, strict=True):
        told = prediction.told
        if not isinstance(kernel, StagedKernel) or told is None:
            parts.append(f"{kernel.threads} threads a block without staging, bound by {prediction.bound}")
            continue
        tile = "x".join(str(kernel.thread[i]) for i in kernel.geometry.spatial)
        where = "in local memory: a loop indexes the tile" if told.rolled else f"{told.registers} registers needed"
        if told.spilled:
            where += f", {told.spilled} of them spilled"
        parts.append(
            f"{kernel.threads} threads of {tile} outputs ({where}), {kernel.steps} steps of depth {kernel.depth}, "
            f"{told.resident} blocks a unit ({told.limit}), bound by {told.bound}"
        )
    factor = exp(abs(miss.off))
    way = "slower than predicted" if miss.off > 0 else "faster than predicted"
    return f"{factor:.1f}x {way}: " + "; ".join(parts)


# Tables ----------------------------------------------------------------------------------------------


def groups(reports: Sequence[FileReport]) -> dict[str, list[FileReport]]:
    """Return the reports by kind, and the judged kinds together."""
    kinds: dict[str, list[FileReport]] = {}
    for report in reports:
        if report.first:
            kinds.setdefault(report.file.kind, []).append(report)
    judged = [r for kind in JUDGED for r in kinds.get(kind, ())]
    return kinds | ({", ".join(k for k in JUDGED if k in kinds): judged} if len(kinds) > 1 and judged else {})


def summary(reports: Sequence[FileReport]) -> dict[str, dict[str, dict[str, Figures]]]:
    """Return the overall figures: group -> 'first' or 'all' -> who ordered."""
    result: dict[str, dict[str, dict[str, Figures]]] = {}
    for group, members in groups(reports).items():
        result[group] = {}
        for part in ("first", "all"):
            tables: list[Mapping[str, Figures]] = [m.first if part == "first" else m.whole for m in members]
            who = [w for w in ("model", "random", "xgboost") if all(w in t for t in tables)]
            if who:
                result[group][part] = {w: overall([t[w] for t in tables]) for w in who}
    return result


def text(reports: Sequence[FileReport], predictions: Predictions, first: int | None, worst: int) -> str:
    """Return the whole report as text."""
    files = len({r.file.path for r in reports})
    told = f", {len(reports)} workloads" if len(reports) > files else ""
    lines = [f"{count(files, 'file')} of records{told} on {predictions.device}"]
    lines += _reading(reports)
    wide = max([12, *(len(r.file.name) for r in reports)])
    head = f"{'':<{wide}} {'records':>8} {'correlation':>12} {'top-1':>8} {'top-10':>8} {'predicted/measured':>19}"
    told = f"the first {first} records that ran of each" if first else "all records"
    if len(reports) > 1:
        lines += ["", f"one by one, {told}", head]
        lines += [_row(r.file.name, r.first["model"], wide) for r in reports if r.first]
    for part, title in (("first", told), ("all", "all records")):
        rows = [(g, who, f[who]) for g, parts in summary(reports).items() for f in [parts.get(part, {})] for who in f]
        if rows and not (part == "all" and first is None):
            lines += ["", title, head]
            lines += [_row(f"{g}, {who}", figures, wide) for g, who, figures in rows]
    chosen = sorted((r.chosen for r in reports if r.chosen), key=lambda m: -m.entry.measured / m.best.measured)
    if chosen and worst:
        lines += ["", "what the model would choose, worst first"]
        lines += [
            f"  {m.name} line {m.entry.record.number}: {seconds(m.entry.measured)}, "
            f"{m.entry.measured / m.best.measured:.2f}x the best (line {m.best.record.number}), "
            f"predicted {seconds(m.predicted)}\n      {explain_miss(m)}"
            for m in chosen[:worst]
        ]
        far = sorted((r.farthest for r in reports if r.farthest), key=lambda m: -abs(m.off))
        lines += ["", "farthest off"]
        lines += [
            f"  {m.name} line {m.entry.record.number}: measured {seconds(m.entry.measured)}, "
            f"predicted {seconds(m.predicted)}\n      {explain_miss(m)}"
            for m in far[:worst]
        ]
    return "\n".join(lines)


def _row(name: str, f: Figures, wide: int) -> str:
    ratio = f"{f.ratio:.2f}" if f.ratio is not None else "-"
    return f"{name:<{wide}} {f.count:>8} {f.correlation:>12.3f} {f.top1:>8.2f} {f.top10:>8.3f} {ratio:>19}"


def _reading(reports: Sequence[FileReport]) -> list[str]:
    """Return lines on the records that could be read, and on those that could not."""
    read = sum(len(r.file.entries) for r in reports)
    ran, total = sum(r.file.ran for r in reports), sum(r.file.records for r in reports)
    skipped = [(r.file, s) for r in reports for s in r.file.skipped]
    looked = read + sum(1 for _, s in skipped if not s.foreign)
    told = f"{read} read back" if looked == ran else f"{looked} looked at, {read} read back"
    lines = [f"{total} records, {ran} of them ran, {told}; {count(len(skipped), 'line')} skipped"]
    hashed = sum(1 for _, s in skipped if s.reason.startswith(HASHED))
    if hashed:
        lines.append(
            f"  {hashed} of {looked} records ({hashed / looked:.0%}) identify their operator only by a hash, as tasks "
            "extracted from a model do: pass that model, --tasks-of MODEL, or name a file of one workload after its "
            "operator"
        )
    for file, line in skipped[:NAMED]:
        lines.append(f"  {file.path.name} {line}")
    if len(skipped) > NAMED:
        reasons = Counter(s.reason[:60] for _, s in skipped[NAMED:]).most_common(3)
        lines.append(f"  and {len(skipped) - NAMED} more: " + "; ".join(f"{n}x {reason}" for reason, n in reasons))
    return lines
