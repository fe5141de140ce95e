"""Both of TVM's lines in one table of Markdown, for a README: an operator a row, beside Roller what searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from roller_tvm.compare.markdown import line
from roller_tvm.compare.report import Cell, Report, Row
from roller_tvm.compare.table import NONE, times
from roller_tvm.compare.tuner import KINDS, Tuner
from roller_tvm.measure.table import duration
from roller_tvm.stats import geomean


def side_by_side(reports: Mapping[str, Report]) -> str:
    """Times of kernels over Roller's on each line, and what tuning took; '' where nothing is timed.

    Losses are bold, but for searches over Roller's space that ended at its own plan.

    Parameters
    ----------
    reports : mapping
        Line -> the same cases, in the same order, compared on it.
    """
    sides = [side for name, report in reports.items() if (side := _side(name, report)) is not None]
    rows = [of for of in zip(*(side.report.rows for side in sides), strict=True)
            if any((ours := side.own(row)) is not None and ours.timed for side, row in zip(sides, of, strict=True))]
    if not rows:
        return ""
    head = ["operator", *(text for side in sides for text in side.head())]
    lines = [line(head), line(["---"] * len(head))]
    for of in rows:
        cells = [text for side, row in zip(sides, of, strict=True) for text in side.cells(row)]
        lines.append(line([f"`{of[0].case.title}`", *cells]))
    lines.append(line(["**geometric means**", *(text for side in sides for text in side.means())]))
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Side:
    """One line's columns.

    Parameters
    ----------
    searching : tuple of Tuner
        Those with kernels; last the one whose tuning is told.
    """

    name: str
    report: Report
    searching: tuple[Tuner, ...]

    def own(self, row: Row) -> Cell | None:
        """Roller's."""
        return row.cell(self.report.base)

    def head(self) -> list[str]:
        titles = [KINDS[t.name].title for t in self.searching]
        return [f"{self.name.capitalize()} line: Roller", *titles, f"tuning: Roller; {titles[-1]} / it"]

    def cells(self, row: Row) -> list[str]:
        """Of a case."""
        ours, peer = self.own(row), row.cell(self.searching[-1].label)
        if ours is None or not ours.timed:
            return [NONE] * len(self.head())
        over = NONE
        if peer is not None and peer.status == "ok" and ours.tune_s > 0:
            over = f"{peer.tune_s / ours.tune_s:.0f}"
        ratios = [self._ratio(row, row.cell(t.label)) for t in self.searching]
        return [duration(ours.seconds), *ratios, f"{ours.tune_s:.1f} s; {over}"]

    def means(self) -> list[str]:
        """Of all cases, each over those that a tuner has a kernel for; of tuning also without measuring."""
        timed = [ours for row in self.report.rows if (ours := self.own(row)) is not None and ours.timed]
        kernels = [self.report.ratios(t.label) for t in self.searching]
        told = [f"**{times(geomean(r), '')}**{'' if len(r) == len(timed) else f' of {len(r)}'}" for r in kernels]
        peer, first = self.searching[-1].label, self.report.first
        own = geomean(c.tune_s for c in timed if c.tune_s > 0)
        spent = f"{own:.1f} s; **{geomean(self.report.compile_ratios(peer)):.0f}**"
        if first:
            spent += f" (without measuring {geomean(self.report.compile_ratios(peer, first)):.0f})"
        return ["", *told, spent]

    def _ratio(self, row: Row, cell: Cell | None) -> str:
        if cell is None:
            return NONE
        lost = round(cell.ratio, 2) < 1 and self.report.rivals(row, cell)
        told = times(cell.ratio, "")
        return f"**{told}**" if lost else told


def _side(name: str, report: Report) -> _Side | None:
    """A line's columns, the learned model first, the most trials last; None where nobody searched."""
    found = [t for t in report.others if t.searches and report.ratios(t.label)]
    return _Side(name, report, tuple(sorted(found, key=lambda t: (t.name != "xgboost", t.trials)))) if found else None
