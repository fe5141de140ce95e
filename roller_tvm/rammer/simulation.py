"""Predicted time of a TaskProgram: its rTasks on its vEUs, simulated.

A unit's pipes serve its rTasks one after another. An rTask ends when they are done with it, but not before its own
latency is over.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from .rtask import RTask
from .task_program import BadProgram, BarrierTask, TaskProgram


class Interval(NamedTuple):
    """Time in which an rTask ran, in seconds after the launch."""

    task: RTask
    veu: int
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """Predicted run of a program."""

    intervals: tuple[Interval, ...]
    launch_seconds: float

    @cached_property
    def makespan(self) -> float:
        """Seconds from launch to the end of the last rTask, launch cost included."""
        return self.launch_seconds + max((i.end for i in self.intervals), default=0.0)

    def busy(self, veus: int) -> float:
        """Return the share of the vEUs' time in which they run rTasks."""
        total = (self.makespan - self.launch_seconds) * veus
        return sum(i.end - i.start for i in self.intervals) / total if total else 0.0


@dataclass
class _Watch:
    """A barrier while a program runs; many rTasks may share it."""

    left: int  # of those it waits for
    latest: float = 0.0  # end of those that are over
    behind: list[int] = field(default_factory=list)  # vEUs that have come to it


def simulate(program: TaskProgram) -> Timeline:
    """Simulate a program and return its timeline.

    Raises
    ------
    BadProgram
        If it would never end.
    """
    device, costs, prog, kernels = program.device, program.device.costs, program.prog, program.kernel_of
    watches: dict[int, _Watch] = {}
    watched: dict[tuple[int, int], list[_Watch]] = {}  # by (vEU, order)
    for entries in prog:
        for entry in entries:
            if isinstance(entry, BarrierTask) and id(entry) not in watches:
                watches[id(entry)] = watch = _Watch(len(entry.waits))
                for place in entry.waits:
                    watched.setdefault(place, []).append(watch)
    at, free, pipes = [0] * len(prog), [0.0] * len(prog), [0.0] * device.units
    heap: list[tuple[float, int]] = []
    intervals = []

    def over(v: int) -> None:
        """End a vEU's current entry: pass the barriers that waited only for it."""
        ended = watched.pop((v, at[v]), ())
        at[v] += 1
        for watch in ended:
            watch.left -= 1
            watch.latest = max(watch.latest, free[v])
            if not watch.left:
                for waiting in watch.behind:
                    advance(waiting)

    def advance(v: int) -> None:
        """Pass the barriers that can be passed; queue the rTask behind them."""
        entries = prog[v]
        while at[v] < len(entries):
            entry = entries[at[v]]
            if isinstance(entry, RTask):
                heapq.heappush(heap, (free[v], v))
                return
            watch = watches[id(entry)]
            if watch.left:
                watch.behind.append(v)
                return
            told = watch.latest + costs.signal_seconds
            again = at[v] > 0 and isinstance(entries[at[v] - 1], BarrierTask)  # polled together
            free[v] = max(free[v], told + (costs.poll_seconds if again else 0.0))
            free[v] += 0.0 if again else costs.poll_seconds
            over(v)

    for v in range(len(prog)):
        advance(v)
    while heap:
        start, v = heapq.heappop(heap)
        entry = prog[v][at[v]]
        assert isinstance(entry, RTask)
        phase, unit = kernels[entry.operator].phases[entry.phase], device.unit(v)
        pipes[unit] = max(pipes[unit], start) + phase.unit_seconds
        free[v] = max(start + phase.alone_seconds, pipes[unit])
        intervals.append(Interval(entry, v, start, free[v]))
        over(v)
        advance(v)
    for v, entries in enumerate(prog):
        if at[v] < len(entries):
            raise BadProgram(f"{entries[at[v]]} waits forever", where=f"vEU {v}, order {at[v]}")
    return Timeline(tuple(intervals), costs.launch_seconds)
