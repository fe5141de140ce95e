"""The comparison as a Markdown table for a README: ratios of kernels, then tuning times."""

from __future__ import annotations

import math
from collections.abc import Iterable

from roller_tvm.compare.machines import place
from roller_tvm.compare.report import Cell, Report, Row
from roller_tvm.compare.table import NONE, times
from roller_tvm.compare.tuner import Tuner
from roller_tvm.stats import geomean
from roller_tvm.tuning.results import duration


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
