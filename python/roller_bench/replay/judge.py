"""Judge an order of records: rank correlation, and the cost of choosing its first record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import comb, exp

import numpy as np

from roller_tvm.stats import geomean, spearman

#: Number of first records that `Figures.top10` chooses from.
TOP = 10


@dataclass(frozen=True)
class Figures:
    """Quality of an order of one file's records."""

    count: int  # number of records
    correlation: float  # Spearman's correlation of predicted and measured times
    #: Regret: time of the first (of the best of the first ten), over the time of the best of all.
    top1: float
    top10: float
    ratio: float | None = None  # predicted over measured time of the best record; None if no times are predicted

    def to_json(self) -> dict[str, float | int | None]:
        return asdict(self)


def judge(predicted: Sequence[float], measured: Sequence[float], ratio: bool = True) -> Figures:
    """Return the figures of the order by predicted times; records without a finite prediction come last."""
    guess, truth = np.asarray(predicted, dtype=float), np.asarray(measured, dtype=float)
    order = np.argsort(guess, kind="stable")
    best = truth.min()
    told = float(guess[truth.argmin()] / best) if ratio else None
    finite = np.where(np.isfinite(guess), guess, np.nanmax(np.where(np.isfinite(guess), guess, 0)) * 2 + 1)
    first, ten = float(truth[order[0]] / best), float(truth[order[:TOP]].min() / best)
    return Figures(len(truth), spearman(finite, truth, flat=0.0), first, ten, told)


def by_chance(measured: Sequence[float]) -> Figures:
    """Return the figures of a random order: geometric means over all choices of one record, and of ten.

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
    """Return the figures of several files together: mean correlation, geometric means of the others."""
    ratios = [f.ratio for f in figures if f.ratio is not None and np.isfinite(f.ratio)]
    if not figures:
        nan = float("nan")
        return Figures(0, nan, nan, nan, nan)
    return Figures(
        sum(f.count for f in figures), float(np.mean([f.correlation for f in figures])),
        geomean([f.top1 for f in figures]), geomean([f.top10 for f in figures]), geomean(ratios) if ratios else None,
    )  # fmt: skip
