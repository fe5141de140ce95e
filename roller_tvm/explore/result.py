"""The table of an exploration while it runs, its result, and the picture of its convergence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..svg import COLOURS, Drawing, Scale
from .explorer import Row

#: Widest name of an operator.
WIDE = 48


def live_table(rows: Sequence[Row], names: Mapping[str, str], most: int = 30) -> str:
    """Return the rows as text: operator, share of the time, best, tried, gain.

    Examples
    --------
    >>> row = Row("k1", 0.75, 3, 4, 1, 3e-6, 2e-6, (("plan", "b"),), True)
    >>> print(live_table([row], {"k1": "conv2d"}))
     share    start     best   gain  tried  left  operator
     75.0%      3.0      2.0  1.50x    3/4  done  conv2d
                3.0      2.0  1.50x  us in all operators
    """
    lines = [f"{'share':>6}  {'start':>7}  {'best':>7}  {'gain':>5}  {'tried':>5}  {'left':>4}  operator"]
    for row in rows[:most]:
        name = names.get(row.name, row.name)
        gain = row.start_s / row.best_s if row.best_s else 1.0
        left = "done" if row.done else str(row.left)
        lines.append(f"{row.share:6.1%}  {row.start_s * 1e6:7.1f}  {row.best_s * 1e6:7.1f}  {gain:4.2f}x  "
                     f"{f'{row.tried}/{row.options}':>5}  {left:>4}  {name[:WIDE]}")  # fmt: skip
    if len(rows) > most:
        lines.append(f"{'':40}and {len(rows) - most} more")
    start, best = sum(row.start_s for row in rows), sum(row.best_s for row in rows)
    lines.append(f"{'':6}  {start * 1e6:7.1f}  {best * 1e6:7.1f}  {start / best if best else 1:4.2f}x  "
                 "us in all operators")  # fmt: skip
    return "\n".join(lines)


@dataclass(frozen=True)
class ExploreResult:
    """The result of an exploration.

    Parameters
    ----------
    rows : tuple of Row
    names : dict
        Key of a class -> name of its first operator.
    history : tuple of float
        After each run: seconds of a run with the best plans known.
    wall_s : tuple of float
        Seconds of each run.
    seconds : dict
        Phase -> seconds.
    failed : dict of str to str
        Plans that must not run, and why.
    records : str or None
        Where the winners are recorded.
    """

    rows: tuple[Row, ...]
    names: Mapping[str, str]
    history: tuple[float, ...]
    wall_s: tuple[float, ...]
    runs: int
    done: bool
    seconds: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    records: str | None = None

    @property
    def gain(self) -> float:
        """Time of the operators as they started, over their time with the best plans."""
        best = sum(row.best_s for row in self.rows)
        return sum(row.start_s for row in self.rows) / best if best else 1.0

    def __str__(self) -> str:
        lines = [live_table(self.rows, self.names), ""]
        lines.append(f"{self.runs} runs, {'nothing is left to try' if self.done else 'not finished: go on with it'}")
        lines += [f"left out: {what}: {why}" for what, why in self.failed.items()]
        lines += [f"note: {note}" for note in self.notes]
        lines.append("seconds: " + ", ".join(f"{k} {v:.1f}" for k, v in self.seconds.items()))
        if self.records:
            lines.append(f"records: {self.records}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        rows = [{**vars(row), "operator": self.names.get(row.name, row.name), "best": dict(row.best)}
                for row in self.rows]  # fmt: skip
        return {
            "rows": rows, "history": list(self.history), "runs": self.runs, "done": self.done, "gain": self.gain,
            "seconds": dict(self.seconds), "failed": dict(self.failed), "notes": list(self.notes),
            "records": self.records, "wall_s": list(self.wall_s),
        }  # fmt: skip

    def svg(self) -> str:
        """Return the convergence as a picture: time of a run with the best plans known, over the runs."""
        return convergence(self.history, "runs")


def convergence(seconds: Sequence[float], unit: str) -> str:
    """Return a picture: time of a run with the best plans known, over what it took to know them.

    Examples
    --------
    >>> convergence([3e-3, 2e-3], "runs").startswith("<svg")
    True
    """
    drawing = Drawing(560, 300, "Convergence")
    points = [1e3 * s for s in seconds] or [0.0]
    x = Scale.around([1.0, float(len(points))], 60, 540)
    y = Scale.around([0.0, max(points)], 250, 30)
    for value in x.ticks:
        drawing.text(x(value), 268, f"{value:g}", "middle", 11)
    for value in y.ticks:
        drawing.line([(60, y(value)), (540, y(value))], "#ddd", 1)
        drawing.text(54, y(value) + 4, f"{value:g}", "end", 11)
    drawing.line([(60, 250), (540, 250)], "#333", 1.2)
    drawing.line([(x(n + 1), y(value)) for n, value in enumerate(points)], COLOURS[0], 2)
    drawing.text(300, 290, unit, "middle")
    drawing.text(60, 18, "ms a run in all operators, with the best plans known")
    return str(drawing)
