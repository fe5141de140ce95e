"""Pictures of a comparison."""

from __future__ import annotations

import math

from roller_tvm.compare.machines import same
from roller_tvm.compare.report import Report
from roller_tvm.stats import at_time, geomean
from roller_tvm.svg import COLOURS, Drawing, Scale, axes
from roller_tvm.tuning.results import duration

WIDTH, HEIGHT = 720.0, 460.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 700.0, 104.0, 410.0
#: Range of plotted tuning times, in powers of ten of a second, and points per decade.
DECADES, PER_DECADE = (-2, 5), 10


def colours(report: Report) -> dict[str, str]:
    """Return a colour for each tuner, the base's first."""
    labels = [report.base, *(t.label for t in report.others)]
    return {label: COLOURS[n % len(COLOURS)] for n, label in enumerate(labels)}


def pictures(report: Report) -> dict[str, str]:
    """Return every picture as SVG, by name; a picture without data is left out."""
    makers = {
        "tuning_against_speed": tuning_against_speed, "speed_over_time": speed_over_time,
        "operators": operators, "roofline": roofline,
    }  # fmt: skip
    made = {name: make(report) for name, make in makers.items()}
    return {name: str(drawing) for name, drawing in made.items() if drawing is not None}


def _begun(report: Report, title: str, height: float = HEIGHT, labels: list[str] | None = None) -> Drawing:
    drawing = Drawing(WIDTH, height, title)
    drawing.text(8, 22, title, size=16)
    chosen = colours(report)
    shown = list(chosen) if labels is None else labels
    titles = {t.label: t.title for t in report.tuners}
    drawing.legend([titles[label] for label in shown], [chosen[label] for label in shown], 8, 44)
    return drawing


def tuning_against_speed(report: Report) -> Drawing | None:
    """Draw seconds of tuning (logarithmic) against the kernel's speed relative to the base, one point per case.

    Returns None if no case has both.
    """
    points = [
        (c.tuner.label, c.tune_s, 1 / c.ratio, row.case.id) for row in report.rows for c in row.cells
        if not math.isnan(c.ratio) and c.tune_s > 0
    ]  # fmt: skip
    if not points:
        return None
    drawing = _begun(report, "Compile time against kernel speed")
    x = Scale.around([p[1] for p in points], LEFT, RIGHT, log=True)
    y = Scale.around([p[2] for p in points], BOTTOM, TOP)
    axes(drawing, x, y, "seconds of tuning an operator", f"speed, {report.base} = 1")
    chosen = colours(report)
    for label, spent, speed, case in points:
        drawing.dot(x(spent), y(speed), chosen[label], f"{case}, {label}: {spent:.1f} s, speed {speed:.2f}", 3)
    for tuner in report.tuners:  # a large one where their mean is
        own = [(p[1], p[2]) for p in points if p[0] == tuner.label]
        if own:
            spent, speed = geomean([a for a, _ in own]), geomean([b for _, b in own])
            drawing.dot(x(spent), y(speed), chosen[tuner.label], f"{tuner.title}: {spent:.1f} s, {speed:.2f}", 8)
    return drawing


def speed_over_time(report: Report) -> Drawing | None:
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
    drawing = _begun(report, "Kernel speed over tuning time", labels=list(lines))
    x = Scale.around([t for points in lines.values() for t, _ in points], LEFT, RIGHT, log=True)
    y = Scale.around([s for points in lines.values() for _, s in points], BOTTOM, TOP)
    axes(drawing, x, y, "seconds of tuning an operator", f"speed, {report.base} = 1, geometric mean")
    chosen = colours(report)
    for label, points in lines.items():
        stairs = [points[0]]
        for (_, before), (when, speed) in zip(points, points[1:], strict=False):
            stairs += [(when, before), (when, speed)]
        end = (x.high, points[-1][1])
        drawing.line([(x(t), y(s)) for t, s in stairs], chosen[label], 2.5)
        drawing.line([(x(t), y(s)) for t, s in (points[-1], end)], chosen[label], 1.2, "3 4")
        first, speed = points[0]
        drawing.dot(x(first), y(speed), chosen[label], f"{label}: first kernels after {first:.2g} s")
    return drawing


def operators(report: Report) -> Drawing | None:
    """Draw a bar for each tuner on each case: its speed relative to the fastest of the case.

    Returns None if nothing was timed.
    """
    rows = [row for row in report.rows if any(c.timed for c in row.cells)]
    if not rows:
        return None
    chosen, thin = colours(report), 9.0
    heights = [thin * sum(c.timed for c in row.cells) + 10 for row in rows]
    drawing = _begun(report, "Operators: speed, the fastest of each = 1", TOP + sum(heights) + 40)
    left, y = 190.0, TOP
    scale = Scale(0.0, 1.0, left, RIGHT)
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        drawing.line([(scale(value), TOP - 6), (scale(value), TOP + sum(heights))], "#ddd", 1)
        drawing.text(scale(value), TOP + sum(heights) + 16, f"{value:g}", "middle", 11)
    for row, height in zip(rows, heights, strict=True):
        timed = [c for c in row.cells if c.timed]
        best = min(c.seconds for c in timed)
        drawing.text(left - 8, y + (height - 10) / 2 + 4, row.case.id[:26], "end", 11)
        for number, cell in enumerate(timed):
            told = f"{row.case.title}, {cell.tuner.title}: {duration(cell.seconds)}"
            drawing.bar(left, y + number * thin, scale(best / cell.seconds) - left, thin - 1,
                        chosen[cell.tuner.label], told)  # fmt: skip
        y += height
    return drawing


def roofline(report: Report) -> Drawing | None:
    """Draw GFLOP/s over FLOP per byte of inputs and outputs, below the device's peaks; only cases of this machine.

    Returns None if there is no such case, or the peaks are unknown.
    """
    here = report.environment
    peak, bandwidth = (report.environment.get(name) for name in ("gflops", "gbytes_per_s"))
    points = [
        (c.tuner.label, row.flops / row.io_bytes, row.gflops(c), row.case.id) for row in report.rows
        for c in row.cells if c.timed and row.flops > 0 and row.io_bytes > 0 and same(row.environment, here)
    ]  # fmt: skip
    if not points or not peak or not bandwidth:
        return None
    peak, bandwidth = float(peak), float(bandwidth)
    drawing = _begun(report, "Roofline")
    x = Scale.around([*(p[1] for p in points), peak / bandwidth], LEFT, RIGHT, log=True)
    y = Scale.around([*(p[2] for p in points), peak], BOTTOM, TOP, log=True)
    axes(drawing, x, y, "FLOP for each byte of inputs and outputs", "GFLOP/s")
    lowest = max(x.low, y.low / bandwidth)
    roof = [(lowest, lowest * bandwidth), (peak / bandwidth, peak), (x.high, peak)]
    drawing.line([(x(a), y(b)) for a, b in roof if y.low <= b <= y.high], "#333", 2)
    drawing.text(x(x.high) - 4, y(peak) - 6, f"{peak:.0f} GFLOP/s", "end", 11)
    drawing.text(x(peak / bandwidth) - 10, y(peak) - 6, f"{bandwidth:.0f} GB/s from memory", "end", 11)
    chosen = colours(report)
    for label, intensity, rate, case in points:
        drawing.dot(x(intensity), y(rate), chosen[label], f"{case}, {label}: {rate:.1f} GFLOP/s", 3.5)
    return drawing
