"""The stopping rule: an option goes once it is known, with a confidence, not to be worth having.

Two options are compared by pairs of samples, taken at the same place one shortly after the other, so that a change of
the machine's pace meets both. The test is Wilcoxon's signed-rank test on the logarithms of the ratios: other processes
only add time, now and then a lot of it, and a rank is as large as it gets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

#: Number of pairs above which the distribution of the test is taken for a normal one.
EXACT = 50


@dataclass(frozen=True)
class Rule:
    """When to stop.

    Parameters
    ----------
    confidence : float
        Probability that no option is dropped wrongly, for all options and looks of a phase together.
    near : float
        Share by which an option must be faster than the best one to be worth having.
    worth : float
        The same as a share of the whole run, for all operators together: those that take little time need less care.
    first, most : int
        Pairs of samples before the first look, and after which the rest is settled as it stands.
    growth : float
        From one look to the next, so many times the pairs.
    give_up, tries : float, int
        An option whose first `tries` samples all take `give_up` times the best one's is dropped.

    Examples
    --------
    >>> Rule().looks()
    [10, 15, 23, 35, 53, 80, 100]
    """

    confidence: float = 0.95
    near: float = 0.02
    worth: float = 0.01
    first: int = 10
    most: int = 100
    growth: float = 1.5
    give_up: float = 3.0
    tries: int = 3

    def looks(self) -> list[int]:
        """Return the numbers of pairs at which options are judged."""
        found = [self.first]
        while found[-1] < self.most:
            found.append(min(self.most, math.ceil(found[-1] * self.growth)))
        return found

    def level(self, options: int) -> float:
        """Return the probability of an error that each single test may have (Bonferroni)."""
        return (1 - self.confidence) / (len(self.looks()) * max(1, options - 1))

    def margin(self, share: float, epochs: int = 1) -> float:
        """Return the least gain worth having, of one of so many epochs, which takes this share of a run."""
        return min(0.5, max(self.near, self.worth / epochs / share if share > 0 else 0.5))

    def hopeless(self, samples: Sequence[float], best: float) -> bool:
        """Return whether all of the first samples take far longer than the best option typically does."""
        return len(samples) >= self.tries and min(samples[: self.tries]) > self.give_up * best


def slower(pairs: Sequence[tuple[float, float]], margin: float = 0.0) -> float:
    """Return the probability of such pairs (own, other) if own is not slower than `1 - margin` of other.

    Examples
    --------
    >>> round(slower([(1.1, 1.0)] * 4 + [(1.2, 1.0)] * 6), 4)
    0.001
    """
    if not pairs:
        return 1.0
    own, other = np.asarray(pairs, float).T
    logs = np.log(own / other) - math.log1p(-margin)
    logs = logs[logs != 0]
    if not logs.size:
        return 1.0
    ranks = _ranks(np.abs(logs))
    return _tail(float(ranks[logs > 0].sum()), logs.size)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks from 1, equal values at the mean of theirs."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + 1 + last) / 2)[where]


def _tail(total: float, count: int) -> float:
    """Return the probability that ranks 1 to `count`, each taken by the toss of a coin, sum up to at least `total`."""
    if count > EXACT:
        mean, variance = count * (count + 1) / 4, count * (count + 1) * (2 * count + 1) / 24
        return 1 - NormalDist(mean, math.sqrt(variance)).cdf(total - 0.5)
    return float(_sums(count)[math.ceil(total) :].sum())


@lru_cache(maxsize=EXACT)
def _sums(count: int) -> np.ndarray:
    """Return the probability of each sum of ranks."""
    chances = np.zeros(count * (count + 1) // 2 + 1)
    chances[0] = 1.0
    for rank in range(1, count + 1):
        chances[rank:] += chances[:-rank].copy()
        chances /= 2
    return chances
