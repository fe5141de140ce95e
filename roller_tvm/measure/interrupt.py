"""Ctrl-C while TVM's C++ is at work.

A KeyboardInterrupt that arises in a function called back by TVM is lost: ctypes prints it, TVM goes on with
garbage. So while TVM compiles, the signal is only noted; our own callbacks stop the work when they see it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

_noted = threading.Event()
_deferring = threading.Event()


class Stopped(Exception):
    """Raised through TVM, which passes on exceptions but no KeyboardInterrupt."""


def stop_if_interrupted() -> None:
    """For functions that TVM calls back, now and then."""
    if _noted.is_set():
        raise Stopped("interrupted")


def interrupted() -> bool:
    """Whether Ctrl-C waits for the end of a ``deferred_interrupt``."""
    return _deferring.is_set() and _noted.is_set()


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Ctrl-C inside becomes a KeyboardInterrupt here, at the end or at the next ``stop_if_interrupted``.

    One within another leaves it to that.

    Examples
    --------
    >>> with deferred_interrupt():
    ...     stop_if_interrupted()
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread
        return
    if _deferring.is_set():
        yield
        return

    def note(_signal: int, _frame: Any) -> None:
        _noted.set()

    _noted.clear()
    _deferring.set()
    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    except BaseException as error:
        if _noted.is_set():
            raise KeyboardInterrupt from error
        raise
    finally:
        _deferring.clear()
        signal.signal(signal.SIGINT, before)
    if _noted.is_set():
        raise KeyboardInterrupt
