"""Pins the thread that calls a kernel to a CPU not used by TVM's own threads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


def pin_calling_thread() -> int | None:
    """Give this thread a CPU that no thread of TVM's pool is bound to.

    TVM binds the threads of its pool, not the caller, which does its share of the work: on another CPU it runs at half
    speed, and stays there. Call this after the first kernel, when the pool exists, or the pool would be bound to this
    one CPU too. Returns the CPU; None where nothing was changed (no pool, one thread, no other CPU, not Linux).

    Examples
    --------
    >>> y = model(x)  # TVM's pool binds its threads
    >>> cpu = pin_calling_thread()
    """
    if not hasattr(os, "sched_setaffinity") or not os.path.isdir("/proc/self/task"):
        return None
    me, bound = os.getpid(), set()
    for thread in os.listdir("/proc/self/task"):
        try:
            cpus = os.sched_getaffinity(int(thread))
        except OSError:  # it ended meanwhile
            continue
        if int(thread) != me and len(cpus) == 1:
            bound |= cpus
    mine = os.sched_getaffinity(0)
    free = sorted(set(mine) - bound)
    if not bound or not free or len(mine) == 1:
        return None
    os.sched_setaffinity(0, {free[0]})
    return free[0]


@contextlib.contextmanager
def pinned_calling_thread() -> Iterator[int | None]:
    """``pin_calling_thread`` for a while; the thread may then go where it might before.

    Threads that others start inherit the CPUs of their parent: make their pools (onnxruntime's session, say)
    outside of it.

    Examples
    --------
    >>> with pinned_calling_thread():
    ...     y = model(x)
    """
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    cpu = pin_calling_thread()
    try:
        yield cpu
    finally:
        if cpu is not None and before is not None:
            os.sched_setaffinity(0, before)
