"""Scatter plot of predicted against measured times, as SVG; no library is needed."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isfinite, log10

from roller_tvm.svg import COLOURS, Drawing, Mark, beside

SIZE, MARGIN = 560, 56
#: Most points drawn for a file.
DRAWN = 400


def scatter(title: str, series: Sequence[tuple[str, Sequence[tuple[float, float, bool]]]]) -> str:
    """Return the plot as SVG text.

    Parameters
    ----------
    series : sequence of (kind, points)
        Points are (measured seconds, predicted seconds, judged); judged points are drawn opaque.

    Examples
    --------
    >>> scatter("v100", [("matmul", [(1e-3, 2e-3, True)])]).startswith("<svg")
    True
    """
    kinds = list(dict.fromkeys(kind for kind, _ in series))
    colours = {kind: COLOURS[n % len(COLOURS)] for n, kind in enumerate(kinds)}
    groups, drawn = [], set()
    for kind, points in series:
        kept = _thinned([p for p in points if isfinite(p[1])])
        marks = [Mark(measured, predicted, "", 0.7 if judged else 0.2) for measured, predicted, judged in kept]
        groups.append((colours[kind], marks))
        drawn |= {kind} if marks else set()
    drawing = Drawing(SIZE, SIZE, title)
    beside(drawing, MARGIN, MARGIN, SIZE - 2 * MARGIN, (title, "measured", "predicted"), groups, _time, 2)
    for row, kind in enumerate(kind for kind in kinds if kind in drawn):
        drawing.dot(MARGIN + 10, MARGIN + 10 + 16 * row, colours[kind])
        drawing.text(MARGIN + 20, MARGIN + 14 + 16 * row, kind)
    return str(drawing)


def _thinned(points: list[tuple[float, float, bool]]) -> list[tuple[float, float, bool]]:
    step = max(1, len(points) // DRAWN)
    return points[::step]


def _time(value: float) -> str:
    power = floor(log10(value) + 0.5)
    unit, scale = next((u, s) for u, s in (("s", 0), ("ms", -3), ("us", -6), ("ns", -9)) if power >= s or s == -9)
    return f"{10 ** (power - scale):g} {unit}"
