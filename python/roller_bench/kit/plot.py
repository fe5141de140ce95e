"""Plot predicted over measured times, and torch's times beside ours, as hand-written SVG that needs no library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roller_bench.kit.results_text import family, timed, torch_us
from roller_tvm.svg import COLOURS, Drawing, Mark, beside

SIZE, MARGIN, LEGEND = 420, 60, 24


def plot(results: Mapping[str, Any]) -> str:
    """Return the picture as SVG text.

    Examples
    --------
    >>> plot({"operators": {}, "card": {"name": "NVIDIA Toy 100"}}).startswith("<svg")
    True
    """
    predicted: dict[str, list[Mark]] = {}
    torch: dict[str, list[Mark]] = {}
    for name, operator in results["operators"].items():
        times = timed(operator)
        own = predicted.setdefault(family(operator), [])
        own += [_mark(measured, said, f"{name}#{rank}") for rank, (said, measured) in times.items()]
        if (theirs := torch_us(operator)) and times:
            torch.setdefault(family(operator), []).append(_mark(theirs, min(m for _, m in times.values()), name))
    names = list(predicted)
    colours = {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(names)}
    side = SIZE + 2 * MARGIN
    title = f"GPU kit: {results['card']['name']}"
    drawing = Drawing(2 * side, side + LEGEND * (1 + len(names) // 4), title)
    drawing.text(side, 20, title, "middle")
    for left, words, groups in (
        (0, ("predicted by measured", "measured, us", "predicted, us"), predicted),
        (side, ("ours by torch", "torch, us", "best of ours, us"), torch),
    ):
        beside(drawing, left + MARGIN, MARGIN, SIZE, words, [(colours[n], marks) for n, marks in groups.items()])
    drawing.legend(names, [colours[n] for n in names], MARGIN, side)
    return str(drawing)


def _mark(x: float, y: float, what: str) -> Mark:
    return Mark(x, y, f"{what}: {x:.1f}, {y:.1f}")
