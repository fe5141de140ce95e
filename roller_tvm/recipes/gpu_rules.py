"""Rules over a table of candidates: a mask each, and the sentence about one candidate made only when someone asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ..micro_perf.gpu_nest import Array
from ..roller.alignment import Rejection, capacity


class Rules:
    """The rules that candidates were held to, in order.

    Parameters
    ----------
    count : int
    label : callable
        From a candidate's number: its name in a rejection.

    Examples
    --------
    >>> rules, needed = Rules(3, lambda n: f"tile {n}"), np.array([8, 64, 300])
    >>> rules.room("registers", needed, 255)
    >>> rules.alive.tolist(), [str(r) for r in rules.rejected()]
    ([True, True, False], ['tile 2: registers: needs 300, limit 255 (use a smaller tile)'])
    """

    def __init__(self, count: int, label: Callable[[int], str]) -> None:
        self._broken, self._label = np.full(count, -1), label
        self._sentences: list[Callable[[int], Rejection | None]] = []

    def keep(self, mask: Array, sentence: Callable[[int], Rejection | None]) -> None:
        """Reject the candidates where `mask` is False and no rule was broken before."""
        self._broken[~mask & self.alive] = len(self._sentences)
        self._sentences.append(sentence)

    def room(self, what: str, required: Array, limit: Array | int, remedy: str = "use a smaller tile") -> None:
        """Reject the candidates that require more of a resource than there is."""
        most = np.broadcast_to(limit, required.shape)
        self.keep(required <= most, lambda n: capacity(what, int(required[n]), int(most[n]), remedy))

    @property
    def alive(self) -> Array:
        """Candidates that broke no rule."""
        return self._broken < 0

    def rejected(self) -> Iterator[Rejection]:
        """Yield why the others were rejected, in the order of the table."""
        for n in np.flatnonzero(~self.alive).tolist():
            rejection = self._sentences[self._broken[n]](n)
            if rejection is not None:
                yield replace(rejection, candidate=self._label(n))
