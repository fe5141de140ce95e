"""Placing rTasks: each on the vEU that can run it earliest. A placement grows operator by operator and can be kept."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..device import DeviceSpec
from .dependences import Dependences, Need
from .roperator import Phase, RKernel
from .rtask import RTask
from .task_program import ProgramBuilder, TaskProgram
from .veu import VDevice

Chosen = tuple[tuple[str, RKernel], ...]


@dataclass
class Placement:
    """A plan so far: its operators and rKernels, and the vEU and time of each of their rTasks.

    Parameters
    ----------
    launch : str
        How kernels are launched, which sets the launch cost.
    device : VDevice or None
        None for an empty plan.
    free, pipes : array of float
        Seconds after the launch when each vEU, and the pipes of each unit, are done.
    veus, ends : dict
        (operator, phase) -> for each of its rTasks, its vEU, and its end in seconds.
    narrower : dict
        vEUs per unit -> the beginning of this plan on a vDevice with that smaller number; an rKernel that leaves room
        for fewer vEUs is added to it.
    """

    spec: DeviceSpec
    dependences: Dependences
    launch: str
    chosen: Chosen = ()
    device: VDevice | None = None
    free: Any = None
    pipes: Any = None
    veus: dict[tuple[str, int], Any] = field(default_factory=dict)
    ends: dict[tuple[str, int], Any] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    narrower: dict[int, Placement] = field(default_factory=dict, repr=False)

    @property
    def seconds(self) -> float:
        """Seconds of the kernel that this plan would be, launch included."""
        assert self.device is not None
        return self.device.costs.launch_seconds + float(self.free.max())

    def extended(self, chosen: Sequence[tuple[str, RKernel]]) -> Placement:
        """Return this plan with more operators after it; this one does not change.

        If their rKernels leave room for fewer vEUs on a unit, all rTasks are placed anew.
        """
        device = VDevice.of(self.spec, (k for _, k in chosen), self.launch, self.device)
        grown = self._on(device)._with(chosen, device)
        grown.reasons = self.reasons
        grown.narrower = {room: begun for room, begun in self.narrower.items() if room < device.per_unit}
        return grown

    def _on(self, device: VDevice) -> Placement:
        """Return this plan on a vDevice with room for as many vEUs or fewer."""
        if self.device and self.device.per_unit == device.per_unit:
            return self
        begun = self.narrower.get(device.per_unit) or Placement(
            self.spec, self.dependences, self.launch, free=np.zeros(device.veus), pipes=np.zeros(device.units)
        )
        self.narrower[device.per_unit] = begun = begun._with(self.chosen[len(begun.chosen) :], device)
        return begun

    def _with(self, chosen: Sequence[tuple[str, RKernel]], device: VDevice) -> Placement:
        grown = Placement(self.spec, self.dependences, self.launch, (*self.chosen, *chosen), device, self.free.copy(),
                          self.pipes.copy(), dict(self.veus), dict(self.ends))
        kernels = dict(grown.chosen)
        for operator, kernel in chosen:
            for number, phase in enumerate(kernel.phases):
                grown._place((operator, number), phase, self.dependences.of(operator, number, kernels))
        return grown

    def _place(self, name: tuple[str, int], phase: Phase, needs: Sequence[Need]) -> None:
        assert self.device is not None
        ready = np.zeros(phase.tasks)
        for need in needs:
            ends = self.ends[need.producer, need.phase]
            np.maximum(ready, need.tasks.latest(ends) if need.tasks is not None else ends.max(), out=ready)
        costs = self.device.costs
        poll = costs.poll_seconds if needs else 0.0
        if needs:
            ready += costs.signal_seconds
        self.veus[name], self.ends[name] = _earliest(self.free, self.pipes, phase, ready, poll)

    def pattern(self) -> Hashable:
        """Return a key of all that determines the program except the operators' names: equal layers have equal keys."""
        kernels = dict(self.chosen)
        number = {operator: n for n, (operator, _) in enumerate(self.chosen)}
        phases = (
            (phase, self.veus[operator, n].tobytes(),
             tuple((number[need.producer], need.phase, need.tasks)
                   for need in self.dependences.of(operator, n, kernels)))
            for operator, kernel in self.chosen for n, phase in enumerate(kernel.phases)
        )  # fmt: skip
        return self.device, tuple(len(k.phases) for _, k in self.chosen), tuple(phases)

    def program(self) -> TaskProgram:
        """Return the rTasks as a program, with a barrier wherever one has to wait."""
        assert self.device is not None
        builder = ProgramBuilder(self.device, self.chosen)
        kernels = dict(self.chosen)
        last: dict[tuple[str, int], dict[int, int]] = {}
        places: dict[tuple[str, int], list[tuple[int, int]]] = {}
        count = [0] * self.device.veus  # rTasks of each vEU so far
        for operator, kernel in self.chosen:
            for number in range(len(kernel.phases)):
                needs = self.dependences.of(operator, number, kernels)
                whole = [last[n.producer, n.phase] for n in needs if n.tasks is None]
                narrow = [(n.tasks, places[n.producer, n.phase]) for n in needs if n.tasks is not None]
                mine, end = [], {}
                for index, v in enumerate(self.veus[operator, number].tolist()):
                    task = RTask(operator, number, index)
                    builder.append(task, v)
                    mine.append((v, count[v]))
                    end[v] = count[v]
                    count[v] += 1
                    for group in whole:
                        builder.wait_all(task, group)
                    if narrow:
                        waits: dict[int, int] = {}
                        for tasks, at in narrow:
                            for other in tasks[index]:
                                u, order = at[other]
                                if waits.get(u, -1) < order:
                                    waits[u] = order
                        builder.wait_for(task, waits)
                last[operator, number], places[operator, number] = end, mine
        return builder.build()


def _earliest(free: Any, pipes: Any, phase: Phase, ready: Any, poll: float) -> tuple[Any, Any]:
    """Return vEU and end of each rTask of a phase, and update `free` and `pipes`.

    Each goes to the vEU that is free first. Among equals it goes to the unit whose pipes are done first, as far as the
    vEU has seen.
    """
    unit = np.arange(len(free)) % len(pipes)
    seen = pipes[unit]
    veus, ends = np.empty(phase.tasks, dtype=np.int64), np.empty(phase.tasks)
    first = 0
    while first < phase.tasks:
        # As they are free now, as long as none that got an rTask is free again before them.
        order = np.lexsort((seen, free))[: phase.tasks - first]
        start = np.maximum(free[order], ready[first : first + len(order)]) + poll
        served = _served(pipes, unit[order], start, phase.unit_seconds)
        end = np.maximum(start + phase.alone_seconds, served)
        again = np.minimum.accumulate(end)[:-1] <= free[order[1:]]
        count = int(again.argmax()) + 1 if again.any() else len(order)
        order, served, end = order[:count], served[:count], end[:count]
        free[order], seen[order] = end, served
        np.maximum.at(pipes, unit[order], served)
        veus[first : first + count], ends[first : first + count] = order, end
        first += count
    return veus, ends


def _served(pipes: Any, unit: Any, start: Any, seconds: float) -> Any:
    """Return when the pipes of its unit are done with each rTask; those of a unit are served in the order given."""
    count = np.bincount(unit, minlength=len(pipes))
    most = int(count.max())
    if most == 1:
        return np.maximum(pipes[unit], start) + seconds
    by_unit = np.argsort(unit, kind="stable")
    turn = np.empty_like(unit)  # how many of the unit's were before
    turn[by_unit] = np.arange(len(unit)) - (np.cumsum(count) - count)[unit[by_unit]]
    rows = np.zeros((most, len(pipes)))  # by turn and unit: starts, then ends
    rows[turn, unit] = start
    done = pipes
    for n, row in enumerate(rows):
        done = np.where(count > n, np.maximum(done, row) + seconds, done)
        row[:] = done
    return rows[turn, unit]
