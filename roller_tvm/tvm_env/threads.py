"""Size of TVM's thread pool, in this process and in the processes it starts.

Left alone TVM takes half of the logical CPUs, because it takes them for hyper-threads. Each Python thread has a pool of
its own, made at the first kernel with TVM_NUM_THREADS threads. A pool can use fewer threads than it was made with, and
all of them again; it cannot grow beyond that number.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from typing import Any

from roller_tvm.errors import UsageError, must_be

ENVIRONMENT = "TVM_NUM_THREADS"
#: "1" (TVM's default) binds each thread of a pool to one CPU, "0" lets the system place them.
BINDING = "TVM_BIND_THREADS"
_BIG_CORES = 1  # mode of runtime.config_threadpool: fastest cores first
#: The number the user asked for, by the environment or `set_threads`; None for the default.
_asked: int | None = None
#: The value of `ENVIRONMENT` written here last: another one is the user's.
_written: str | None = None


@functools.lru_cache(maxsize=1)
def _facts() -> Any:
    """The CPUs of this process, read once: TVM may bind the calling thread to one of them later."""
    from roller_tvm.device.cpu_detect import detect_cpu  # here because only a process with a TVM needs it

    return detect_cpu()


def wanted_threads(otherwise: int | None = None) -> int:
    """Return the number of threads to use: the user's, else `otherwise`, else all physical cores.

    The user's is that of TVM_NUM_THREADS or of the last `set_threads`; `otherwise` is cut to the logical CPUs of this
    process; the physical cores are those within its affinity mask and cgroup quota.

    Examples
    --------
    >>> 1 <= wanted_threads(1) <= wanted_threads(10**6)
    True
    """
    global _asked
    said = os.environ.get(ENVIRONMENT)
    if said is not None and said != _written:
        _asked = int(said) if said.isdigit() and int(said) else None
        if _asked is None:
            told = f"{ENVIRONMENT} must be an int >= 1 (got '{said}'): all cores are used"
            warnings.warn(f"{told}\n  remedy: unset {ENVIRONMENT}", RuntimeWarning, stacklevel=3)
    if _asked is not None:
        return _asked
    facts = _facts()
    return int(min(otherwise, facts.logical) if otherwise else facts.cores)


def use_all_cores() -> None:
    """Let TVM's pools use every physical core of this process, unless the user says otherwise.

    It sets environment variables alone, so that a process that only imports can still fork.
    """
    if not os.environ.get(ENVIRONMENT):  # else the user's, or a parent's with the binding that goes with it
        _write(wanted_threads())


def use_threads(threads: int | None = None, otherwise: int | None = None) -> int:
    """Let TVM use `threads` threads here and in child processes; by default `wanted_threads(otherwise)`.

    Unlike `set_threads` it does not become the default of later calls. Returns the number of threads that TVM uses in
    this Python thread from now on.
    """
    return _apply(_checked("threads", threads) if threads is not None else wanted_threads(otherwise))


def set_threads(count: int) -> int:
    """Let TVM use `count` threads here and in child processes started from now on. Imports no TVM.

    Returns the number of threads that TVM uses in this Python thread from now on: print it beside every figure. It is
    less than `count`, with a warning, if TVM's pool was made smaller before.

    Examples
    --------
    >>> set_threads(2)
    2
    """
    global _asked
    _asked = _checked("count", count)
    return _apply(_asked)


def _checked(name: str, count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(must_be(name, "an int >= 1", count), remedy="give the number of threads to use")
    return count


def _apply(count: int) -> int:
    """Set the environment, and the pool of this Python thread if TVM is loaded."""
    _write(count)
    tvm = sys.modules.get("tvm")
    if tvm is None:
        return count
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    # The question makes the pool, which is to be as large as it may ever have to be.
    os.environ[ENVIRONMENT] = str(max(count, _facts().logical))
    pool_threads = tvm.get_global_func("runtime.NumThreads")
    now = int(pool_threads())
    os.environ[ENVIRONMENT] = str(count)
    if now != count:
        tvm.get_global_func("runtime.config_threadpool")(_BIG_CORES, count)
        now = int(pool_threads())
    if cpus and os.sched_getaffinity(0) != cpus:  # a new pool binds this thread, and with it its child processes
        os.sched_setaffinity(0, cpus)
    if now < count:
        warnings.warn(
            f"TVM's thread pool has {now} threads in this Python thread and cannot grow to {count}\n"
            f"  remedy: set {ENVIRONMENT}={count} before Python starts, or import roller_tvm before the first kernel",
            RuntimeWarning,
            stacklevel=4,
        )
    return now


def _write(count: int) -> None:
    """Set the environment of the pools of this process and its children.

    Pools of one thread, or in a process with a part of the CPUs, are not bound: TVM would leave the affinity mask, and
    bind the calling thread and each process it starts to one CPU.
    """
    global _written
    os.environ[ENVIRONMENT] = _written = str(count)
    facts = _facts()
    if BINDING not in os.environ and (count == 1 or facts.logical < facts.machine_logical or count > facts.logical):
        os.environ[BINDING] = "0"
