"""How long this process' threads have waited for a core: what others on the machine do to the times measured here."""

from __future__ import annotations

import contextlib
from pathlib import Path

#: Each thread has a file: ns on a core, ns of waiting for one, turns. Linux has it.
_THREADS = Path("/proc/self/task")
#: Share of waiting beyond which times tell of the others.
BUSY = 0.05


class Waiting:
    """Adds up seconds on cores and seconds of waiting for one, in the blocks that it is used for.

    Parameters
    ----------
    here : bool
        The runs are this process' own; of others nothing is known.

    Examples
    --------
    >>> waiting = Waiting()
    >>> with waiting:
    ...     total = sum(range(100000))
    >>> 0 <= waiting.share <= 1
    True
    """

    def __init__(self, here: bool = True) -> None:
        self._here = here
        self.ran_ns = self.waited_ns = 0
        self._before: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> Waiting:
        self._before = self._threads()
        return self

    def __exit__(self, *_: object) -> None:
        now = self._threads()
        for thread, (ran, waited) in now.items():
            ran_before, waited_before = self._before.get(thread, (0, 0))
            self.ran_ns += max(0, ran - ran_before)
            self.waited_ns += max(0, waited - waited_before)
        self._before = now

    def so_far(self) -> str:
        """Return `busy` in the middle of a block."""
        self.__exit__()
        return self.busy

    @property
    def share(self) -> float:
        """Waiting as a share of the time in which threads had something to do; 0 where the system does not tell."""
        whole = self.ran_ns + self.waited_ns
        return self.waited_ns / whole if whole else 0.0

    @property
    def busy(self) -> str:
        """Why times cannot be trusted, or ''."""
        if self.share <= BUSY:
            return ""
        return f"others keep the machine busy (threads waited {self.share:.0%} of their time for a core)"

    def _threads(self) -> dict[str, tuple[int, int]]:
        return _threads() if self._here else {}


def _threads() -> dict[str, tuple[int, int]]:
    found = {}
    with contextlib.suppress(OSError):
        for thread in _THREADS.iterdir():
            with contextlib.suppress(OSError, ValueError):  # it has ended
                ran, waited, _ = (thread / "schedstat").read_text().split()
                found[thread.name] = int(ran), int(waited)
    return found
