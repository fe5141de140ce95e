"""Measuring candidates of a task: built side by side, run one at a time, failures told apart by kind."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from roller_tvm.errors import MeasureError
from roller_tvm.relay.cold import ColdWeights
from roller_tvm.relay.pool import Pool, Worker
from roller_tvm.relay.worker import CHECK, PACKED, PLAIN

#: Kinds of failure, in the words that summaries use.
KINDS = ("schedule error", "layout error", "build error", "build timeout", "run error", "run timeout",
         "crash", "wrong answer", "register spills")  # fmt: skip


HOW = ("time", "check", "each")


@dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds.

    Parameters
    ----------
    build_s, run_s, reference_s : float
        After these a candidate (the reference) is given up and its process killed.
    repeat_s, repeats, budget_s : float
        A repeat is as many runs as fill `repeat_s`; there are `repeats` of them, fewer where that would take
        longer than `budget_s`. Many short repeats find the moments in which nothing else runs.
    give_up, tries : float, int
        A candidate whose first `tries` runs all take `give_up` times the best one's is not measured further.
    finalists, rounds : int
        The best ones, and TVM's own kernel, are measured again, in turns, so that noise does not choose.
    margin : float
        TVM's own kernel stays only where it is faster by this share.
    """

    build_s: float = 15.0
    run_s: float = 10.0
    reference_s: float = 60.0
    repeat_s: float = 0.0005
    repeats: int = 24
    budget_s: float = 0.15
    give_up: float = 3.0
    tries: int = 3
    finalists: int = 3
    rounds: int = 2
    margin: float = 0.03

    def options(self) -> dict[str, Any]:
        names = ("repeat_s", "repeats", "budget_s", "give_up", "tries")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate: 'ok' with typical seconds (nan if only checked), or a kind of failure."""

    kind: str
    seconds: float = math.nan
    repeats: tuple[float, ...] = ()
    text: str = ""
    pruned: bool = False
    checked: bool = False
    build_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.kind == "ok"

    def __str__(self) -> str:
        if not self.ok:
            return f"{self.kind}: {self.text}"
        return f"{self.seconds * 1e6:.1f} us" + (" (given up early)" if self.pruned else "")


@dataclass
class TaskResult:
    """Outcomes in the order of the candidates, and which one won (None: none works, or TVM's own is faster)."""

    outcomes: list[Outcome]
    winner: int | None = None
    default: Outcome | None = None
    default_wins: bool = False

    def failures(self) -> dict[str, int]:
        """How many candidates failed, by kind."""
        return dict(Counter(o.kind for o in self.outcomes if not o.ok))


@dataclass
class Measurer:
    """Builds, runs and checks candidates in a pool of worker processes.

    Parameters
    ----------
    cold : ColdWeights, optional
        Of the model that the tasks are of, on a CPU: candidates are then timed with their weights out of the caches.

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
            'time': the fastest wins that computes what the reference does. 'check': the first that does.
            'each': every one is checked, none is timed, the first right one is called the winner.
        default : str
            TVM's own kernel as JSON of lowered TIR, to be measured beside them.

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
        session = _Session(self.pool, self.limits, self.seconds, task.workload_key, mode, lines, options)
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
        """For each (task, States) the first State that builds without spills: all that can be told without a device."""
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
            if result.winner is None:  # a kernel that spills is slow, not wrong
                spilled = (n for n, o in enumerate(result.outcomes) if o.kind == "register spills")
                result.winner = next(spilled, None)
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


@dataclass
class _Session:
    """One task's candidates while they are measured."""

    pool: Pool
    limits: Limits
    seconds: dict[str, float]
    key: str
    mode: int
    lines: list[str]
    options: dict[str, Any]
    outcomes: list[Outcome] = field(default_factory=list)
    built: dict[tuple[int, int], tuple[Worker, int]] = field(default_factory=dict)
    default: int = -1

    def _mode(self, number: int) -> int:
        return PLAIN if number == self.default else self.mode

    def _build(self, numbers: Sequence[int], mode: int | None = None) -> None:
        calls = []
        for n in numbers:
            function = "build_default" if n == self.default else "build"
            chosen = self._mode(n) if mode is None else mode
            calls.append((function, (self.key, n, self.lines[n], chosen), self.limits.build_s))
        with timed(self.seconds, "build"):
            replies = self.pool.map(calls)
        for n, call, (worker, generation, reply) in zip(numbers, calls, replies, strict=True):
            mode = call[1][3]
            if reply.ok:
                self.built[n, mode] = (worker, generation)
                self.outcomes[n] = replace(self.outcomes[n], build_s=reply.value)
            else:
                self.outcomes[n] = Outcome(reply.kind, text=reply.text)

    def _run(self, number: int, mode: int, best: float, for_time: bool) -> Outcome:
        """Run a candidate; it is built again if the process that had it is gone."""
        before = self.outcomes[number]
        worker, generation = self.built.get((number, mode), (None, 0))
        if worker is None or worker.generation != generation or not worker.alive:
            self._build([number], mode)
            if not self.outcomes[number].ok:
                return self.outcomes[number]
            worker, _ = self.built[number, mode]
        options = self.options if for_time else {}
        with timed(self.seconds, "run"), self.pool.alone(worker):
            reply = worker.call("run", (self.key, number, mode, best, options), self.limits.run_s)
        if not reply.ok:
            return Outcome(reply.kind, text=reply.text)
        if reply.value["wrong"]:
            return Outcome("wrong answer", text=reply.value["wrong"])
        earlier = () if before.pruned else before.repeats  # a single run weighs too much beside long ones
        repeats = (*earlier, *reply.value["repeats"])
        seconds = typical(repeats) if repeats else math.nan
        return replace(
            before,
            seconds=seconds,
            repeats=repeats,
            pruned=reply.value["pruned"],
            checked=before.checked or mode != PACKED,
        )

    def measured(self, default: str) -> TaskResult:
        if default:
            self.default = len(self.lines)
            self.lines = [*self.lines, default]
        every = range(len(self.lines))
        self.outcomes = [Outcome("ok") for _ in every]
        self._build(every)
        best = math.inf
        for n in every:
            if self.outcomes[n].ok:
                outcome = self.outcomes[n] = self._run(n, self._mode(n), best, for_time=True)
                best = min(best, outcome.seconds) if outcome.ok else best
        self._in_turns()
        if default and self._ranking()[:1] == [self.default]:
            self._in_turns()  # once more before ours are given up: another process may have slowed them down
        result = self._first_right_of([n for n in self._ranking() if n != self.default])
        return self._against_default(result) if default else result

    def _in_turns(self) -> None:
        """Measure the best candidates and TVM's own kernel again, one after the other, some rounds."""
        finalists = [n for n in self._ranking() if n != self.default][: self.limits.finalists]
        if self.default >= 0 and self.outcomes[self.default].ok:
            finalists.append(self.default)
        if len(finalists) < 2:
            return
        for n in finalists * self.limits.rounds:
            # Those given up early stay out, unless nothing else of ours is left.
            if self.outcomes[n].ok and (not self.outcomes[n].pruned or n in (finalists[0], self.default)):
                self.outcomes[n] = self._run(n, self._mode(n), math.inf, for_time=True)

    def _against_default(self, result: TaskResult) -> TaskResult:
        """Our winner only where TVM's own kernel, if it works, is not clearly faster."""
        own = self.outcomes[self.default]
        ours = [o for n, o in enumerate(self.outcomes) if n != self.default]
        wins = own.ok and result.winner is not None
        wins = wins and own.seconds < (1 - self.limits.margin) * self.outcomes[result.winner or 0].seconds
        return TaskResult(ours, None if wins else result.winner, own, wins)

    def first_right(self) -> TaskResult:
        self.outcomes = [Outcome("ok") for _ in self.lines]
        return self._first_right_of(range(len(self.lines)))

    def each_checked(self) -> TaskResult:
        """Build every candidate and compare its result with the reference."""
        self.outcomes = [Outcome("ok") for _ in self.lines]
        mode = CHECK if self.mode == PACKED else self.mode
        self._build(range(len(self.lines)), mode)
        for n in self._ranking():
            self.outcomes[n] = self._run(n, mode, math.inf, for_time=False)
        return TaskResult(self.outcomes, next(iter(self._ranking()), None))

    def _ranking(self) -> list[int]:
        works = [n for n, o in enumerate(self.outcomes) if o.ok]
        return sorted(works, key=lambda n: self.outcomes[n].seconds)

    def _first_right_of(self, order: Sequence[int]) -> TaskResult:
        """The first candidate in this order whose result is right (packed ones are checked only here)."""
        check = CHECK if self.mode == PACKED else self.mode
        for n in order:
            if not self.outcomes[n].checked:
                if self.mode == PACKED and (n, PACKED) not in self.built:
                    self._build([n], PACKED)  # what relay.build will make of it must build too
                if self.outcomes[n].ok:
                    self.outcomes[n] = self._run(n, check, math.inf, for_time=False)
            if self.outcomes[n].ok:
                return TaskResult(self.outcomes, n)
        return TaskResult(self.outcomes)


@contextlib.contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Add the time spent inside to `seconds[phase]`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - start


def typical(repeats: Sequence[float]) -> float:
    """The lower octile of the repeats: what else the machine does only ever adds time.

    Examples
    --------
    >>> typical([3.0, 1.0, 9.0, 2.0, 8.0, 2.5, 7.0, 4.0])
    2.0
    """
    return sorted(repeats)[len(repeats) // 8]


def layout_mode(task: Any) -> int:
    """What becomes of an operand whose layout is free: PLAIN, CHECK (a transform is inserted), PACKED (beforehand)."""
    free = any("layout_free_placeholders" in (getattr(op, "attrs", None) or {}) for op in task.compute_dag.ops)
    return int(task.layout_rewrite_option) if free else PLAIN


def packs_weights(task: Any) -> bool:
    """Whether ``relay.build`` would repack an operand of this task for the State that it finds."""
    return layout_mode(task) == PACKED


def record_line(task: Any, state: Any) -> str:
    """The State as a record holds it, which is what a worker and a later build get."""
    from tvm.auto_scheduler.measure import MeasureInput, MeasureResult
    from tvm.auto_scheduler.measure_record import dump_record_to_string

    return str(dump_record_to_string(MeasureInput(task, state), MeasureResult([0.0], 0, "", 0.0, 0.0)))
