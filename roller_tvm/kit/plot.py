"""Predicted over measured times and torch beside ours, as SVG written by hand: nothing needs to be installed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from roller_tvm.kit.report import family, timed, torch_us

SIZE, MARGIN, LEGEND = 420, 60, 24
#: Told apart by those who see no red or green, too (Okabe and Ito).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000", "#f0e442")

#: x, y in microseconds, and what it is.
Point = tuple[float, float, str]


def plot(results: Mapping[str, Any]) -> str:
    """The picture.

    Examples
    --------
    >>> plot({"operators": {}, "card": {"name": "NVIDIA Toy 100"}}).startswith("<svg")
    True
    """
    predicted: dict[str, list[Point]] = {}
    beside: dict[str, list[Point]] = {}
    for name, operator in results["operators"].items():
        times = timed(operator)
        own = predicted.setdefault(family(operator), [])
        own += [(measured, said, f"{name}#{rank}") for rank, (said, measured) in times.items()]
        if (torch := torch_us(operator)) and times:
            beside.setdefault(family(operator), []).append((torch, min(m for _, m in times.values()), name))
    names = list(predicted)
    colours = {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(names)}
    height = SIZE + 2 * MARGIN + LEGEND * (1 + len(names) // 4)
    parts = [
        _panel(0, "predicted by measured", "measured, us", "predicted, us", predicted, colours),
        _panel(SIZE + 2 * MARGIN, "ours by torch", "torch, us", "best of ours, us", beside, colours),
    ]
    for n, name in enumerate(names):
        x, y = MARGIN + n % 4 * 230, SIZE + 2 * MARGIN + LEGEND * (n // 4)
        parts.append(f'<circle cx="{x}" cy="{y}" r="5" fill="{colours[name]}"/>{_text(x + 10, y + 4, name, "start")}')
    width = 2 * (SIZE + 2 * MARGIN)
    title = _text(width / 2, 20, f"GPU kit: {results['card']['name']}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>{title}{"".join(parts)}</svg>\n'
    )


def _panel(
    left: float, title: str, across: str, up: str, groups: Mapping[str, Sequence[Point]], colours: Mapping[str, str]
) -> str:
    """Points in decades of both axes, and the line on which both are the same."""
    values = [v for points in groups.values() for x, y, _ in points for v in (x, y) if v > 0]
    low = math.floor(math.log10(min(values))) if values else 0
    high = max(math.ceil(math.log10(max(values))) if values else 1, low + 1)
    x0, y0 = left + MARGIN, MARGIN

    def place(value: float) -> float:
        return (math.log10(value) - low) / (high - low) * SIZE

    parts = [_text(x0 + SIZE / 2, y0 - 14, title), _text(x0 + SIZE / 2, y0 + SIZE + 36, across)]
    parts.append(_text(x0 - 40, y0 + SIZE / 2, up, turned=True))
    for power in range(low, high + 1):
        at = place(10.0**power)
        parts.append(f'<path d="M{x0 + at:.1f} {y0}v{SIZE}M{x0} {y0 + SIZE - at:.1f}h{SIZE}" stroke="#ddd"/>')
        parts.append(_text(x0 + at, y0 + SIZE + 18, f"{10.0**power:g}"))
        parts.append(_text(x0 - 6, y0 + SIZE - at + 4, f"{10.0**power:g}", "end"))
    parts.append(f'<path d="M{x0} {y0 + SIZE}L{x0 + SIZE} {y0}" stroke="#888" stroke-dasharray="4 3"/>')
    for name, points in groups.items():
        for x, y, what in points:
            told = escape(f"{what}: {x:.1f}, {y:.1f}")
            parts.append(f'<circle cx="{x0 + place(x):.1f}" cy="{y0 + SIZE - place(y):.1f}" r="3" '
                         f'fill="{colours[name]}" fill-opacity="0.6"><title>{told}</title></circle>')  # fmt: skip
    if not values:
        parts.append(_text(x0 + SIZE / 2, y0 + SIZE / 2, "nothing measured"))
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str = "middle", turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(text)}</text>'
