"""How many threads TVM's pool takes, in this process and in the processes it starts.

Left alone the pool takes half of the logical CPUs, taking them for hyper-threads. Each Python thread has a
pool of its own, made at its first kernel with the size TVM_NUM_THREADS has then; later it may shrink only.
"""

from __future__ import annotations

import os
import sys
import warnings

from roller_tvm.errors import UsageError, must_be

ENVIRONMENT = "TVM_NUM_THREADS"
_BIG_CORES = 1  # mode of runtime.config_threadpool: fastest cores first


def set_threads(count: int) -> int:
    """Let TVM use `count` threads here and in child processes started from now on. Imports no TVM.

    Returns
    -------
    int
        What TVM uses in this thread from now on; print it beside every figure. It is less than `count`
        (with a warning) if kernels already ran in this thread with a smaller pool, or the CPUs are fewer.

    Examples
    --------
    >>> set_threads(2)  # doctest: +SKIP
    2
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(must_be("count", "an int >= 1", count), remedy="give the number of threads to use")
    os.environ[ENVIRONMENT] = str(count)
    tvm = sys.modules.get("tvm")
    if tvm is None:
        return count
    # With one thread TVM binds the caller to one CPU, and with it every process started later: to ask makes the pool.
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    now = int(tvm.get_global_func("runtime.NumThreads")())
    if now > count:
        tvm.get_global_func("runtime.config_threadpool")(_BIG_CORES, count)
        now = int(tvm.get_global_func("runtime.NumThreads")())
    if cpus and os.sched_getaffinity(0) != cpus:
        os.sched_setaffinity(0, cpus)
    if now < count:
        warnings.warn(
            f"TVM's pool has {now} threads here and cannot grow to {count}; if there are "
            f"enough CPUs, set {ENVIRONMENT}={count}, or call this before the first kernel",
            RuntimeWarning,
            stacklevel=2,
        )
    return now
