"""Measure the candidates of one task: built side by side, run one at a time, failures distinguished by kind."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from roller_tvm.tuning.supervise import Pool, Reply, Worker

#: Treatment of an operand of free layout (as the Relay line's LayoutRewriteOption). PLAIN: unchanged. CHECK: the kernel
#: repacks it itself, so that its answer can be checked. PACKED: it comes packed.
PLAIN, CHECK, PACKED = 0, 1, 2
#: Kinds of failure, as summaries name them.
KINDS = ("schedule error", "layout error", "build error", "build timeout", "run error", "run timeout",
         "crash", "wrong answer", "register spills", "server lost")  # fmt: skip


def is_remote(pool: Any) -> bool:
    """Return whether a pool's candidates run on other machines (``remote.RemotePool``)."""
    return bool(getattr(pool, "remote", False))


@dataclass(frozen=True)
class Limits:
    """Time limits and settings of measuring, in seconds.

    Parameters
    ----------
    build_s, run_s, reference_s : float
        Seconds after which a candidate (or the reference) is given up and its process killed.
    repeat_s, repeats, budget_s : float
        A repeat is as many runs as fill `repeat_s`; there are `repeats` of them, or fewer if they would take longer
        than `budget_s`. Many short repeats find the moments when nothing else runs.
    give_up, tries : float, int
        A candidate whose first `tries` runs all take `give_up` times the best one's is not measured further.
    finalists, rounds : int
        Number of best candidates measured again, in turns with TVM's own kernel, so that noise does not choose; number
        of rounds.
    margin : float
        Share by which TVM's own kernel must be faster to stay.
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
        """Return the options of ``timing.run_timed``."""
        names = ("repeat_s", "repeats", "budget_s", "give_up", "tries")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Outcome:
    """Outcome of a candidate: 'ok' with typical seconds (nan if only checked), or a kind of failure."""

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
    """Outcomes in the order of the candidates, and the winner's number.

    `winner` is None if no candidate works or TVM's own kernel is faster.
    """

    outcomes: list[Outcome]
    winner: int | None = None
    default: Outcome | None = None
    default_wins: bool = False

    def failures(self) -> dict[str, int]:
        """Return the number of failed candidates by kind."""
        return dict(Counter(o.kind for o in self.outcomes if not o.ok))


@dataclass
class Session:
    """One task's candidates while they are measured by workers that have opened the task.

    Parameters
    ----------
    pool : Pool
        Workers with the functions ``build``, ``build_default`` and ``run``.
    limits : Limits
    seconds : dict
        Phase -> seconds, added to.
    key : str
        Key of the task.
    mode : int
        Mode in which candidates are built and timed: PLAIN, CHECK or PACKED. Answers of PACKED ones are checked in
        mode CHECK.
    lines : list of str
        Candidates as workers take them, best first by prediction.
    options : dict
        Options of ``run``.
    """

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
        """Run a candidate, rebuilt if the process that built it is gone; return its outcome."""
        worker, generation = self.built.get((number, mode), (None, 0))
        if worker is None or worker.generation != generation or not worker.alive:
            self._build([number], mode)
            if not self.outcomes[number].ok:
                return self.outcomes[number]
            worker, _ = self.built[number, mode]
        options = self.options if for_time else {}
        with timed(self.seconds, "run"), self.pool.alone(worker):
            reply = worker.call("run", (self.key, number, mode, best, options), self.limits.run_s)
        return self._judged(number, mode, reply, for_time)

    def _judged(self, number: int, mode: int, reply: Reply, for_time: bool) -> Outcome:
        """Return the outcome of a candidate after a run."""
        before = self.outcomes[number]
        if not reply.ok:
            return Outcome(reply.kind, text=reply.text)
        if reply.value["wrong"]:
            return Outcome("wrong answer", text=reply.value["wrong"])
        if not for_time:
            return replace(before, checked=before.checked or mode != PACKED)
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
        self._run_each([n for n in every if self.outcomes[n].ok])
        self._in_turns()
        if default and self._ranking()[:1] == [self.default]:
            self._in_turns()  # once more before ours are given up: another process may have slowed them down
        result = self._first_right_of([n for n in self._ranking() if n != self.default])
        return self._against_default(result) if default else result

    def _run_each(self, numbers: Sequence[int]) -> None:
        """Time candidates one after the other; on other machines, on all of them at once."""
        if is_remote(self.pool):
            calls = [("run", (self.key, n, self._mode(n), math.inf, self.options), self.limits.run_s) for n in numbers]
            with timed(self.seconds, "run"):
                replies = self.pool.map(calls)
            for n, (_, _, reply) in zip(numbers, replies, strict=True):
                self.outcomes[n] = self._judged(n, self._mode(n), reply, for_time=True)
            return
        best = math.inf
        for n in numbers:
            outcome = self.outcomes[n] = self._run(n, self._mode(n), best, for_time=True)
            best = min(best, outcome.seconds) if outcome.ok else best

    def _in_turns(self) -> None:
        """Measure the best candidates and TVM's own kernel again, in turns, for some rounds."""
        finalists = [n for n in self._ranking() if n != self.default][: self.limits.finalists]
        if self.default >= 0 and self.outcomes[self.default].ok and not self.outcomes[self.default].pruned:
            finalists.append(self.default)
        if len(finalists) < 2:
            return
        if is_remote(self.pool):
            for _ in range(self.limits.rounds):
                self._run_each([n for n in finalists if self.outcomes[n].ok])
            return
        for n in finalists * self.limits.rounds:
            # Those given up early stay out, unless nothing else of ours is left.
            if self.outcomes[n].ok and (not self.outcomes[n].pruned or n == finalists[0]):
                self.outcomes[n] = self._run(n, self._mode(n), math.inf, for_time=True)

    def _against_default(self, result: TaskResult) -> TaskResult:
        """Return our winner only if TVM's own kernel fails or is not clearly faster."""
        own = self.outcomes[self.default]
        ours = [o for n, o in enumerate(self.outcomes) if n != self.default]
        wins = own.ok and result.winner is not None
        wins = wins and own.seconds < (1 - self.limits.margin) * self.outcomes[result.winner or 0].seconds
        return TaskResult(ours, None if wins else result.winner, own, wins)

    def first_right(self) -> TaskResult:
        self.outcomes = [Outcome("ok") for _ in self.lines]
        return self._first_right_of(range(len(self.lines)))

    def each_checked(self) -> TaskResult:
        """Build every candidate and compare its result with the reference; the first right one wins."""
        self.outcomes = [Outcome("ok") for _ in self.lines]
        mode = CHECK if self.mode == PACKED else self.mode
        self._build(range(len(self.lines)), mode)
        for n in self._ranking():
            self.outcomes[n] = self._run(n, mode, math.inf, for_time=False)
        return TaskResult(self.outcomes, next(iter(self._ranking()), None))

    def each_timed(self) -> list[Outcome]:
        """Build and time every candidate once; return the outcomes. Answers are compared unless operands are packed."""
        self.outcomes = [Outcome("ok") for _ in self.lines]
        self._build(range(len(self.lines)))
        best = math.inf
        for n in range(len(self.lines)):
            if self.outcomes[n].ok:
                outcome = self.outcomes[n] = self._run(n, self.mode, best, for_time=True)
                best = min(best, outcome.seconds) if outcome.ok else best
        return self.outcomes

    def _ranking(self) -> list[int]:
        works = [n for n, o in enumerate(self.outcomes) if o.ok]
        return sorted(works, key=lambda n: self.outcomes[n].seconds)

    def _first_right_of(self, order: Sequence[int]) -> TaskResult:
        """Return the first candidate in this order with a right answer (packed ones are checked only here)."""
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
    """Add the seconds spent inside to `seconds[phase]`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - start


def typical(repeats: Sequence[float]) -> float:
    """Return the lower octile of the repeats, as other work on the machine only adds time.

    Examples
    --------
    >>> typical([3.0, 1.0, 9.0, 2.0, 8.0, 2.5, 7.0, 4.0])
    2.0
    """
    return sorted(repeats)[len(repeats) // 8]
