"""A comparison as tables: plain text for a terminal, Markdown for a README, both lines side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable

from roller_bench.cases import Case
from roller_bench.comparison import Cell, Report, Row
from roller_bench.machine import place
from roller_bench.tuners import Tuner
from roller_tvm.stats import geomean
from roller_tvm.tuning.results import duration, si

#: Text for a kernel that is missing or was not timed.
NONE = "-"

ID, NAME = 18, 34
#: Ratio below which a group counts as lost: the other tuner is faster by more than the rounds differ.
LOSS = 0.98


def progress_line(case: Case, tuner: Tuner, status: str, reason: str, tune_s: float, claimed_s: float) -> str:
    """Return the line printed when a tuner is done with a case.

    Examples
    --------
    >>> progress_line(Case("M", "matmul", "m=8 n=8 k=8"), Tuner("ansor", 64), "ok", "", 93.0, 2e-6)
    'M                  ansor:64          93.0 s      2.0 us'
    """
    told = duration(claimed_s) if status == "ok" else f"{status}: {reason}"
    spent = "-" if math.isnan(tune_s) else f"{tune_s:.1f} s"
    return f"{case.id[:ID]:<{ID}} {tuner.label:<14} {spent:>9} {told:>11}"


def text(report: Report) -> str:
    """Return table, summary and notes."""
    lines = [_environment(report), ""]
    head = f"{'ID':<{ID}} {'Operator':<{NAME}} {'FLOP':>8}"
    for tuner in report.tuners:
        head += f" {tuner.label:>22}"
    lines += [head, "-" * len(head)]
    lines += [_row(row, report) for row in report.rows]
    lines += ["", *summary(report)]
    lines += whole_models(report)
    if told := report.to_know():
        lines += ["", *told]
    return "\n".join(lines) + "\n"


def whole_models(report: Report) -> list[str]:
    """Return a line for each implementation of each whole model; [] if there are none."""
    rows = [row for row in report.rows if row.case.whole]
    if not rows:
        return []
    head = f"{'model':<{NAME}} {'implementation':<22} {'tuning':>9} {'build':>9}"
    head += f" {'latency':>10} {'ratio':>7} {'error':>8}"
    lines = ["", f"Whole models: latency, and its ratio to that of {report.base}", head, "-" * len(head)]
    for row in rows:
        for cell in row.cells:
            line = f"{row.case.title[:NAME]:<{NAME}} {cell.tuner.title[:22]:<22}"
            if cell.timed:
                spent = [f"{s:.1f} s" if s > 0 else "-" for s in (cell.tune_s, cell.build_s)]
                error = "-" if math.isnan(cell.error) else f"{cell.error:.1e}"
                line += f" {spent[0]:>9} {spent[1]:>9} {duration(cell.seconds):>10} {times(cell.ratio):>7} {error:>8}"
            else:
                line += f" {cell.status}{': ' if cell.reason else ''}{cell.reason}"
            lines.append(line)
    return lines


def _environment(report: Report) -> str:
    e = report.environment
    return (f"{place(e)}, {e.get('threads', '?')} threads, TVM {e.get('tvm', '?')} ({e.get('line', '?')} line),"
            f" {e.get('date', '')}, {e.get('target', '')}")  # fmt: skip


def _row(row: Row, report: Report) -> str:
    name = row.case.title if len(row.case.title) <= NAME else row.case.title[: NAME - 3] + "..."
    line = f"{row.case.id[:ID]:<{ID}} {name:<{NAME}} {si(row.flops):>8}"
    for tuner in report.tuners:
        line += f" {_cell(row.cell(tuner.label)):>22}"
    return line


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "."
    if not cell.timed:
        return cell.status if cell.status != "ok" else "not timed"
    ratio = "" if math.isnan(cell.ratio) else f" {cell.ratio:.2f}x"
    return f"{duration(cell.seconds)}{ratio}"


def summary(report: Report) -> list[str]:
    """Return the geometric means of each tuner beside the base, of all cases and of each group."""
    base, width = report.base, max(len(t.title) for t in report.tuners)
    over = f" {'over top-1':>10}" if report.first else ""
    head = f"{'':<{width}} {'cases':>5} {'kernels':>8} {'least':>6} {'tuning':>9}{over}  faster than {base} on"
    lines = [f"Times of a kernel over those of {base} (above 1: {base} is faster), geometric means", head]
    for tuner in report.others:
        ratios, spent = report.ratios(tuner.label), report.compile_ratios(tuner.label)
        if not ratios and not spent:
            continue
        lost = [g for g in report.groups() if (r := report.ratios(tuner.label, g)) and geomean(r) < LOSS]
        least = f"{min(ratios):.2f}" if ratios else "-"
        top1 = f" {times(geomean(report.compile_ratios(tuner.label, report.first))):>10}" if report.first else ""
        lines.append(
            f"{tuner.title:<{width}} {len(ratios):>5} {times(geomean(ratios)):>8} {least:>6}"
            f" {times(geomean(spent)):>9}{top1}  {', '.join(lost) or '-'}"
        )
    if len(report.groups()) > 1:
        lines.append("")
        for group in report.groups():
            own = [f"{t.label} {times(geomean(r))}" for t in report.others if (r := report.ratios(t.label, group))]
            if own:
                lines.append(f"  {group:<16} {', '.join(own)}")
    return lines


def times(value: float, mark: str = "x") -> str:
    """Return a ratio as text with two decimals, none from 100 on; '-' for nan."""
    if math.isnan(value):
        return NONE
    return f"{value:.0f}{mark}" if value >= 100 else f"{value:.2f}{mark}"


def markdown(report: Report, command: str = "") -> str:
    """Return the table, one row per case, and notes on the figures; '' if the base has no timed kernel.

    Parameters
    ----------
    command : str
        Command that made the comparison, printed below the table.
    """
    rows = [row for row in report.rows if _done(row.cell(report.base))]
    compared = sum(_timed(row.cell(report.base)) for row in rows)
    if not compared:
        return ""
    others = [t for t in report.others if any(_timed(row.cell(t.label)) for row in rows)]
    base = next(t.title for t in report.tuners if t.label == report.base)
    lines = [line(["operator", base, *(t.title for t in others)]), line(["---"] * (2 + len(others)))]
    lines += [line([f"`{row.case.title}`", _own(row, report.base), *(_ratio(row, t) for t in others)]) for row in rows]
    means = [_mean(report.ratios(t.label), compared) for t in others]
    lines.append(line([f"**kernels, geometric mean of {compared}**", "**1.00**", *means]))
    spent = [times(geomean(report.compile_ratios(t.label)), "") for t in others]
    mean = geomean([own.tune_s for row in rows if (own := row.cell(report.base)) and own.tune_s > 0])
    lines.append(line(["tuning time, geometric mean", "-" if math.isnan(mean) else f"{mean:.1f} s", *spent]))
    if report.first:
        spent = [times(geomean(report.compile_ratios(t.label, report.first)), "") for t in others]
        lines.append(line(["the same over Roller top-1's", "", *spent]))
    where = dict.fromkeys(place(row.environment) for row in rows)
    e = report.environment
    told = f"{', '.join(where)}; {e.get('threads', '?')} threads; TVM {e.get('tvm', '?')}."
    lines += ["", f"{told}{f' Made by `{command}`.' if command else ''}"]
    if notes := report.to_know():
        lines += ["", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def line(cells: Iterable[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def _timed(cell: Cell | None) -> bool:
    return cell is not None and cell.timed


def _done(cell: Cell | None) -> bool:
    """Return True if a case is to be shown; not while its kernels are still to be timed."""
    return cell is not None and (cell.timed or cell.status != "ok")


def _own(row: Row, label: str) -> str:
    cell = row.cell(label)
    assert cell is not None
    if not cell.timed:
        return cell.status
    rate = row.gflops(cell)
    return duration(cell.seconds) + ("" if math.isnan(rate) else f", {rate:.0f} GFLOP/s")


def _mean(ratios: list[float], compared: int) -> str:
    """Return the geometric mean, and the number of cases if some have no ratio."""
    mean = f"**{times(geomean(ratios), '')}**"
    return mean if len(ratios) == compared else f"{mean} of {len(ratios)}"


def _ratio(row: Row, tuner: Tuner) -> str:
    cell = row.cell(tuner.label)
    return NONE if cell is None else times(cell.ratio, "")
