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
    blocked: dict[tuple[int, int], list[int]] = {}
    heap: list[tuple[float, int]] = []
    intervals = []
    free = [0.0] * len(prog)
    told: dict[int, float] = {}  # when the rTasks of a barrier were over; many rTasks share one

    def advance(v: int) -> None:
        """Pass the barriers that can be passed; queue the rTask behind them."""
        entries = prog[v]
        while len(done[v]) < len(entries):
            entry = entries[len(done[v])]
            if isinstance(entry, RTask):
                heapq.heappush(heap, (free[v], v))
                return
            if id(entry) not in told:
                for u, order in entry.waits:
                    if len(done[u]) <= order:
                        blocked.setdefault((u, order), []).append(v)
                        return
                told[id(entry)] = max(done[u][order] for u, order in entry.waits) + costs.signal_seconds
            again = done[v] and isinstance(entries[len(done[v]) - 1], BarrierTask)  # polled together
            free[v] = max(free[v], told[id(entry)] + (costs.poll_seconds if again else 0.0))
            free[v] += 0.0 if again else costs.poll_seconds
            done[v].append(free[v])
            release(v)

    def release(v: int) -> None:
        for waiting in blocked.pop((v, len(done[v]) - 1), ()):
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
