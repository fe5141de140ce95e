"""A task in worker processes: opened in each, with its reference; its candidates measured, checked or only built."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roller_tvm.errors import MeasureError
from roller_tvm.folders import work_folder
from roller_tvm.tuning.session import PLAIN, Limits, Outcome, Session, TaskResult, timed
from roller_tvm.tuning.supervise import Call, Pool

HOW = ("time", "check", "each")


@dataclass(frozen=True)
class Work:
    """A task as workers open it.

    Parameters
    ----------
    key : str
    text : str
        The task as JSON: TE tensors, or a module.
    target : str
    mode : int
        PLAIN, CHECK or PACKED (see ``Session``).
    weights : tuple
        Operands that are weights of the model: their names (Relay line), or their positions (Relax line).
    name : str
        The task in messages.
    """

    key: str
    text: str
    target: str
    mode: int = PLAIN
    weights: tuple[Any, ...] = ()
    name: str = ""

    def opening(self, limits: Limits) -> Call:
        """Return the call that opens the task in a worker."""
        return "open_task", (self.key, self.text, self.target, self.weights), limits.reference_s


@dataclass
class Measurer:
    """Builds, runs and checks candidates in a pool of worker processes.

    Parameters
    ----------
    pool : Pool
    limits : Limits
    seconds : dict
        Phase -> seconds, added to.
    cold : dict
        ``timing.cold_options`` of the model; empty where weights are timed as the runs leave them.

    Examples
    --------
    >>> with Pool(2, threads=2) as pool:
    ...     result = Measurer(pool).measure(line.work(task, target), lines)
    """

    pool: Pool
    limits: Limits = field(default_factory=Limits)
    seconds: dict[str, float] = field(default_factory=dict)
    cold: Mapping[str, Any] = field(default_factory=dict)

    def measure(self, work: Work, lines: Sequence[str], how: str = "time", default: str = "") -> TaskResult:
        """Choose among candidates of a task.

        Parameters
        ----------
        work : Work
        lines : sequence of str
            Records of the candidates, best first by prediction.
        how : {'time', 'check', 'each'}
            'time': the fastest right one wins. 'check': the first right one wins. 'each': all are checked, none is
            timed, and the first right one wins. A candidate is right if it agrees with the reference.
        default : str
            TVM's own kernel, measured along with them; it wins if it is clearly faster.

        Raises
        ------
        MeasureError
            If the task as a whole cannot be measured (no reference can be computed, no worker starts).
        """
        if how not in HOW:
            raise ValueError(f"'how' must be one of {', '.join(HOW)} (got '{how}')")
        options = {**self.limits.options(), **(self.cold if work.weights else {})}
        session = Session(self.pool, self.limits, self.seconds, work.key, work.mode, list(lines), options)
        with self.opened(work):
            if how == "each":
                return session.each_checked()
            return session.measured(default) if how == "time" else session.first_right()

    @contextlib.contextmanager
    def opened(self, work: Work) -> Iterator[None]:
        """Open a task in all workers, with its reference, which one of them computes."""
        opening, limit = work.opening(self.limits), self.limits.reference_s
        with work_folder() as folder:
            first = self.pool.workers[0]
            first.prepare([opening])
            with timed(self.seconds, "reference"):
                reply = first.call("make_reference", (work.key, folder), limit)
            if not reply.ok:
                raise MeasureError(
                    f"no reference to check against: {reply.kind}: {reply.text}", work.name or work.key,
                    "leave this task to TVM's own schedule", "reference",
                )  # fmt: skip
            for worker in self.pool.workers:
                worker.prepare([opening, ("load_reference", (work.key, folder), limit)])
            try:
                yield
            finally:
                for worker in self.pool.workers:
                    worker.prepare([])

    def first_built(self, jobs: Sequence[tuple[Work, Sequence[str]]]) -> list[TaskResult]:
        """Return, for each (task, candidates), the first that builds without spills. Needs no device.

        If nothing builds without spills, the first spilling candidate wins: it is slow, not wrong.
        """
        results = [TaskResult([]) for _ in jobs]
        todo = [n for n, (_, lines) in enumerate(jobs) if lines]
        while todo:
            calls: list[Call] = []
            for n in todo:
                work, lines = jobs[n]
                args = (work.text, work.target, lines[len(results[n].outcomes)])
                calls.append(("build_alone", args, self.limits.build_s))
            with timed(self.seconds, "build"):
                replies = self.pool.map(calls)
            for n, (_, _, reply) in zip(todo, replies, strict=True):
                outcomes = results[n].outcomes
                outcomes.append(Outcome(reply.kind, text=reply.text, build_s=reply.value if reply.ok else 0.0))
                if reply.ok:
                    results[n].winner = len(outcomes) - 1
            todo = [n for n in todo if results[n].winner is None and len(results[n].outcomes) < len(jobs[n][1])]
        for result in results:
            if result.winner is None:
                spilling = (n for n, o in enumerate(result.outcomes) if o.kind == "register spills")
                result.winner = next(spilling, None)
        return results
