"""Rules over a table of GPU candidates, each with a sentence about the candidates that break it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..micro_perf.gpu_nest import Array
from ..roller.alignment import Rejection, capacity
from ..roller.candidates import Candidates


class Rules(Candidates):
    """Candidates with a name for each in its rejection.

    Parameters
    ----------
    count : int
    label : callable
        From a candidate's number: its name.

    Examples
    --------
    >>> rules, needed = Rules(3, lambda n: f"tile {n}"), np.array([8, 64, 300])
    >>> rules.room("registers", needed, 255)
    >>> rules.alive.tolist(), [str(r) for r in rules.rejected()]
    ([True, True, False], ['tile 2: registers: needs 300, limit 255 (use a smaller tile)'])
    """

    def __init__(self, count: int, label: Callable[[int], str]) -> None:
        super().__init__(count)
        self._label = label

    def hold(self, mask: Array, broken: Callable[[int], Rejection | None]) -> None:
        """Reject the candidates where `mask` is False and no rule was broken before.

        Parameters
        ----------
        broken : callable
            From a candidate's number: the rule that it breaks.
        """

        def sentence(n: int) -> Rejection:
            rejection = broken(n)
            assert rejection is not None, "the mask and the rule agree"
            return replace(rejection, candidate=self._label(n))

        self.keep(mask, sentence)

    def room(self, what: str, required: Array, limit: Array | int, remedy: str = "use a smaller tile") -> None:
        """Reject the candidates that require more of a resource than there is."""
        def most(n: int) -> int:
            return limit if isinstance(limit, int) else int(np.broadcast_to(limit, required.shape)[n])

        self.hold(required <= limit, lambda n: capacity(what, int(required[n]), most(n), remedy))
