"""Progress of a long build: one line of a terminal, with the step that is being done."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator

_WIDTH = 100
_CLEAR = "\r\033[K"


def counted(told: Callable[[str], None] | None, verb: str, total: int = 0) -> Callable[..., None]:
    """Return a function that tells of each name which number it has, of how many.

    Parameters
    ----------
    told : function of str, optional
    verb : str
    total : int
        0 if it is not known.

    Returns
    -------
    function of a name, and of its place from 0 if names do not come in order

    Examples
    --------
    >>> tell = counted(print, "plan", 57)
    >>> tell("fused_dense"), tell("fused_conv2d", 11)
    plan 1 of 57: fused_dense
    plan 12 of 57: fused_conv2d
    (None, None)
    """
    numbers = itertools.count(1)

    def tell(name: str, place: int | None = None) -> None:
        if told is not None:
            number = next(numbers) if place is None else place + 1
            told(f"{verb} {number}{f' of {total}' if total else ''}: {name}")

    return tell


@contextlib.contextmanager
def progress_line() -> Iterator[Callable[[str], None] | None]:
    """Give a function that shows the latest step on one line of a terminal's standard error; None if that is none.

    The line is gone at the end.

    Examples
    --------
    >>> with progress_line() as progress:
    ...     if progress is not None:
    ...         progress("plan 12 of 57: fused_conv2d")
    """
    if not sys.stderr.isatty():
        yield None
        return
    begun = time.perf_counter()

    def show(step: str) -> None:
        told = f", {time.perf_counter() - begun:.0f} s"
        sys.stderr.write(f"{_CLEAR}{step[:_WIDTH - len(told)]}{told}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write(_CLEAR)
        sys.stderr.flush()
