"""Measuring the candidates of a Relax task (see ``measure.session``)."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ..codegen.tensorir_packing import constant_parameters
from ..device import DeviceSpec
from ..errors import MeasureError, UnsupportedOperator
from ..ir.expression import DTYPE_BYTES
from ..measure.cold import footprint_of, read_s_per_byte
from ..measure.pool import Pool
from ..measure.session import PACKED, PLAIN, Limits, Outcome, Session, TaskResult, settle_spilled, timed
from ..tir.nodes import parameters
from .database import record_line
from .reference import default_module
from .tasks import Task

WORKER = "roller_tvm.relax.worker"


@dataclass
class Measurer:
    """Builds, runs and checks candidates in a pool of worker processes.

    Parameters
    ----------
    pool : Pool
        Of workers that run ``WORKER``.
    target : Target
    cold : dict
        How far out the model's weights lie (``cold_weights``); empty where they are timed as the runs leave them.

    Examples
    --------
    >>> with Pool(2, 2, WORKER) as pool:  # doctest: +SKIP
    ...     result = Measurer(pool, target).measure(task, schedules)
    """

    pool: Pool
    target: Any
    limits: Limits = field(default_factory=Limits)
    seconds: dict[str, float] = field(default_factory=dict)
    cold: dict[str, Any] = field(default_factory=dict)

    def measure(self, task: Task, schedules: Sequence[Any], how: str = "time") -> TaskResult:
        """Choose among schedules of a task's function.

        Parameters
        ----------
        task : Task
        schedules : sequence of s_tir.Schedule
            Best first by prediction.
        how : {'time', 'check', 'each'}
            'time': the fastest right one wins, if it is not slower than TVM's own kernel, which is measured too.
            'check': the
            first right one wins. 'each': all are checked, none is timed. Right: it agrees with the reference.

        Raises
        ------
        MeasureError
            If the task as a whole cannot be measured (no reference can be computed, no worker starts).
        """
        import tvm

        mod = task.workloads[0]
        lines = [record_line(mod, s, self.target) for s in schedules]
        mode = PACKED if constant_parameters(task.func) else PLAIN
        options = {**self.limits.options(), **(self.cold if task.constants else {})}
        session = Session(self.pool, self.limits, self.seconds, task.key, mode, lines, options)
        text, limit = str(tvm.ir.save_json(mod)), self.limits.reference_s
        opening = ("open_task", (task.key, text, str(self.target), task.constants), limit)
        with tempfile.TemporaryDirectory(prefix="roller-tvm-") as folder:
            self._reference(task, opening, folder)
            for worker in self.pool.workers:
                worker.prepare([opening, ("load_reference", (task.key, folder), limit)])
            try:
                if how != "time":
                    return session.first_right() if how == "check" else session.each_checked()
                return session.measured(self._default(mod))
            finally:
                for worker in self.pool.workers:
                    worker.prepare([])

    def first_built(self, tasks: Sequence[tuple[Task, Sequence[Any]]]) -> list[TaskResult]:
        """For each (task, schedules) the first that builds without spills: all that can be told without a device."""
        import tvm

        results = [TaskResult([]) for _ in tasks]
        todo = [n for n, (_, schedules) in enumerate(tasks) if schedules]
        lines = [
            [record_line(task.workloads[0], schedule, self.target) for schedule in schedules]
            for task, schedules in tasks
        ]
        while todo:
            calls = []
            for n in todo:
                text = str(tvm.ir.save_json(tasks[n][0].workloads[0]))
                args = (text, str(self.target), lines[n][len(results[n].outcomes)])
                calls.append(("build_alone", args, self.limits.build_s))
            with timed(self.seconds, "build"):
                replies = self.pool.map(calls)
            for n, (_, _, reply) in zip(todo, replies, strict=True):
                outcomes = results[n].outcomes
                outcomes.append(Outcome(reply.kind, text=reply.text, build_s=reply.value if reply.ok else 0.0))
                if reply.ok:
                    results[n].winner = len(outcomes) - 1
            todo = [n for n in todo if results[n].winner is None and len(results[n].outcomes) < len(tasks[n][1])]
        for result in results:
            settle_spilled(result)
        return results

    def _default(self, mod: Any) -> str:
        import tvm

        try:
            return str(tvm.ir.save_json(default_module(mod, self.target)))
        except Exception:  # TVM has no schedule for it
            return ""

    def _reference(self, task: Task, opening: Any, folder: str) -> None:
        worker = self.pool.workers[0]
        worker.prepare([opening])
        with timed(self.seconds, "reference"):
            reply = worker.call("make_reference", (task.key, folder), self.limits.reference_s)
        if not reply.ok:
            raise MeasureError(
                f"no reference to check against: {reply.kind}: {reply.text}",
                where=task.name,
                kind="reference",
                remedy="leave this task to TVM's own schedule",
            )


def cold_weights(tasks: Sequence[Task], device: DeviceSpec) -> dict[str, Any]:
    """Options of the worker's ``run``: how far out the weights of a model of these tasks lie."""
    size = sum(task.weight * _constant_bytes(task) for task in tasks)
    if not size:
        return {}
    return {"footprint_bytes": footprint_of(size, device), "read_s_per_byte": read_s_per_byte(device)}


def _constant_bytes(task: Task) -> int:
    try:
        buffers = [parameters(task.func)[n] for n in task.constants]
    except UnsupportedOperator:  # it gets no plan either
        return 0
    # An extent that is not known yet counts as none.
    return sum(prod(getattr(e, "value", 0) for e in b.shape) * DTYPE_BYTES.get(str(b.dtype), 0) for b in buffers)
