"""Memory while a model is built: enough of it, and collected seldom, as a build makes few circles and keeps them."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

from .errors import RollerError

#: Objects made before a collection looks at them, and collections of each generation before one of the next.
SELDOM = 100_000, 50, 100
#: Least memory left, in bytes, under a limit of the process: the code and buffers of a small model.
LEAST_LEFT = 128 * 1024 * 1024
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


def check_memory() -> None:
    """Raise ``RollerError`` if the limit of this process's memory is near: LLVM ends a process that runs out of it.

    Examples
    --------
    >>> check_memory()  # without a limit, anything goes
    """
    limit, taken = resource.getrlimit(resource.RLIMIT_AS)[0], Path("/proc/self/statm")
    if limit == resource.RLIM_INFINITY or not taken.exists():
        return
    left = limit - int(taken.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    if left < LEAST_LEFT:
        told = f"{max(0, left) >> 20} MiB of memory are left below a limit of {limit >> 20} MiB"
        raise RollerError(f"{told}; LLVM ends the process if they do not suffice", remedy="give it more (ulimit -v)")
