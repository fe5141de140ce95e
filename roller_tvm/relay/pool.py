"""Worker processes of the Relay line."""

from __future__ import annotations

from roller_tvm.measure import pool as measure

WORKER = "roller_tvm.relay.worker"


class Pool(measure.Pool):
    """Workers that run ``relay.worker``, unless told otherwise.

    Examples
    --------
    >>> with Pool(2, threads=2) as pool:  # doctest: +SKIP
    ...     pool.workers[0].call("hello", (), 60)
    """

    def __init__(self, count: int, threads: int, module: str = WORKER) -> None:
        super().__init__(count, threads, module)


Worker = measure.Worker
__all__ = ["WORKER", "Pool", "Worker"]
