"""A sample of many cases at every change, all of them in ``make nightly``."""

import itertools
import sys

import pytest

#: True in ``make nightly``.
NIGHTLY = "--nightly" in sys.argv


def in_sample(cases, every=0, first=0, always=()):
    """Of the cases, each `every`-th from `first` on (none if 0), and those that are in `always`."""
    return [case for n, case in enumerate(cases) if (every and n % every == first) or case in always]


def sampled(cases, every=0, first=0, always=()):
    """All cases as parameters of a test, marked nightly where they are not in the sample; a tuple is several values."""
    chosen = in_sample(cases, every, first, always)
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=[] if case in chosen else [pytest.mark.nightly]
        )
        for case in cases
    ]


def covering(*axes):
    """All combinations of the axes' values as parameters, marked nightly but for some that have each value of each.

    Examples
    --------
    >>> [p.values for p in covering("abc", (1, 2)) if not p.marks]
    [('a', 1), ('b', 2), ('c', 1)]
    """
    axes = [list(axis) for axis in axes]
    chosen = {tuple(n % len(axis) for axis in axes) for n in range(max(map(len, axes)))}
    cases = []
    for numbers in itertools.product(*(range(len(axis)) for axis in axes)):
        values = []
        for axis, n in zip(axes, numbers, strict=True):
            values += axis[n] if isinstance(axis[n], tuple) else [axis[n]]
        cases.append(pytest.param(*values, marks=[] if numbers in chosen else [pytest.mark.nightly]))
    return cases


def examples(number):
    """Return how many examples a property is tried with: a third of `number` at every change."""
    return number if NIGHTLY else number // 3
