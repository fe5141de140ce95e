"""Check candidates in worker processes against the reference, before a user's own runner measures them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.errors import MeasureError
from roller_tvm.tuning.machine import same_machine, threads_for
from roller_tvm.tuning.measurer import Measurer, Work
from roller_tvm.tuning.session import Limits, Outcome, TaskResult
from roller_tvm.tuning.supervise import WORKER, Pool

#: Kinds of failure that the machine may cause as well as the candidate.
RUNNING = ("run error", "run timeout", "crash")


class Workers:
    """Worker processes for one target kind, started on first use and ended when the last user drops its reference.

    Examples
    --------
    >>> [outcome.ok for outcome in Workers.shared(target, device).outcomes(work, lines)]
    [True]
    """

    _shared: weakref.WeakValueDictionary[tuple[str, int], Workers] = weakref.WeakValueDictionary()

    def __init__(self, kind: str, threads: int, worker: str = WORKER, limits: Limits | None = None) -> None:
        self.kind = kind
        self.pool = Pool(threads, threads, worker)
        self.measurer = Measurer(self.pool, limits or Limits())
        self._present: bool | None = None
        self._ran: set[str] = set()
        weakref.finalize(self, self.pool.close)

    @classmethod
    def shared(cls, target: Any, device: DeviceSpec) -> Workers:
        """Return the workers shared by all tasks with this target kind and thread count, creating them if needed."""
        kind = target.kind.name
        here = device.kind == "cpu" and same_machine(target)
        threads = threads_for(device) if here else (os.cpu_count() or 1)
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

    def outcomes(self, work: Work, lines: Sequence[str]) -> list[Outcome]:
        """Build, run and compare each candidate; return its outcome: ok, wrong answer, or another kind of failure."""
        outcomes = self.measurer.measure(work, lines, "each").outcomes
        if any(o.ok or o.kind == "wrong answer" for o in outcomes):
            self._ran.add(work.target)
        return outcomes

    def have_run(self, target: str) -> bool:
        """Return True if any candidate for the target has run here to the end, with a right or a wrong answer."""
        return target in self._ran

    def checked(self, work: Work, lines: Sequence[str], target: Any, is_local: bool) -> list[Outcome]:
        """Return the outcome of each candidate; only those with outcome ok may be measured.

        Parameters
        ----------
        target : Target
        is_local : bool
            True if they will be measured on this machine. If False, and no candidate for the target has ever run here,
            failures to run here are ignored and every candidate counts as ok.

        Raises
        ------
        MeasureError
            No reference can be computed.
        """
        if not self.runs_here(target):
            return [Outcome("ok") for _ in lines]
        outcomes = self.outcomes(work, lines)
        if is_local or self.have_run(work.target) or any(o.kind not in RUNNING for o in outcomes):
            return outcomes
        return [Outcome("ok") for _ in lines]

    def first_working(self, jobs: Sequence[tuple[Work, Sequence[str]]], target: Any) -> list[TaskResult]:
        """Return one result per task: the first candidate with a right answer.

        If the target cannot run here, the first candidate that builds.
        """
        if not self.runs_here(target):
            return self.measurer.first_built(jobs)
        return [self._first_right(work, lines) if lines else TaskResult([]) for work, lines in jobs]

    def _first_right(self, work: Work, lines: Sequence[str]) -> TaskResult:
        try:
            return self.measurer.measure(work, lines, "check")
        except MeasureError as error:
            return TaskResult([Outcome(error.kind, text=error.what)])
