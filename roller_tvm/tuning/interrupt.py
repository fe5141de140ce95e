"""Handle Ctrl-C while TVM's C++ is running.

A KeyboardInterrupt raised in a function that TVM calls back is lost: ctypes prints it, and TVM goes on with garbage.
So while TVM compiles, the signal is only noted, and our own callbacks stop the work when they see it.
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
    """Raised through TVM, which passes on exceptions but not a KeyboardInterrupt."""


def stop_if_interrupted() -> None:
    """Raise ``Stopped`` if Ctrl-C was pressed; to be called now and then in functions that TVM calls back."""
    if _noted.is_set():
        raise Stopped("interrupted")


def interrupted() -> bool:
    """Return True if Ctrl-C was pressed inside a ``deferred_interrupt`` that has not ended."""
    return _deferring.is_set() and _noted.is_set()


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Turn Ctrl-C inside into a KeyboardInterrupt here, at the end or at the next ``stop_if_interrupted``.

    A nested context leaves it to the outer one.

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
    except BaseException as error:  # whatever it is, an interrupt noted meanwhile comes first
        if _noted.is_set():
            raise KeyboardInterrupt from error
        raise
    finally:
        _deferring.clear()
        signal.signal(signal.SIGINT, before)
    if _noted.is_set():
        raise KeyboardInterrupt
