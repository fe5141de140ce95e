"""Measuring the States of a Relay task (see ``measure.session``)."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from roller_tvm.errors import MeasureError
from roller_tvm.measure.pool import Pool
from roller_tvm.measure.session import (
    CHECK,
    HOW,
    KINDS,
    PACKED,
    PLAIN,
    Limits,
    Outcome,
    Session,
    TaskResult,
    settle_spilled,
    timed,
)
from roller_tvm.relay.cold import ColdWeights


@dataclass
class Measurer:
    """Builds, runs and checks candidates in a pool of worker processes.

    Parameters
    ----------
    cold : ColdWeights, optional
        The model's weights, on a CPU: candidates are then timed with their weights out of the caches.

    Examples
    --------
    >>> with Pool(2, threads=2) as pool:  # doctest: +SKIP
    ...     result = Measurer(pool).measure(task, states)
    """

    pool: Pool
    limits: Limits = field(default_factory=Limits)
    seconds: dict[str, float] = field(default_factory=dict)
    cold: ColdWeights | None = None

    def measure(self, task: Any, states: Sequence[Any], how: str = "time", default: str = "") -> TaskResult:
        """Choose among States of a ``SearchTask``.

        Parameters
        ----------
        task : auto_scheduler.SearchTask
        states : sequence of State
            Best first by prediction.
        how : {'time', 'check', 'each'}
            'time': the fastest right one wins. 'check': the first right one wins. 'each': all are checked, none is
            timed, and the
            first right one wins. A candidate is right if it agrees with the reference.
        default : str
            TVM's own kernel as JSON of lowered TIR, measured along with them.

        Raises
        ------
        MeasureError
            If the task as a whole cannot be measured (no reference can be computed, no worker starts).
        """
        from tvm.runtime._ffi_node_api import SaveJSON

        if how not in HOW:
            raise ValueError(f"'how' must be one of {', '.join(HOW)} (got '{how}')")
        mode = layout_mode(task)
        lines = [record_line(task, s) for s in states]
        options = self.limits.options()
        if self.cold is not None:
            options.update(self.cold.options(task.compute_dag.tensors))
        session = Session(self.pool, self.limits, self.seconds, task.workload_key, mode, lines, options)
        with tempfile.TemporaryDirectory(prefix="roller-tvm-") as folder:
            tensors = str(SaveJSON(task.compute_dag.tensors))
            opening = ("open_task", (session.key, tensors, str(task.target), mode == PACKED), self.limits.reference_s)
            self._reference(session.key, opening, folder)
            loading = ("load_reference", (session.key, folder), self.limits.reference_s)
            for worker in self.pool.workers:
                worker.prepare([opening, loading])
            try:
                if how == "each":
                    return session.each_checked()
                return session.measured(default) if how == "time" else session.first_right()
            finally:
                for worker in self.pool.workers:
                    worker.prepare([])

    def first_built(self, tasks: Sequence[tuple[Any, Sequence[Any]]]) -> list[TaskResult]:
        """Return, for each (task, States), the first State that builds without spills. Needs no device."""
        from tvm.runtime._ffi_node_api import SaveJSON

        results = [TaskResult([]) for _ in tasks]
        todo = [n for n, (_, states) in enumerate(tasks) if states]
        while todo:
            calls = []
            for n in todo:
                task, states = tasks[n]
                line = record_line(task, states[len(results[n].outcomes)])
                tensors = str(SaveJSON(task.compute_dag.tensors))
                args = (task.workload_key, tensors, str(task.target), line)
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

    def _reference(self, key: str, opening: Any, folder: str) -> None:
        worker = self.pool.workers[0]
        worker.prepare([opening])
        with timed(self.seconds, "reference"):
            reply = worker.call("make_reference", (key, folder), self.limits.reference_s)
        if not reply.ok:
            raise MeasureError(
                f"no reference to check against: {reply.kind}: {reply.text}",
                where=key,
                kind="reference",
                remedy="leave this task to TVM's own schedule",
            )


def layout_mode(task: Any) -> int:
    """Return a task's layout mode: PLAIN, CHECK (a transform runs each time), PACKED (operands are packed beforehand).
    """
    free = any("layout_free_placeholders" in (getattr(op, "attrs", None) or {}) for op in task.compute_dag.ops)
    return int(task.layout_rewrite_option) if free else PLAIN


def packs_weights(task: Any) -> bool:
    """Return whether ``relay.build`` repacks an operand of this task to fit the State."""
    return layout_mode(task) == PACKED


def record_line(task: Any, state: Any) -> str:
    """Return the record line of a State; workers and later builds read it."""
    from tvm.auto_scheduler.measure import MeasureInput, MeasureResult
    from tvm.auto_scheduler.measure_record import dump_record_to_string

    return str(dump_record_to_string(MeasureInput(task, state), MeasureResult([0.0], 0, "", 0.0, 0.0)))


__all__ = [
    "CHECK", "HOW", "KINDS", "PACKED", "PLAIN", "Limits", "Measurer", "Outcome", "TaskResult", "layout_mode",
    "packs_weights", "record_line", "timed",
]  # fmt: skip
