"""Check candidates in worker processes against the reference answer, before the user's runner measures them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.errors import MeasureError
from roller_tvm.measure.machine import same_machine
from roller_tvm.relay.measure import Limits, Measurer, Outcome, TaskResult
from roller_tvm.relay.pool import WORKER, Pool
from roller_tvm.tvm_env import use_threads

#: Kinds of failure that the machine may cause as well as the candidate.
RUNNING = ("run error", "run timeout", "crash")


class Workers:
    """Worker processes for one target kind, started on first use and ended when the last user drops its reference.

    Examples
    --------
    >>> Workers.shared(task.target, device).outcomes(task, states)  # doctest: +SKIP
    """

    _shared: weakref.WeakValueDictionary[tuple[str, int], Workers] = weakref.WeakValueDictionary()

    def __init__(self, kind: str, threads: int, worker: str = WORKER) -> None:
        self.kind = kind
        self.pool = Pool(threads, threads, worker)
        self.measurer = Measurer(self.pool, Limits())
        self._present: bool | None = None
        self._ran: set[str] = set()
        weakref.finalize(self, self.pool.close)

    @classmethod
    def shared(cls, target: Any, device: DeviceSpec) -> Workers:
        """Return the workers shared by all tasks with this target kind and thread count, creating them if needed."""
        kind = target.kind.name
        is_cpu = device.kind == "cpu" and same_machine(target)
        threads = use_threads(otherwise=device.units) if is_cpu else (os.cpu_count() or 1)
        found = cls._shared.get((kind, threads))
        if found is None:
            found = cls._shared[kind, threads] = cls(kind, threads)
        return found

    def runs_here(self, target: Any) -> bool:
        """Return True if this machine has a device for the target's code, as far as the target names the machine."""
        if self._present is None:
            reply = self.pool.workers[0].call("device_present", (self.kind,), 60.0)
            self._present = bool(reply.ok and reply.value)
        return self._present and same_machine(target)

    def outcomes(self, task: Any, states: Sequence[Any]) -> list[Outcome]:
        """Build, run and compare each State; return its outcome: ok, wrong answer, or another kind of failure."""
        outcomes = self.measurer.measure(task, states, "each").outcomes
        if any(o.ok or o.kind == "wrong answer" for o in outcomes):
            self._ran.add(str(task.target))
        return outcomes

    def have_run(self, target: Any) -> bool:
        """Return True if any State for the target has run here to the end, with a right or a wrong answer."""
        return str(target) in self._ran

    def first_working(self, jobs: Sequence[tuple[Any, Sequence[Any]]]) -> list[TaskResult]:
        """Return one result per (task, States): the first State with a right answer.

        If the target cannot run here, the first State that builds.
        """
        results: dict[int, TaskResult] = {}
        here = {n: self.runs_here(task.target) for n, (task, states) in enumerate(jobs) if states}
        elsewhere = [n for n, runs in here.items() if not runs]
        for n, found in zip(elsewhere, self.measurer.first_built([jobs[n] for n in elsewhere]), strict=True):
            results[n] = found
        for n, runs in here.items():
            if runs:
                try:
                    results[n] = self.measurer.measure(*jobs[n], "check")
                except MeasureError as error:
                    results[n] = TaskResult([Outcome(error.kind, text=error.what)])
        return [results.get(n, TaskResult([])) for n in range(len(jobs))]


def check(workers: Workers, task: Any, states: Sequence[Any], is_local: bool) -> list[Outcome]:
    """Return the outcome of each State; only those with outcome ok may be measured.

    Parameters
    ----------
    is_local : bool
        True if the States will be measured on this machine. If False, and no State for the target has ever run here,
        failures to run here are ignored and every State counts as ok.

    Raises
    ------
    MeasureError
        No reference can be computed.
    """
    if not workers.runs_here(task.target):
        return [Outcome("ok") for _ in states]
    outcomes = workers.outcomes(task, states)
    if is_local or workers.have_run(task.target) or any(o.kind not in RUNNING for o in outcomes):
        return outcomes
    return [Outcome("ok") for _ in states]
