"""A scatter plot of predicted against measured times, as SVG written by hand: no library is needed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, isfinite, log10

SIZE, MARGIN = 560, 56
#: Points of a file that are drawn at most: as many as eyes can tell apart.
DRAWN = 400
COLOURS = {
    "conv2d": "#1f77b4", "depthwise": "#2ca02c", "matmul": "#d62728", "pooling": "#9467bd", "reduction": "#8c564b",
}  # fmt: skip


def scatter(title: str, series: Sequence[tuple[str, Sequence[tuple[float, float, bool]]]]) -> str:
    """The plot as SVG text.

    Parameters
    ----------
    title : str
    series : sequence of (kind, points)
        A point is measured and predicted seconds, and whether it is among those judged (drawn full).

    Examples
    --------
    >>> scatter("v100", [("matmul", [(1e-3, 2e-3, True)])]).startswith("<svg")
    True
    """
    drawn = [(k, p) for k, points in series for p in _thinned([p for p in points if isfinite(p[1])])]
    values = [v for _, (m, p, _) in drawn for v in (m, p)] or [1e-3, 1.0]
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    high = max(high, low + 1)
    span = SIZE - 2 * MARGIN

    def x(value: float) -> float:
        return MARGIN + span * (log10(value) - low) / (high - low)

    def y(value: float) -> float:
        return SIZE - MARGIN - span * (log10(value) - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE}" height="{SIZE}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{SIZE}" height="{SIZE}" fill="white"/>',
        f'<text x="{SIZE / 2}" y="22" text-anchor="middle" font-size="15">{escape(title)}</text>',
        f'<text x="{SIZE / 2}" y="{SIZE - 10}" text-anchor="middle">measured</text>',
        f'<text x="14" y="{SIZE / 2}" text-anchor="middle" transform="rotate(-90 14 {SIZE / 2})">predicted</text>',
    ]
    for power in range(low, high + 1):
        at, label = 10.0**power, _time(power)
        parts += [
            f'<path d="M{x(at):.1f} {MARGIN}V{SIZE - MARGIN}M{MARGIN} {y(at):.1f}H{SIZE - MARGIN}" stroke="#ddd"/>',
            f'<text x="{x(at):.1f}" y="{SIZE - MARGIN + 16}" text-anchor="middle">{label}</text>',
            f'<text x="{MARGIN - 6}" y="{y(at) + 4:.1f}" text-anchor="end">{label}</text>',
        ]
    ends = 10.0**low, 10.0**high
    parts.append(f'<path d="M{x(ends[0])} {y(ends[0])}L{x(ends[1])} {y(ends[1])}" stroke="#888" stroke-dasharray="4"/>')
    for kind, (measured, predicted, judged) in drawn:
        colour, opacity = COLOURS.get(kind, "#333"), 0.7 if judged else 0.2
        place = f'cx="{x(measured):.1f}" cy="{y(predicted):.1f}" r="2"'
        parts.append(f'<circle {place} fill="{colour}" opacity="{opacity}"/>')
    for row, kind in enumerate(dict.fromkeys(k for k, _ in drawn)):
        top = MARGIN + 14 + 16 * row
        parts.append(f'<circle cx="{MARGIN + 10}" cy="{top - 4}" r="4" fill="{COLOURS.get(kind, "#333")}"/>')
        parts.append(f'<text x="{MARGIN + 20}" y="{top}">{escape(kind)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _thinned(points: list[tuple[float, float, bool]]) -> list[tuple[float, float, bool]]:
    step = max(1, len(points) // DRAWN)
    return points[::step]


def _time(power: int) -> str:
    unit, scale = next((u, s) for u, s in (("s", 0), ("ms", -3), ("us", -6), ("ns", -9)) if power >= s or s == -9)
    return f"{10 ** (power - scale):g} {unit}"
