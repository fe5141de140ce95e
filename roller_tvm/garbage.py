"""Python's collection of garbage, seldom while a model is built: what a build makes has few circles, and stays."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

#: Objects made before a collection looks at them, and collections of each generation before one of the next.
SELDOM = 100_000, 50, 100
_lock = threading.Lock()
_before: list[tuple[int, int, int]] = []


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Have Python collect garbage seldom in this context, of any thread; what was set before comes back after the last.

    Examples
    --------
    >>> before = gc.get_threshold()
    >>> with seldom_collected():
    ...     made = gc.get_threshold()
    >>> made, gc.get_threshold() == before
    ((100000, 50, 100), True)
    """
    with _lock:
        _before.append(gc.get_threshold())
        gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        with _lock:
            first = _before[0]
            _before.pop()
            if not _before:
                gc.set_threshold(*first)
