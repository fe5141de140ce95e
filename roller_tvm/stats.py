"""Statistics of times: means of ratios, orders, spreads. Nothing but Python is needed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median


def geomean(values: Iterable[float]) -> float:
    """Return the geometric mean; nan if there are no values.

    Examples
    --------
    >>> geomean([1.0, 4.0])
    2.0
    """
    logs = [math.log(v) for v in values]
    return math.exp(fmean(logs)) if logs else math.nan


def ranks(values: Iterable[float]) -> list[float]:
    """Return the rank of each value, from 0; equal values share the mean of their ranks.

    Examples
    --------
    >>> ranks([3.0, 1.0, 3.0])
    [1.5, 0.0, 1.5]
    """
    known = [float(v) for v in values]
    first = {v: n for n, v in reversed(list(enumerate(sorted(known))))}
    count = Counter(known)
    return [first[v] + (count[v] - 1) / 2 for v in known]


def spearman(one: Iterable[float], other: Iterable[float], flat: float = math.nan) -> float:
    """Return Spearman's rank correlation; `flat` if all values of one side are equal.

    Examples
    --------
    >>> spearman([1, 2, 3], [10, 20, 25]), spearman([1, 2, 3], [3, 2, 1]), spearman([1, 1], [1, 2], flat=0.0)
    (1.0, -1.0, 0.0)
    """
    x, y = ranks(one), ranks(other)
    if not x:
        return flat
    middle = fmean(x)  # of either side: ranks are shared out
    over = sum((p - middle) * (q - middle) for p, q in zip(x, y, strict=True))
    under = math.sqrt(sum((p - middle) ** 2 for p in x)) * math.sqrt(sum((q - middle) ** 2 for q in y))
    return round(over / under, 12) if under else flat


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile `share` (0 to 1) of the values, with linear interpolation.

    Examples
    --------
    >>> quantile([1.0, 2.0, 4.0], 0.75)
    3.0
    """
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def spread(values: Sequence[float]) -> float:
    """Return half the distance between the quartiles, as a share of the median.

    Examples
    --------
    >>> spread([1.0, 2.0, 3.0])
    0.25
    """
    return (quantile(values, 0.75) - quantile(values, 0.25)) / 2 / median(values)


def paired_ratio(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the median of the ratios `one / other`, pair by pair: a disturbance of one round affects both its times.

    Examples
    --------
    >>> paired_ratio([2.0, 40.0, 2.2], [1.0, 20.0, 1.0])
    2.0
    """
    return median(a / b for a, b in zip(one, other, strict=True))


def best_over_time(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points (when, seconds of a kernel), in order of time, that improve on all earlier ones.

    Examples
    --------
    >>> best_over_time([(1.0, 5.0), (2.0, 6.0), (3.0, 4.0)])
    [(1.0, 5.0), (3.0, 4.0)]
    """
    kept: list[tuple[float, float]] = []
    for when, seconds in sorted(points):
        if seconds > 0 and math.isfinite(seconds) and (not kept or seconds < kept[-1][1]):
            kept.append((when, seconds))
    return kept


def at_time(curve: Sequence[tuple[float, float]], when: float) -> float:
    """Return the least seconds of a kernel on the curve up to time `when`; nan before its first point.

    Examples
    --------
    >>> at_time([(1.0, 5.0), (3.0, 4.0)], 2.0)
    5.0
    """
    return min((s for t, s in curve if t <= when), default=math.nan)


def grouped(groups: Sequence[str], values: Sequence[float]) -> Mapping[str, list[float]]:
    """Return the values of each group, with groups in the order of their first value."""
    found: dict[str, list[float]] = {}
    for group, value in zip(groups, values, strict=True):
        found.setdefault(group, []).append(value)
    return found
