"""Rammer's rProgram: ``prog[vEU][order]``, rTasks and barrier-rTasks (OSDI'20, section 3.2).

Roller calls the tiles of one loop nest an rProgram too (``plan.program.RProgram``); this one is a *TaskProgram* here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..errors import RollerError
from .roperator import Phase, RKernel
from .rtask import RTask
from .veu import VDevice


@dataclass(frozen=True)
class BarrierTask:
    """Waits until all the (vEU, order) that it names have run."""

    waits: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return f"wait({', '.join(f'{v}:{o}' for v, o in self.waits)})"


Entry = RTask | BarrierTask


class BadProgram(RollerError):
    """A TaskProgram does not do its graph's work: an rTask is placed twice or too early, or it deadlocks."""


@dataclass(frozen=True)
class TaskProgram:
    """The entries of each vEU, in order.

    Parameters
    ----------
    kernels : tuple of (operator, RKernel)
        Operators in an order in which they may run.
    prog : tuple of tuple of RTask or BarrierTask
        Entries by vEU, then by order.
    ordered : bool
        True if an rTask depends, without a barrier, on earlier ones of its own vEU.
    """

    device: VDevice
    kernels: tuple[tuple[str, RKernel], ...]
    prog: tuple[tuple[Entry, ...], ...]
    ordered: bool = False

    def __post_init__(self) -> None:
        if len(self.prog) != self.device.veus:
            raise ValueError(f"{len(self.prog)} lists of rTasks for {self.device.veus} vEUs")

    @cached_property
    def kernel_of(self) -> dict[str, RKernel]:
        return dict(self.kernels)

    def phase(self, task: RTask) -> Phase:
        return self.kernel_of[task.operator].phases[task.phase]

    @cached_property
    def tasks(self) -> int:
        return sum(isinstance(e, RTask) for entries in self.prog for e in entries)

    @cached_property
    def barriers(self) -> int:
        return sum(isinstance(e, BarrierTask) for entries in self.prog for e in entries)

    @property
    def waits(self) -> bool:
        """True if any rTask has to come after another; else they may run as blocks of a plain kernel."""
        return self.ordered or self.barriers > 0 or any(len(k.phases) > 1 for _, k in self.kernels)

    @cached_property
    def used(self) -> int:
        """Number of vEUs that run anything: the blocks to launch."""
        return max((v + 1 for v, entries in enumerate(self.prog) if entries), default=0)

    @cached_property
    def launches(self) -> int:
        """Number of kernels if each operator is launched on its own."""
        return sum(len(k.phases) for _, k in self.kernels)

    @property
    def regions(self) -> int:
        """Number of launches: one kernel; on a CPU as many parallel regions as there are phases."""
        return max((len(k.phases) for _, k in self.kernels), default=0) if self.device.regions else 1

    @cached_property
    def places(self) -> dict[RTask, tuple[int, int]]:
        """Position of each rTask: (vEU, order)."""
        return {e: (v, n) for v, entries in enumerate(self.prog) for n, e in enumerate(entries) if isinstance(e, RTask)}

    def of_others(self, kernels: Sequence[tuple[str, RKernel]]) -> TaskProgram:
        """Return the same program for other operators, one for each of this one's, with rKernels of the same rTasks."""
        other = {mine: name for (mine, _), (name, _) in zip(self.kernels, kernels, strict=True)}
        prog = tuple(
            tuple(RTask(other[e.operator], e.phase, e.number) if isinstance(e, RTask) else e for e in entries)
            for entries in self.prog
        )
        return TaskProgram(self.device, tuple(kernels), prog, self.ordered)

    def __str__(self) -> str:
        operators = ", ".join(f"{o} ({k.name})" for o, k in self.kernels)
        lines = [f"{self.tasks} rTasks of {operators}; {self.barriers} barriers", f"on {self.device}"]
        for v, entries in enumerate(self.prog):
            if entries:
                lines.append(f"  vEU {v}: {' '.join(_runs(entries))}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary: an rTask as [operator, phase, index], a barrier as a number in 'waits'."""
        number = {o: n for n, (o, _) in enumerate(self.kernels)}
        barriers: dict[BarrierTask, int] = {}
        known: dict[int, int] = {}  # hashing a long barrier takes a while, and many rTasks share one

        def entry(e: Entry) -> Any:
            if isinstance(e, RTask):
                return [number[e.operator], e.phase, e.number]
            if id(e) not in known:
                known[id(e)] = barriers.setdefault(e, len(barriers))
            return known[id(e)]

        prog = [list(map(entry, entries)) for entries in self.prog]
        return {"device": self.device.to_json(), "kernels": [[o, k.to_json()] for o, k in self.kernels],
                "waits": [[list(w) for w in b.waits] for b in barriers], "prog": prog, "ordered": self.ordered}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TaskProgram:
        kernels = tuple((o, RKernel.from_json(k)) for o, k in data["kernels"])
        barriers = [BarrierTask(tuple((v, o) for v, o in waits)) for waits in data["waits"]]

        def entry(given: Any) -> Entry:
            return barriers[given] if isinstance(given, int) else RTask(kernels[given[0]][0], given[1], given[2])

        prog = tuple(tuple(map(entry, p)) for p in data["prog"])
        return cls(VDevice.from_json(data["device"]), kernels, prog, bool(data["ordered"]))


def _runs(entries: Iterable[Entry]) -> list[str]:
    """Return entries as text, neighbours of one phase together: 'a[0 4 8]'."""
    result: list[str] = []
    last: tuple[str, int] | None = None
    for entry in entries:
        if isinstance(entry, BarrierTask):
            result.append(str(entry))
            last = None
        elif last == (entry.operator, entry.phase):
            result[-1] = f"{result[-1][:-1]} {entry.number}]"
        else:
            result.append(str(entry))
            last = (entry.operator, entry.phase)
    return result


@dataclass
class ProgramBuilder:
    """The paper's interface for a scheduling policy: ``append`` an rTask to a vEU, let it ``wait`` for others.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> kernel = RKernel("k", (Phase(2, 1e-6, 1e-6),), 1e-6)
    >>> builder = ProgramBuilder(VDevice.of(load_device("v100"), [kernel]), (("a", kernel), ("b", kernel)))
    >>> for index in (0, 1):
    ...     builder.append(RTask("a", 0, index), veu=index)
    >>> builder.append(RTask("b", 0, 0), veu=0)
    >>> builder.append(RTask("b", 0, 1), veu=1)
    >>> builder.wait(RTask("b", 0, 0), [RTask("a", 0, 0), RTask("a", 0, 1)])
    >>> print(" ".join(map(str, builder.build().prog[0])))
    a[0] wait(1:0) b[0]
    """

    device: VDevice
    kernels: tuple[tuple[str, RKernel], ...]
    _lists: list[list[RTask]] = field(default_factory=list)
    _places: dict[RTask, tuple[int, int]] = field(default_factory=dict)
    _waits: dict[RTask, dict[int, int]] = field(default_factory=dict)
    _groups: dict[RTask, list[dict[int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lists = [[] for _ in range(self.device.veus)]

    def append(self, task: RTask, veu: int) -> None:
        """Let a vEU run a task after all that it was given so far."""
        if task in self._places:
            raise BadProgram("it was appended before", where=str(task))
        self._places[task] = (veu, len(self._lists[veu]))
        self._lists[veu].append(task)

    def wait(self, task: RTask, tasks: Iterable[RTask]) -> None:
        """Let an appended task wait for other appended tasks."""
        mine = self._waits.setdefault(task, {})
        for other in tasks:
            veu, order = self._places[other]
            mine[veu] = max(mine.get(veu, -1), order)

    def wait_for(self, task: RTask, last: dict[int, int]) -> None:
        """Let a task wait until other vEUs have run some of their rTasks: vEU -> number of the last one, from 0."""
        mine = self._waits.setdefault(task, last)
        if mine is not last:
            for veu, order in last.items():
                mine[veu] = max(mine.get(veu, -1), order)

    def wait_all(self, task: RTask, last: dict[int, int]) -> None:
        """Do the same as ``wait_for``; tasks that pass the same object share a barrier."""
        self._groups.setdefault(task, []).append(last)

    def build(self) -> TaskProgram:
        """Return the program, with barriers before each task that still has something to wait for."""
        barriers = [self._barriers(veu) for veu in range(len(self._lists))]
        orders = []  # of the n-th rTask of a vEU, barriers counted
        for mine in barriers:
            order, at = 0, []
            for before in mine:
                order += len(before)
                at.append(order)
                order += 1
            orders.append(at)
        made: dict[int, BarrierTask] = {}

        def barrier(waits: dict[int, int]) -> BarrierTask:
            if id(waits) not in made:
                made[id(waits)] = BarrierTask(tuple(sorted((u, orders[u][o]) for u, o in waits.items())))
            return made[id(waits)]

        prog: list[tuple[Entry, ...]] = []
        for tasks, mine in zip(self._lists, barriers, strict=True):
            entries: list[Entry] = []
            for task, before in zip(tasks, mine, strict=True):
                entries += [*map(barrier, before), task]
            prog.append(tuple(entries))
        return TaskProgram(self.device, self.kernels, tuple(prog), bool(self._waits or self._groups))

    def _barriers(self, veu: int) -> list[list[dict[int, int]]]:
        """Return the remaining waits before each rTask of a vEU."""
        known: dict[int, int] = {}  # vEU -> what earlier barriers of this one waited for
        passed: set[int] = set()
        result = []
        for number, task in enumerate(self._lists[veu]):
            left = []
            for group in self._groups.get(task, ()):
                if veu in group and group[veu] >= number:
                    raise BadProgram(f"it waits for {self._lists[veu][group[veu]]}, which its vEU runs later",
                                     where=str(task))
                if id(group) not in passed and any(u != veu for u in group):
                    left.append(group)
                passed.add(id(group))
            waits = self._waits.get(task, {})
            if veu in waits and waits[veu] >= number:
                raise BadProgram(f"it waits for {self._lists[veu][waits[veu]]}, which its vEU runs later",
                                 where=str(task))
            own = {u: o for u, o in waits.items() if u != veu and (u not in known or known[u] < o)}
            known |= own
            result.append([*left, own] if own else left)
        return result
