"""A sample of many cases at every change, all of them in ``make nightly``."""

import pytest


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
