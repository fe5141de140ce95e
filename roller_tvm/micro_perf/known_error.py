"""How far measured times lie from predicted ones: what is not tried, as it is predicted to be slower by more."""

from __future__ import annotations

#: Measured over predicted time of kernels, least and most (an AVX-512 server of Intel with a matrix unit, 2026-11:
#: direct convolutions 0.94 to 1.06, Winograd's algorithm 0.98 to 1.12, products on the matrix unit 0.81 to 1.11).
LEAST, MOST = 0.81, 1.12


def may_win(predicted_s: float, best_s: float) -> bool:
    """Return whether something may be faster than another, for all that is predicted of both.

    Examples
    --------
    >>> may_win(1.3e-6, 1e-6), may_win(1.4e-6, 1e-6), may_win(float("nan"), 1e-6)
    (True, False, True)
    """
    return not predicted_s * LEAST >= best_s * MOST
