"""Work on all cores by forks of this process, which hand on what they make through a cache on disk.

A result is a function of its item alone, and a fork only leaves it in the cache: without forks, or if one is killed,
this process makes the same by itself. Threads would wait for each other, because planning is Python.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from .disk_cache import DiskCache
from .folders import leave_temporary_folder

Item = TypeVar("Item")
Made = TypeVar("Made")

#: Seconds of an item from which on forks pay: one that the cache holds takes less.
LONG_S = 0.02
#: Most forks: each has a copy of the memory that it writes to.
FORKS = 15
#: Seconds to wait for a fork's last item, and how many times as long as this process's longest item.
PATIENCE_S, PATIENCE = 10.0, 10
#: Bytes of an item's number in the pipe from which all take their items; it holds 64 KiB.
_NUMBER, _ITEMS = 4, 16_000


def shared(function: Callable[[Item], Made], items: Sequence[Item], cache: DiskCache | None) -> list[Made]:
    """Return ``[function(item) for item in items]``, made on all cores where that is safe and pays.

    Parameters
    ----------
    function
        Keeps what is costly in `cache`, where it looks first. It runs no thread, and no code of other threads.
    items : sequence
    cache : DiskCache or None

    Examples
    --------
    >>> shared(abs, [-1, 2, -3], None)
    [1, 2, 3]
    """
    done: dict[int, Made] = {}
    alone = not may_fork(cache)
    for n, item in enumerate(items):
        start = time.perf_counter()
        done[n] = function(item)
        if not alone and time.perf_counter() - start > LONG_S:
            rest = range(n + 1, min(len(items), n + 1 + _ITEMS))
            done |= _with_forks(function, items, rest) if len(rest) > 1 else {}
            break
    return [done[n] if n in done else function(item) for n, item in enumerate(items)]


def deadly(function: Callable[[], object]) -> str:
    """Return how a process ends that calls this function, '' if the function comes back, or nothing is known.

    A fork tries it, where one is safe. It must run no thread, and no code of other threads.

    Examples
    --------
    >>> deadly(lambda: os.kill(os.getpid(), signal.SIGSEGV)), deadly(lambda: os._exit(3))
    ('SIGSEGV', 'exit code 3')
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return ""
    try:
        fork = _forked(lambda: _only(function))
    except OSError:  # no more processes, or no memory for one
        return ""
    try:
        _, status = os.waitpid(fork, 0)
    except BaseException:  # Ctrl-C
        os.kill(fork, signal.SIGKILL)
        os.waitpid(fork, 0)
        raise
    code = os.waitstatus_to_exitcode(status)
    return signal.Signals(-code).name if code < 0 else f"exit code {code}" if code else ""


def _only(function: Callable[[], object]) -> NoReturn:
    """Call a function: the whole life of a fork.

    It gets a thread of its own. LLVM ends the process on a full disk; in the thread that called kernels, TVM would then
    destroy its pool, and wait for workers: a fork has none.
    """

    def called() -> None:
        with contextlib.suppress(Exception):  # the parent sees it for itself
            function()

    try:
        _silently()
        thread = threading.Thread(target=called)
        thread.start()
        thread.join()
    finally:
        os._exit(0)


def may_fork(cache: DiskCache | None) -> bool:
    """Return whether forks of this process are safe and can hand on what they make.

    A lock that another thread of Python holds is never released in a fork. TVM's own threads are idle then.
    """
    several = len(os.sched_getaffinity(0)) > 1 if sys.platform == "linux" else False
    return several and cache is not None and cache.works and threading.active_count() == 1


def _with_forks(function: Callable[[Item], Made], items: Sequence[Item], numbers: range) -> dict[int, Made]:
    """Return what this process made of the items; its forks made the others."""
    (todo, numbered), (ended, alive) = os.pipe(), os.pipe()
    os.write(numbered, b"".join(n.to_bytes(_NUMBER, "big") for n in numbers))
    os.close(numbered)
    forks: list[int] = []
    done: dict[int, Made] = {}
    longest = 0.0
    try:
        try:
            for _ in range(min(len(os.sched_getaffinity(0)), len(numbers), FORKS + 1) - 1):
                forks.append(_forked(lambda: _work(function, items, todo)))
        except OSError:  # no more processes, or no memory for one
            pass
        finally:
            os.close(alive)
        for n in _taken(todo):
            start = time.perf_counter()
            done[n] = function(items[n])
            longest = max(longest, time.perf_counter() - start)
        end = select.poll()
        end.register(ended)  # hangs up once no fork has its other end
        end.poll(1e3 * (PATIENCE_S + PATIENCE * longest))
    finally:
        for fork in forks:
            os.kill(fork, signal.SIGKILL)
            os.waitpid(fork, 0)
        os.close(todo)
        os.close(ended)
    return done


def _forked(life: Callable[[], NoReturn]) -> int:
    """Return the number of a fork that does this and no more; of its parent's Ctrl-C it only hears the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 counts TVM's threads
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            if (fork := os.fork()) == 0:
                life()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return fork


def _work(function: Callable[[Item], Any], items: Sequence[Item], todo: int) -> NoReturn:
    """Make items until there are none: the whole life of a fork, which says nothing and ends with its parent."""
    parent = os.getppid()
    try:
        _silently()
        for n in _taken(todo):
            if os.getppid() != parent:
                break
            with contextlib.suppress(Exception):  # this item's maker is the parent, then
                function(items[n])
        leave_temporary_folder()
    finally:
        os._exit(0)


def _silently() -> None:
    """Make this fork silent, ended by Ctrl-C, and its memory its parent's as far as possible."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    faulthandler.disable()  # it keeps a stream of its own
    gc.freeze()  # a collection would write to all memory, and so copy it
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)


def _taken(todo: int) -> Iterator[int]:
    """Yield numbers that no other process has taken."""
    while number := os.read(todo, _NUMBER):
        yield int.from_bytes(number, "big")
