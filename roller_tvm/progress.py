"""Progress of a long build: one line of a terminal, with the step that is being done."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

_WIDTH = 100
_CLEAR = "\r\033[K"


@contextlib.contextmanager
def progress_line(what: str = "planning") -> Iterator[Callable[[str], None] | None]:
    """Give a function that shows the latest step on one line of a terminal's standard error; None if that is none.

    The line is gone at the end. A step is the name of an operator, or a verb and that: "compile fused_conv2d".

    Parameters
    ----------
    what : str
        What is done with an operator that stands alone.

    Examples
    --------
    >>> with progress_line() as progress:
    ...     if progress is not None:
    ...         progress("fused_conv2d")
    """
    if not sys.stderr.isatty():
        yield None
        return
    begun, counts = time.perf_counter(), dict[str, int]()

    def show(step: str) -> None:
        verb, _, name = step.rpartition(" ")
        verb = verb or what
        counts[verb] = counts.get(verb, 0) + 1
        text = f"{verb} {counts[verb]}: {name}, {time.perf_counter() - begun:.0f} s"
        sys.stderr.write(f"{_CLEAR}{text[:_WIDTH]}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write(_CLEAR)
        sys.stderr.flush()
