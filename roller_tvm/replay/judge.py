"""How good an order of records is: rank correlation, and what choosing the first of it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import comb, exp

import numpy as np

from ..stats import geomean, spearman

#: Records chosen of an order, beside the first alone.
TOP = 10


@dataclass(frozen=True)
class Figures:
    """What an order of one file's records is worth.

    Parameters
    ----------
    count : int
        Records that are ordered.
    correlation : float
        Spearman's, between predicted and measured times.
    top1, top10 : float
        Time of the first (of the best among the first ten) over that of the best of all: regret.
    ratio : float or None
        Predicted over measured time of the best; None where nothing is predicted.
    """

    count: int
    correlation: float
    top1: float
    top10: float
    ratio: float | None = None

    def to_json(self) -> dict[str, float | int | None]:
        return asdict(self)


def judge(predicted: Sequence[float], measured: Sequence[float], ratio: bool = True) -> Figures:
    """Figures of an order by predicted times (what does not fit is last)."""
    guess, truth = np.asarray(predicted, dtype=float), np.asarray(measured, dtype=float)
    order = np.argsort(guess, kind="stable")
    best = truth.min()
    told = float(guess[truth.argmin()] / best) if ratio else None
    finite = np.where(np.isfinite(guess), guess, np.nanmax(np.where(np.isfinite(guess), guess, 0)) * 2 + 1)
    first, ten = float(truth[order[0]] / best), float(truth[order[:TOP]].min() / best)
    return Figures(len(truth), spearman(finite, truth, flat=0.0), first, ten, told)


def by_chance(measured: Sequence[float]) -> Figures:
    """The same of a random choice: geometric means over all choices of one, and of ten.

    Examples
    --------
    >>> by_chance([1.0, 4.0]).top1
    2.0
    """
    truth = np.sort(np.asarray(measured, dtype=float))
    logs, n, chosen = np.log(truth / truth[0]), len(truth), min(TOP, len(truth))
    # The i-th best is the best of a choice if the rest of the choice is slower.
    share = [comb(n - 1 - i, chosen - 1) / comb(n, chosen) for i in range(n - chosen + 1)]
    return Figures(n, 0.0, exp(float(logs.mean())), exp(float(np.dot(share, logs[: len(share)]))))


def overall(figures: Sequence[Figures]) -> Figures:
    """Of several files: the mean correlation, geometric means of the others."""
    ratios = [f.ratio for f in figures if f.ratio is not None and np.isfinite(f.ratio)]
    if not figures:
        nan = float("nan")
        return Figures(0, nan, nan, nan, nan)
    return Figures(
        sum(f.count for f in figures), float(np.mean([f.correlation for f in figures])),
        geomean([f.top1 for f in figures]), geomean([f.top10 for f in figures]), geomean(ratios) if ratios else None,
    )  # fmt: skip
