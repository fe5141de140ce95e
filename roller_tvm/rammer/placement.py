"""Placing rTasks: each on the vEU that can run it earliest. A placement grows operator by operator and can be kept."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..device import DeviceSpec
from .depend import Dependences, Need
from .operators import RKernel
from .program import ProgramBuilder, RTask, TaskProgram
from .vdevice import VDevice

Chosen = tuple[tuple[str, RKernel], ...]


@dataclass
class Placement:
    """A plan so far: which operators by which rKernels, and where and when their rTasks run.

    Parameters
    ----------
    spec : DeviceSpec
    dependences : Dependences
    launch : str
        How kernels are launched, for what launching costs.
    """

    spec: DeviceSpec
    dependences: Dependences
    launch: str
    chosen: Chosen = ()
    device: VDevice | None = None
    free: list[float] = field(default_factory=list)  # by vEU
    pipes: list[float] = field(default_factory=list)  # by unit
    veus: dict[tuple[str, int], list[int]] = field(default_factory=dict)  # of each phase's rTasks
    ends: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()  # why these rKernels

    @property
    def seconds(self) -> float:
        """Of the kernel that this plan would be, launching it included."""
        assert self.device is not None
        return self.device.costs.launch_seconds + max(self.free, default=0.0)

    def extended(self, chosen: Sequence[tuple[str, RKernel]]) -> Placement:
        """This plan with more operators after it; this one stays as it is.

        Where their rKernels leave room for fewer vEUs on a unit, all rTasks are placed anew.
        """
        every = (*self.chosen, *chosen)
        device = VDevice.of(self.spec, (k for _, k in chosen), self.launch, self.device)
        grown = Placement(self.spec, self.dependences, self.launch, every, device, reasons=self.reasons)
        todo: Sequence[tuple[str, RKernel]] = chosen
        if self.device is not None and self.device.per_unit == device.per_unit:
            grown.free, grown.pipes = list(self.free), list(self.pipes)
            grown.veus, grown.ends = dict(self.veus), dict(self.ends)
        else:
            grown.free, grown.pipes = [0.0] * device.veus, [0.0] * device.units
            todo = every
        kernels = dict(every)
        for operator, kernel in todo:
            for phase in range(len(kernel.phases)):
                grown._place(operator, phase, kernel, self.dependences.of(operator, phase, kernels))
        return grown

    def _place(self, operator: str, number: int, kernel: RKernel, needs: Sequence[Need]) -> None:
        assert self.device is not None
        phase, units, costs = kernel.phases[number], self.device.units, self.device.costs
        whole, narrow = 0.0, []
        for need in needs:
            ends = self.ends[need.producer, need.phase]
            if need.tasks is None:
                whole = max(whole, max(ends))
            else:
                narrow.append((need.tasks, ends))
        poll = costs.poll_seconds if needs else 0.0
        wait = costs.signal_seconds if needs else 0.0
        pipes = self.pipes
        heap = [(f, pipes[v % units], v) for v, f in enumerate(self.free)]
        heapq.heapify(heap)
        placed, ended = [], []
        for index in range(phase.tasks):
            ready = whole
            for tasks, ends in narrow:
                for other in tasks[index]:
                    if ends[other] > ready:
                        ready = ends[other]
            free, _, v = heap[0]
            start = max(free, ready + wait) + poll
            unit = v % units
            pipe = pipes[unit] = max(pipes[unit], start) + phase.unit_seconds
            end = max(start + phase.alone_seconds, pipe)
            heapq.heapreplace(heap, (end, pipe, v))
            placed.append(v)
            ended.append(end)
        for free, _, v in heap:
            self.free[v] = free
        self.veus[operator, number], self.ends[operator, number] = placed, ended

    def program(self) -> TaskProgram:
        """The rTasks as a program, with a barrier wherever one has to wait."""
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
                for index, v in enumerate(self.veus[operator, number]):
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
