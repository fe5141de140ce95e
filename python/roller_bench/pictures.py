"""Pictures of a comparison as SVG, drawn by matplotlib, which is imported only here and only to draw."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from roller_bench.comparison import Report
from roller_tvm.errors import UsageError
from roller_tvm.stats import at_time, geomean
from roller_tvm.svg import COLOURS

#: Inches of a picture.
WIDTH, HEIGHT = 8.0, 5.2
#: Range of plotted tuning times, in powers of ten of a second, and points per decade.
DECADES, PER_DECADE = (-2, 5), 10


def colours(report: Report) -> dict[str, str]:
    """Return a colour for each tuner, the base's first."""
    labels = [report.base, *(t.label for t in report.others)]
    return {label: COLOURS[n % len(COLOURS)] for n, label in enumerate(labels)}


def pictures(report: Report) -> dict[str, str]:
    """Return every picture as SVG, by name; a picture without data is left out.

    Raises
    ------
    UsageError
        matplotlib is not installed.
    """
    makers = {"tuning_against_speed": tuning_against_speed, "speed_over_time": speed_over_time}
    made = {name: make(report) for name, make in makers.items()}
    return {name: picture.svg() for name, picture in made.items() if picture is not None}


class Picture:
    """A picture with axes, a colour for each tuner, and texts that a browser shows under the mouse."""

    def __init__(self, report: Report, title: str, labels: Sequence[str] | None = None) -> None:
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise UsageError("pictures need matplotlib", remedy="pip install 'roller-tvm[bench]'") from error
        self.title, self.colours, self.told = title, colours(report), list[str]()
        self.figure = Figure((WIDTH, HEIGHT), layout="constrained")
        self.axes: Any = self.figure.subplots()
        self.axes.grid(color="#ddd")
        self.axes.set_axisbelow(True)
        titles = {t.label: t.title for t in report.tuners}
        for label in self.colours if labels is None else labels:
            self.axes.plot([], [], "s", color=self.colours[label], label=titles[label])
        self.axes.set_title(title, loc="left")
        self.figure.legend(loc="outside upper left", ncols=3, frameon=False)

    def scales(self, x: str, y: str, log: str) -> None:
        """Name both axes; `log` names those with a logarithmic scale. A linear one begins at zero."""
        self.axes.set(xlabel=x, ylabel=y, **{f"{axis}scale": "log" for axis in log})
        if "y" not in log:
            self.axes.set_ylim(bottom=0)

    def under_mouse(self, told: str) -> str:
        """Return the id of a shape that shows a text under the mouse."""
        self.told.append(told)
        return f"told-{len(self.told) - 1}"

    def dot(self, x: float, y: float, label: str, told: str, size: float = 5.0) -> None:
        """Draw a point of a tuner."""
        self.axes.plot([x], [y], "o", color=self.colours[label], ms=size, alpha=0.75, mew=0, gid=self.under_mouse(told))

    def svg(self) -> str:
        """Return the picture as an SVG element."""
        import matplotlib

        written, nothing = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with matplotlib.rc_context({"svg.hashsalt": self.title}):
            self.figure.savefig(written, format="svg", metadata=nothing)
        text = written.getvalue()
        text = re.sub(r'<g id="told-(\d+)">', lambda m: f"{m[0]}<title>{escape(self.told[int(m[1])])}</title>", text)
        return text[text.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{escape(self.title)}" ', 1)


def tuning_against_speed(report: Report) -> Picture | None:
    """Draw seconds of tuning (logarithmic) against the kernel's speed relative to the base, one point per case.

    Returns None if no case has both.
    """
    points = [
        (c.tuner.label, c.tune_s, 1 / c.ratio, row.case.id) for row in report.rows for c in row.cells
        if not math.isnan(c.ratio) and c.tune_s > 0
    ]  # fmt: skip
    if not points:
        return None
    picture = Picture(report, "Compile time against kernel speed")
    for label, spent, speed, case in points:
        picture.dot(spent, speed, label, f"{case}, {label}: {spent:.1f} s, speed {speed:.2f}")
    for tuner in report.tuners:  # a large one where their mean is
        own = [(p[1], p[2]) for p in points if p[0] == tuner.label]
        if own:
            spent, speed = geomean([a for a, _ in own]), geomean([b for _, b in own])
            picture.dot(spent, speed, tuner.label, f"{tuner.title}: {spent:.1f} s, {speed:.2f}", 14)
    picture.scales("seconds of tuning an operator", f"speed, {report.base} = 1", "x")
    return picture


def speed_over_time(report: Report) -> Picture | None:
    """Draw each tuner's mean speed over seconds of tuning per operator, for the cases that it finished.

    Returns None if there is no such case.
    """
    whens = [10 ** (n / PER_DECADE) for n in range(DECADES[0] * PER_DECADE, DECADES[1] * PER_DECADE + 1)]
    lines: dict[str, list[tuple[float, float]]] = {}
    for tuner in report.tuners:
        curves = []
        for row in report.rows:
            cell, base = row.cell(tuner.label), row.cell(report.base)
            if cell and base and cell.timed and base.timed and cell.curve and cell.tune_s > 0:
                curves.append([(when, seconds / base.seconds) for when, seconds in cell.curve])
        if not curves:
            continue
        last = max(when for curve in curves for when, _ in curve)
        points = []
        for when in [*(w for w in whens if w < last), last]:
            ratios = [at_time(curve, when) for curve in curves]
            if not any(math.isnan(r) for r in ratios):  # before the first kernel of a case there is no mean
                points.append((when, 1 / geomean(ratios)))
        if points:
            lines[tuner.label] = points
    if not lines:
        return None
    picture = Picture(report, "Kernel speed over tuning time", list(lines))
    end = max(when for points in lines.values() for when, _ in points)
    for label, points in lines.items():
        (first, speed), (last, final) = points[0], points[-1]
        picture.axes.step(*zip(*points, strict=True), where="post", color=picture.colours[label], lw=2.5)
        picture.axes.plot([last, end], [final, final], ":", color=picture.colours[label])
        picture.dot(first, speed, label, f"{label}: first kernels after {first:.2g} s")
    picture.scales("seconds of tuning an operator", f"speed, {report.base} = 1, geometric mean", "x")
    return picture
