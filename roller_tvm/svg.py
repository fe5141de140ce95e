"""Drawing SVG: shapes, texts, axes. The output is plain text; no library and no network is needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

#: Colours that stay apart for the colour-blind (Okabe and Ito 2008), the base first.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c6d1f", "#666666")
FONT = "font-family:system-ui,sans-serif"


@dataclass
class Drawing:
    """An SVG picture that scales to the width it is given."""

    width: float
    height: float
    title: str
    parts: list[str] = field(default_factory=list)

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: float = 1.5, dash: str = "") -> None:
        """Draw a line through points."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>')

    def dot(
        self, x: float, y: float, colour: str, told: str = "", radius: float = 4.0, opacity: float = 0.75
    ) -> None:
        """Draw a point; `told` is the text shown under the mouse."""
        title = f"<title>{escape(told)}</title>" if told else ""
        self.parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"'
            f' fill-opacity="{opacity}">{title}</circle>'
        )

    def bar(self, x: float, y: float, width: float, height: float, colour: str, told: str = "") -> None:
        """Draw a rectangle; `told` is the text shown under the mouse."""
        title = f"<title>{escape(told)}</title>" if told else ""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" fill="{colour}">'
            f"{title}</rect>"
        )

    def text(
        self, x: float, y: float, text: str, anchor: str = "start", size: float = 12, turned: bool = False
    ) -> None:
        """Draw a text; `anchor` is start, middle or end. A `turned` text runs upwards."""
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="#333"'
            f' style="{FONT}"{turn}>{escape(text)}</text>'
        )

    def legend(self, names: Sequence[str], colours: Sequence[str], x: float, y: float) -> float:
        """Draw names beside their colours, in rows; return the y of the next free row."""
        at = x
        for name, colour in zip(names, colours, strict=True):
            width = 24 + 7.4 * len(name)  # of a wide font
            if at + width > self.width and at > x:
                at, y = x, y + 18
            self.bar(at, y - 9, 10, 10, colour)
            self.text(at + 14, y, name)
            at += width
        return y + 18

    def __str__(self) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:.0f} {self.height:.0f}" role="img"'
            f' aria-label="{escape(self.title, quote=True)}"><title>{escape(self.title)}</title>'
            f'<rect width="100%" height="100%" fill="#fff"/>{"".join(self.parts)}</svg>\n'
        )


@dataclass(frozen=True)
class Scale:
    """A mapping from values to positions on an axis.

    Parameters
    ----------
    low, high : float
        Values at its ends.
    start, end : float
        Their places.
    log : bool

    Examples
    --------
    >>> Scale(1.0, 100.0, 0.0, 200.0, log=True)(10.0)
    100.0
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        change: Callable[[float], float] = math.log10 if self.log else float
        low, high = change(self.low), change(self.high)
        return self.start + (change(value) - low) / ((high - low) or 1.0) * (self.end - self.start)

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float, log: bool = False) -> Scale:
        """Return a scale that holds all of the values; a logarithmic one runs between powers of ten."""
        low, high = (min(values), max(values)) if values else (1.0, 10.0)
        if log:
            ends = math.floor(math.log10(low)), math.ceil(math.log10(high))
            return cls(10.0 ** ends[0], 10.0 ** max(ends[1], ends[0] + 1), start, end, True)
        step = _step(high)
        return cls(0.0, step * max(1, math.ceil(high / step - 1e-9)), start, end)

    @property
    def ticks(self) -> list[float]:
        """Values to mark with a tick."""
        if self.log:
            low, high = round(math.log10(self.low)), round(math.log10(self.high))
            return [10.0**n for n in range(low, high + 1)]
        step = _step(self.high)
        return [n * step for n in range(math.floor(self.high / step + 1e-9) + 1)]


def _step(high: float) -> float:
    """Return a round distance between about five ticks."""
    if high <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(high / 5))
    return next(power * m for m in (1, 2, 5, 10) if high / (power * m) <= 6)


def number(value: float) -> str:
    """Return a tick's value in few characters.

    Examples
    --------
    >>> number(1000.0), number(0.01), number(2.5)
    ('1000', '0.01', '2.5')
    """
    return f"{value:.0f}" if value >= 10 and value == round(value) else f"{value:g}"


def axes(drawing: Drawing, x: Scale, y: Scale, x_title: str, y_title: str) -> None:
    """Draw both axes with a grid."""
    bottom, left = y.start, x.start
    for value in x.ticks:
        drawing.line([(x(value), bottom), (x(value), y.end)], "#ddd", 1)
        drawing.text(x(value), bottom + 16, number(value), "middle", 11)
    for value in y.ticks:
        drawing.line([(left, y(value)), (x.end, y(value))], "#ddd", 1)
        drawing.text(left - 6, y(value) + 4, number(value), "end", 11)
    drawing.line([(left, y.end), (left, bottom), (x.end, bottom)], "#333", 1.2)
    drawing.text((left + x.end) / 2, bottom + 34, x_title, "middle")
    drawing.text(8, y.end - 10, y_title)


@dataclass(frozen=True)
class Mark:
    """A point of `beside`: two values of one thing, and the text shown under the mouse."""

    x: float
    y: float
    told: str = ""
    opacity: float = 0.7


def beside(
    drawing: Drawing, left: float, top: float, size: float, words: tuple[str, str, str],
    groups: Sequence[tuple[str, Sequence[Mark]]], tick: Callable[[float], str] = number, radius: float = 3.0,
) -> None:  # fmt: skip
    """Draw points over two equal logarithmic axes, with the line on which both values are equal.

    Parameters
    ----------
    left, top, size : float
        Position and side of the square.
    words : (str, str, str)
        Its title, and the labels of the horizontal and the vertical axis.
    groups : sequence of (colour, marks)
    tick : function of a value
        Label of a power of ten.

    Examples
    --------
    >>> drawing = Drawing(300, 300, "two")
    >>> beside(drawing, 50, 50, 200, ("two", "one", "other"), [("red", [Mark(1.0, 10.0, "this")])])
    >>> str(drawing).count("<circle")
    1
    """
    values = [v for _, marks in groups for m in marks for v in (m.x, m.y) if v > 0 and math.isfinite(v)]
    bottom, right = top + size, left + size
    x = Scale.around(values, left, right, log=True)
    y = Scale.around(values, bottom, top, log=True)
    title, across, up = words
    drawing.text((left + right) / 2, top - 14, title, "middle", 14)
    drawing.text((left + right) / 2, bottom + 36, across, "middle")
    drawing.text(left - 40, (top + bottom) / 2, up, "middle", turned=True)
    for value in x.ticks:
        drawing.line([(x(value), top), (x(value), bottom)], "#ddd", 1)
        drawing.line([(left, y(value)), (right, y(value))], "#ddd", 1)
        drawing.text(x(value), bottom + 16, tick(value), "middle", 11)
        drawing.text(left - 6, y(value) + 4, tick(value), "end", 11)
    drawing.line([(left, bottom), (right, top)], "#888", 1, "4 3")
    for colour, marks in groups:
        for mark in marks:
            drawing.dot(x(mark.x), y(mark.y), colour, mark.told, radius, mark.opacity)
    if not values:
        drawing.text((left + right) / 2, (top + bottom) / 2, "nothing measured", "middle")
