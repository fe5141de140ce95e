"""Candidates built and compared with the reference in our own worker processes, before the user's runner sees them."""

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

#: Kinds of failure that tell of the machine as well as of the candidate.
RUNNING = ("run error", "run timeout", "crash")


class Workers:
    """Worker processes, started when first used, ended with the last user's reference to them.

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
        """Those that other tasks for this kind of target use too."""
        kind = target.kind.name
        is_cpu = device.kind == "cpu" and same_machine(target)
        threads = use_threads(otherwise=device.units) if is_cpu else (os.cpu_count() or 1)
        found = cls._shared.get((kind, threads))
        if found is None:
            found = cls._shared[kind, threads] = cls(kind, threads)
        return found

    def runs_here(self, target: Any) -> bool:
        """Whether this machine has a device that the target's code is for, as far as the target says."""
        if self._present is None:
            reply = self.pool.workers[0].call("device_present", (self.kind,), 60.0)
            self._present = bool(reply.ok and reply.value)
        return self._present and same_machine(target)

    def outcomes(self, task: Any, states: Sequence[Any]) -> list[Outcome]:
        """What becomes of each State: right, wrong, or a failure with its kind."""
        outcomes = self.measurer.measure(task, states, "each").outcomes
        if any(o.ok or o.kind == "wrong answer" for o in outcomes):
            self._ran.add(str(task.target))
        return outcomes

    def have_run(self, target: Any) -> bool:
        """Whether any State for a target came to an answer here."""
        return str(target) in self._ran

    def first_working(self, jobs: Sequence[tuple[Any, Sequence[Any]]]) -> list[TaskResult]:
        """For each (task, States) the first State that computes what it should, or, not run here, that builds."""
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
    """What becomes of each State here: only those that are ok may be measured.

    Parameters
    ----------
    is_local : bool
        Whether they will be measured on this machine. If not, that none has ever run here proves nothing.

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
