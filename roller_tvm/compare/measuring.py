"""Measure batches of plans in the worker processes of Roller's tuner, for the XGBoost baseline to learn from."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from roller_tvm.errors import MeasureError
from roller_tvm.tuning.session import Limits, Session


class PlanMeasuring:
    """Measures plans of one task; use it in a ``with`` statement.

    Parameters
    ----------
    pool : Pool
        Worker processes of a line of TVM.
    limits : Limits
    key : str
        Key of the task.
    opening : tuple
        Arguments of the workers' ``open_task``.
    mode : int
        Layout of the weights, packed or not (``measure.session``).
    record : function of a plan
        Returns the plan's record; raises if its steps do not apply.

    Attributes
    ----------
    lines : dict
        Plan's rPrograms -> its record.
    spent : float
        Seconds of tuning before the first measurement, spent on the reference.
    """

    def __init__(
        self, pool: Any, limits: Limits, key: str, opening: tuple[Any, ...], mode: int, record: Callable[[Any], str]
    ) -> None:
        self.pool, self.limits, self.key, self.mode, self.record = pool, limits, key, mode, record
        self.opening = ("open_task", opening, limits.reference_s)
        self.folder = tempfile.TemporaryDirectory(prefix="roller-tvm-")
        self.lines: dict[Any, str] = {}
        self.spent = 0.0

    def __enter__(self) -> PlanMeasuring:
        try:
            self.pool.start()
            for worker in self.pool.workers:  # imports are not tuning
                worker.call("hello", (), 120.0)
            start = time.perf_counter()
            limit = self.limits.reference_s
            first = self.pool.workers[0]
            first.prepare([self.opening])
            reply = first.call("make_reference", (self.key, self.folder.name), limit)
            if not reply.ok:
                raise MeasureError(f"no reference to check against: {reply.text}", self.key, kind="reference")
            for worker in self.pool.workers:
                worker.prepare([self.opening, ("load_reference", (self.key, self.folder.name), limit)])
            self.spent = time.perf_counter() - start
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()
        self.folder.cleanup()

    def __call__(self, plans: Sequence[Any]) -> list[float]:
        """Return the time of each ranked plan in seconds, infinity if it does not work."""
        lines: dict[int, str] = {}
        for number, ranked in enumerate(plans):
            try:
                lines[number] = self.record(ranked.plan)
            except Exception:  # steps that do not apply: a plan that does not work
                continue
            self.lines[tuple(ranked.plan.programs)] = lines[number]
        seconds = [math.inf] * len(plans)
        if lines:
            outcomes = self._session(list(lines.values())).each_timed()
            for number, outcome in zip(lines, outcomes, strict=True):
                seconds[number] = outcome.seconds if outcome.ok else math.inf
        return seconds

    def in_turns(self, plans: Sequence[Any]) -> list[float]:
        """Measure finalists again, in turns as Roller's are; return their times in seconds."""
        lines = [self.lines[tuple(ranked.plan.programs)] for ranked in plans]
        return [o.seconds if o.ok else math.inf for o in self._session(lines).measured("").outcomes]

    def _session(self, lines: list[str]) -> Session:
        return Session(self.pool, self.limits, {}, self.key, self.mode, lines, self.limits.options())
