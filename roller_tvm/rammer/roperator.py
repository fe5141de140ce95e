"""rOperator, rKernel and the graph of them (Rammer, OSDI'20, section 3.1), as plain values.

An rOperator is a set of independent, homogeneous rTasks. An rKernel is one implementation of it: the number of rTasks,
their resources and their time. On a GPU an rTask is a thread block of a kernel. An operator that needs several kernels
one after the other (a split reduction) has as many *phases*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

from ..errors import BadInput
from ..roller.rprogram import Plan
from .partition import topological
from .rtask import Tiling


@dataclass(frozen=True)
class Phase:
    """Homogeneous, independent rTasks: the blocks of one kernel.

    Parameters
    ----------
    alone_seconds : float
        Time of one rTask with a unit of the device to itself.
    unit_seconds : float
        Part of a unit's time that one rTask takes up; rTasks that share a unit cannot take more than its time.
    threads, registers, shared_bytes : int
        Threads of one rTask, registers of a thread, shared memory of one rTask.
    tiling : Tiling or None
        Elements that each rTask writes; None if unknown.
    resident : int
        rTasks of this phase that a unit holds at a time.
    """

    tasks: int
    alone_seconds: float
    unit_seconds: float
    threads: int = 1
    registers: int = 0
    shared_bytes: int = 0
    tiling: Tiling | None = None
    resident: int = 1

    def __post_init__(self) -> None:
        if self.tasks < 1 or self.threads < 1 or self.resident < 1 or self.registers < 0 or self.shared_bytes < 0:
            raise ValueError(f"a phase needs rTasks and threads (got {self.tasks} of {self.threads})")
        for seconds in (self.alone_seconds, self.unit_seconds):
            if not isfinite(seconds) or seconds < 0:
                raise ValueError(f"the time of an rTask must be 0 or more (got {seconds!r})")
        if self.tiling and self.tiling.tasks != self.tasks:
            raise ValueError(f"{self.tiling.tasks} tiles for {self.tasks} rTasks")

    def __str__(self) -> str:
        return (f"{self.tasks} x {self.threads} threads, {self.alone_seconds * 1e6:.2f} us each, "
                f"{self.registers} registers, {self.shared_bytes} B shared")

    def to_json(self) -> list[Any]:
        return [self.tasks, self.alone_seconds, self.unit_seconds, self.threads, self.registers, self.shared_bytes,
                self.tiling and self.tiling.to_json(), self.resident]

    @property
    def work(self) -> float:
        """Unit time that the rTasks take up, in seconds, on units full of them."""
        return self.tasks * max(self.unit_seconds, self.alone_seconds / self.resident)

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> Phase:
        tasks, alone, unit, threads, registers, shared, tiling, resident = data
        tiles = Tiling.from_json(tiling) if tiling else None
        return cls(tasks, alone, unit, threads, registers, shared, tiles, resident)


@dataclass(frozen=True)
class RKernel:
    """One implementation of an rOperator.

    Parameters
    ----------
    name : str
        Unique among those of the operator: 'plan 0' is Roller's fastest.
    seconds : float
        Time of its kernels on their own, launches not included.
    plan : Plan or None
        Roller's plan, with an rProgram per phase.
    """

    name: str
    phases: tuple[Phase, ...]
    seconds: float
    plan: Plan | None = None

    def __post_init__(self) -> None:
        if not self.phases:
            raise ValueError(f"rKernel '{self.name}' has no rTasks")
        if self.plan and len(self.plan.programs) != len(self.phases):
            raise ValueError(f"rKernel '{self.name}': {len(self.phases)} phases of {len(self.plan.programs)} rPrograms")
        if not isfinite(self.seconds) or self.seconds < 0:
            raise ValueError(f"rKernel '{self.name}': its time must be 0 or more (got {self.seconds!r})")

    @property
    def width(self) -> int:
        """Most rTasks that may run at a time."""
        return max(p.tasks for p in self.phases)

    @cached_property
    def work(self) -> float:
        """Time of an rTask multiplied by the number of rTasks: the least is the most efficient (Rammer, section 4).

        An rTask that shares a unit counts with its part of it, so that large and small rTasks are comparable.
        """
        return sum(p.work for p in self.phases)

    @cached_property
    def buffer_bytes(self) -> int:
        """Bytes that all its phases write; 0 if its plan is unknown."""
        if not self.plan:
            return 0
        tensors = self.plan.expression.tensors
        return sum(tensors[p.output].bytes for p in self.plan.programs)

    def __str__(self) -> str:
        return f"{self.name}: {'; '.join(map(str, self.phases))}; {self.seconds * 1e6:.2f} us by itself"

    def to_json(self) -> dict[str, Any]:
        plan = {"plan": self.plan.to_json()} if self.plan else {}
        return {"name": self.name, "phases": [p.to_json() for p in self.phases], "seconds": self.seconds, **plan}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RKernel:
        plan = Plan.from_json(data["plan"]) if "plan" in data else None
        return cls(data["name"], tuple(map(Phase.from_json, data["phases"])), data["seconds"], plan)


@dataclass(frozen=True)
class Edge:
    """An operator's input that another operator produces.

    Parameters
    ----------
    tensor : str
        Name of the input in the reader's expression.
    producer : str
        Operator that writes it.
    output : str
        Name of the output in the producer's expression; '' for its last.
    """

    tensor: str
    producer: str
    output: str = ""


@dataclass(frozen=True)
class ROperator:
    """An operator of the graph with its possible rKernels.

    Parameters
    ----------
    buffer_bytes : int
        Bytes that it writes; 0: taken from its rKernels' plans.
    """

    name: str
    kernels: tuple[RKernel, ...]
    inputs: tuple[Edge, ...] = ()
    buffer_bytes: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(
            e if isinstance(e, Edge) else Edge("", e) for e in self.inputs
        ))  # fmt: skip
        if not self.kernels:
            raise BadInput("it has no kernel, so it cannot be fused with others", where=f"operator '{self.name}'",
                           remedy="leave it out of the graph: it stays a kernel of its own")
        names = [k.name for k in self.kernels]
        if len(set(names)) != len(names):
            raise ValueError(f"operator '{self.name}': its rKernels need different names (got {names})")
        if not self.buffer_bytes:
            object.__setattr__(self, "buffer_bytes", max(k.buffer_bytes for k in self.kernels))

    @cached_property
    def fastest(self) -> RKernel:
        return min(self.kernels, key=lambda k: k.seconds)

    @cached_property
    def efficient(self) -> RKernel:
        """The rKernel that takes the least of the device's time."""
        return min(self.kernels, key=lambda k: (k.work, k.seconds))

    @cached_property
    def front(self) -> tuple[RKernel, ...]:
        """rKernels from the fastest to the most efficient: each takes less of the device than every faster one."""
        found: list[RKernel] = []
        for kernel in sorted(self.kernels, key=lambda k: (k.seconds, k.work)):
            if not found or kernel.work < found[-1].work:
                found.append(kernel)
        return tuple(found)


@dataclass(frozen=True)
class DataFlowGraph:
    """rOperators and their edges: which operator reads from which.

    Examples
    --------
    >>> kernel = RKernel("k", (Phase(4, 1e-6, 1e-6),), 1e-6)
    >>> a, b = ROperator("a", (kernel,)), ROperator("b", (kernel,))
    >>> graph = DataFlowGraph((ROperator("c", (kernel,), (Edge("x", "a"), Edge("y", "b"))), a, b))
    >>> [[o.name for o in wave] for wave in graph.waves]
    [['a', 'b'], ['c']]
    """

    operators: tuple[ROperator, ...]

    def __post_init__(self) -> None:
        names = [o.name for o in self.operators]
        if len(set(names)) != len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise BadInput("two operators of one name", where=f"operator '{twice}'", remedy="name them differently")
        for operator in self.operators:
            for edge in operator.inputs:
                if edge.producer not in self.by_name:
                    raise BadInput(f"it reads from '{edge.producer}', which is not in the graph",
                                   where=f"operator '{operator.name}'",
                                   remedy="add that operator, or leave the edge out if it is an input")
        _ = self.depth  # a cycle is found here

    @cached_property
    def by_name(self) -> dict[str, ROperator]:
        return {o.name: o for o in self.operators}

    @cached_property
    def consumers(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, dict[str, None]] = {o.name: {} for o in self.operators}
        for operator in self.operators:
            for edge in operator.inputs:
                found[edge.producer][operator.name] = None
        return {name: tuple(readers) for name, readers in found.items()}

    @cached_property
    def depth(self) -> dict[str, int]:
        """Wave of each operator: one after the last wave of the operators it reads from."""
        place = {o.name: n for n, o in enumerate(self.operators)}
        depth: dict[str, int] = {}
        for number in topological([{place[e.producer] for e in o.inputs} for o in self.operators]):
            operator = self.operators[number]
            depth[operator.name] = max((1 + depth[e.producer] for e in operator.inputs), default=0)
        if len(depth) < len(self.operators):
            cycle = self._cycle({o.name for o in self.operators if o.name not in depth})
            raise BadInput(f"it depends on itself: {' -> '.join(cycle)}", where=f"operator '{cycle[0]}'",
                           remedy="remove the cycle from the graph")
        return depth

    def _cycle(self, among: set[str]) -> list[str]:
        walk = [min(among)]
        while True:
            before = next(e.producer for e in self.by_name[walk[-1]].inputs if e.producer in among)
            if before in walk:
                return [before, *reversed(walk[walk.index(before):])]
            walk.append(before)

    @cached_property
    def waves(self) -> tuple[tuple[ROperator, ...], ...]:
        """Breadth-first waves of the graph: the operators of one wave do not depend on each other."""
        result: list[list[ROperator]] = [[] for _ in range(max(self.depth.values(), default=-1) + 1)]
        for operator in self.operators:
            result[self.depth[operator.name]].append(operator)
        return tuple(map(tuple, result))

    @cached_property
    def order(self) -> tuple[ROperator, ...]:
        """Operators in an order in which each comes after those it reads from."""
        return tuple(o for wave in self.waves for o in wave)
