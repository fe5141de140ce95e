"""Predicted time of a TaskProgram: its rTasks on its vEUs, simulated.

A unit's pipes serve the rTasks that are on it one after another; an rTask is done when they are done with it, and not
before its own latency is over.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property

from .program import BarrierTask, RTask, TaskProgram


@dataclass(frozen=True)
class Interval:
    """When an rTask ran, in seconds after the launch."""

    task: RTask
    veu: int
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """What a program is predicted to do.

    Parameters
    ----------
    intervals : tuple of Interval
        By start.
    launch_seconds : float
    """

    intervals: tuple[Interval, ...]
    launch_seconds: float

    @cached_property
    def makespan(self) -> float:
        """From launch to the end of the last rTask, the cost of launching included."""
        return self.launch_seconds + max((i.end for i in self.intervals), default=0.0)

    def busy(self, veus: int) -> float:
        """Share of the vEUs' time in which they run rTasks."""
        total = (self.makespan - self.launch_seconds) * veus
        return sum(i.end - i.start for i in self.intervals) / total if total else 0.0


def simulate(program: TaskProgram) -> Timeline:
    """Run a program on paper.

    Raises
    ------
    BadProgram
        It would never end.
    """
    device, costs = program.device, program.device.costs
    prog = program.prog
    done: list[list[float]] = [[] for _ in prog]  # when each entry was over
    pipes = [0.0] * device.units
    # A barrier, which many rTasks may share, is watched at the first of its rTasks that is not over.
    watched: dict[tuple[int, int], list[BarrierTask]] = {}
    behind: dict[int, list[int]] = {}  # vEUs that wait at a barrier
    seen: dict[int, int] = {}  # how many of its rTasks are known to be over
    told: dict[int, float] = {}  # when those were, and others can know
    heap: list[tuple[float, int]] = []
    intervals = []
    free = [0.0] * len(prog)

    def passed(entry: BarrierTask) -> bool:
        waits, n = entry.waits, seen.get(id(entry), 0)
        while n < len(waits) and len(done[waits[n][0]]) > waits[n][1]:
            n += 1
        seen[id(entry)] = n
        if n < len(waits):
            watched.setdefault(waits[n], []).append(entry)
            return False
        told[id(entry)] = max(done[u][order] for u, order in waits) + costs.signal_seconds
        return True

    def advance(v: int) -> None:
        """Pass the barriers that can be passed; queue the rTask behind them."""
        entries = prog[v]
        while len(done[v]) < len(entries):
            entry = entries[len(done[v])]
            if isinstance(entry, RTask):
                heapq.heappush(heap, (free[v], v))
                return
            if id(entry) not in told and (id(entry) in behind or not passed(entry)):
                behind.setdefault(id(entry), []).append(v)
                return
            again = done[v] and isinstance(entries[len(done[v]) - 1], BarrierTask)  # polled together
            free[v] = max(free[v], told[id(entry)] + (costs.poll_seconds if again else 0.0))
            free[v] += 0.0 if again else costs.poll_seconds
            done[v].append(free[v])
            release(v)

    def release(v: int) -> None:
        for entry in watched.pop((v, len(done[v]) - 1), ()):
            if passed(entry):
                for waiting in behind.pop(id(entry), ()):
                    advance(waiting)

    for v in range(len(prog)):
        advance(v)
    while heap:
        start, v = heapq.heappop(heap)
        entry = prog[v][len(done[v])]
        assert isinstance(entry, RTask)
        phase, unit = program.phase(entry), device.unit(v)
        pipes[unit] = max(pipes[unit], start) + phase.unit_seconds
        free[v] = max(start + phase.alone_seconds, pipes[unit])
        intervals.append(Interval(entry, v, start, free[v]))
        done[v].append(free[v])
        release(v)
        advance(v)
    if any(len(d) < len(p) for d, p in zip(done, prog, strict=True)):
        program.check()  # says which barrier
    return Timeline(tuple(intervals), costs.launch_seconds)
