"""Explain the cases on which Roller loses: its plan, the other's schedule, and the model's error."""

from __future__ import annotations

import math

from roller_bench.cases import WHOLE
from roller_bench.comparison import Cell, Report, Row
from roller_bench.task import OURS
from roller_tvm.tuning.results import duration


def explain(report: Report, count: int = 10) -> str:
    """Return a paragraph for each of the worst ratios, then a line on faster measurements of the base's own plan.

    The model's error follows from times alone: its predictions of Roller's kernel and of the plan ranked first, beside
    the measured times.
    """
    paragraphs = [_paragraph(report, row, cell) for row, cell in report.worst(count)]
    if not paragraphs:
        paragraphs = [f"No tuner has a faster kernel than {report.base} on any of {len(report.rows)} cases.\n"]
    if same := [f"{row.case.id} ({cell.tuner.label} {cell.ratio:.2f})" for row, cell in report.same_plans()]:
        paragraphs.append(f"The same plan as {report.base}'s, so that ratios below 1 are noise: {', '.join(same)}.\n")
    return "\n".join(paragraphs)


def _paragraph(report: Report, row: Row, other: Cell) -> str:
    ours = row.cell(report.base)
    assert ours is not None  # a ratio is over it
    lines = [
        f"{row.case.id}: {row.case.title}",
        f"  {other.tuner.label} {duration(other.seconds)}, {report.base} {duration(ours.seconds)}:"
        f" {1 / other.ratio:.2f} times as long in the same rounds",
        f"  {report.base}: {ours.tiles or ours.schedule[:120]}",
        f"  {other.tuner.label}: {other.tiles or other.schedule[:120]}",
    ]
    first = next((c for c in row.cells if c.tuner.name == "roller" and c.tuner.trials == 1), None)
    lines += [f"  {told}" for told in verdict(row, ours, other, first)]
    return "\n".join(lines) + "\n"


def verdict(row: Row, ours: Cell, other: Cell, first: Cell | None) -> list[str]:
    """Return the lines about the model that follow from the times.

    Parameters
    ----------
    ours, other : Cell
        Result of the base, and of the faster tuner.
    first : Cell or None
        Result of the best plan by prediction; if nobody measured it, its curve holds the prediction.
    """
    told = []
    peak, bandwidth = (_number(row.environment.get(name)) for name in ("gflops", "gbytes_per_s"))
    least = max(row.flops / peak / 1e9 if peak else 0.0, 0.0)
    if least and not math.isnan(least):
        share, theirs = least / ours.seconds, least / other.seconds
        told.append(f"of the FMA peak: {share:.0%}, theirs {theirs:.0%}")
    if bandwidth and row.io_bytes / bandwidth / 1e9 > least:
        told.append("memory moves longer than the multiply-adds take: what is read twice, or by one core, counts")
    if ours.predicted_s > 0:
        off = ours.seconds / ours.predicted_s
        told.append(f"its own kernel takes {off:.2f} times the {duration(ours.predicted_s)} that the model predicted")
        if other.seconds >= ours.predicted_s:
            told.append("as predicted it would have won: the model leaves out what slows this kernel down")
        elif off >= 1:
            told.append("theirs is faster even than that prediction: the plan is worse, whatever became of it")
        else:
            told.append("both are faster than that prediction: it does not tell which should be")
    if first is not None and first.timed and ours.timed:
        told += _ranking(row, ours, other, first)
    if other.ratio_spread > abs(1 - other.ratio):
        told.append(f"the ratio differs by {other.ratio_spread:.0%} between rounds: this may be noise")
    return told


def _ranking(row: Row, ours: Cell, other: Cell, first: Cell) -> list[str]:
    """Return a line on whether the best plan by prediction was the best of the measured ones."""
    if first.seconds > 1.1 * ours.seconds:
        return [f"the ranking was off: the plan thought best takes {first.seconds / ours.seconds:.2f} times as long as"
                " the best of those measured"]  # fmt: skip
    if row.case.task == WHOLE:  # of a whole model's operators each has a ranking of its own
        return []
    beyond = "" if other.tuner.name in OURS else "is not in its space, or "
    return [f"the ranking was right among Roller's own plans: what is faster {beyond}is thought slower than all that"
            " were measured"]  # fmt: skip


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
