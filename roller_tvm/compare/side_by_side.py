"""Both lines of TVM in one Markdown table for a README: a row per operator, the searching tuners beside Roller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from roller_tvm.compare.markdown import line
from roller_tvm.compare.report import Cell, Report, Row
from roller_tvm.compare.table import NONE, times
from roller_tvm.compare.tuner import KINDS, Tuner
from roller_tvm.stats import geomean
from roller_tvm.tuning.results import duration


def side_by_side(reports: Mapping[str, Report]) -> str:
    """Return kernel times over Roller's on each line, and tuning times, as a table; '' if nothing is timed.

    Losses are bold, except those of searches over Roller's space that ended at its own plan.

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
    """Columns of one line of TVM.

    Parameters
    ----------
    searching : tuple of Tuner
        Searching tuners with kernels; the tuning time of the last one is shown.
    """

    name: str
    report: Report
    searching: tuple[Tuner, ...]

    def own(self, row: Row) -> Cell | None:
        """Return Roller's result in a row."""
        return row.cell(self.report.base)

    def head(self) -> list[str]:
        titles = [KINDS[t.name].title for t in self.searching]
        return [f"{self.name.capitalize()} line: Roller", *titles, f"tuning: Roller; {titles[-1]} / it"]

    def cells(self, row: Row) -> list[str]:
        """Return the cells of a case."""
        ours, peer = self.own(row), row.cell(self.searching[-1].label)
        if ours is None or not ours.timed:
            return [NONE] * len(self.head())
        over = NONE
        if peer is not None and peer.status == "ok" and ours.tune_s > 0:
            over = f"{peer.tune_s / ours.tune_s:.0f}"
        ratios = [self._ratio(row, row.cell(t.label)) for t in self.searching]
        return [duration(ours.seconds), *ratios, f"{ours.tune_s:.1f} s; {over}"]

    def means(self) -> list[str]:
        """Return the geometric means over the cases with the tuner's kernel; of tuning also over Roller top-1's."""
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
    """Return a line's columns, the learned model first, the most trials last; None if no search has results."""
    found = [t for t in report.others if t.searches and report.ratios(t.label)]
    return _Side(name, report, tuple(sorted(found, key=lambda t: (t.name != "xgboost", t.trials)))) if found else None
