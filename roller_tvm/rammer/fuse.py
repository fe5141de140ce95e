"""The fusion of a model's graph: calls in, functions of many rTasks out. Both TVM lines' ``FuseRTasks`` use it.

A line reads its model into a `CallGraph` and writes the functions back; cutting the graph, planning, and what happens
when a plan turns out to have no code is the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..errors import BadInput, RollerError, UnsupportedOperator, last_line
from .cuda_functions import CannotFuse
from .functions import Call, Functions, call_graph
from .fused_model import FusedRegion
from .fusion_plan import FusionPlan, Part
from .makers import Maker
from .partition import Node, convex_parts, divided


@dataclass(frozen=True)
class Region:
    """Calls that may become kernels together: no path leaves them and comes back.

    Parameters
    ----------
    kept : frozenset of str
        Tensors that are read outside.
    resident : tuple of int or None
        Bytes of each other tensor alive meanwhile; None if that is known only at run time.
    """

    name: str
    calls: tuple[Call, ...]
    kept: frozenset[str]
    resident: tuple[int | None, ...] = ()

    def resident_bytes(self, capacity: int) -> int:
        """Return the bytes of a memory that others take up; tensors of unknown size get half of what else is free.

        Examples
        --------
        >>> Region("main", (), frozenset(), (100, 20)).resident_bytes(1000)
        120
        >>> Region("main", (), frozenset(), (100, None, 100)).resident_bytes(1000)
        600
        """
        known = sum(size for size in self.resident if size is not None)
        return known if None not in self.resident else known + max(0, capacity - known) // 2


@dataclass(frozen=True)
class CallGraph:
    """The calls of a function of a model, in an order in which they may run.

    Parameters
    ----------
    results : frozenset of str
        Tensors that are read after the function, or by what is no call.
    sizes : mapping of str to int or None
        Bytes of each tensor; None if they are known only at run time.
    elsewhere : tuple of int or None
        Bytes of each tensor beside those that the calls read: of other functions.
    """

    calls: tuple[Call, ...]
    results: frozenset[str] = frozenset()
    sizes: Mapping[str, int | None] = field(default_factory=dict)
    elsewhere: tuple[int | None, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Call]:
        return {call.name: call for call in self.calls}

    @cached_property
    def writer(self) -> dict[str, str]:
        """Tensor -> the call that writes it."""
        return {t: call.name for call in self.calls for t in call.writes}

    @cached_property
    def readers(self) -> dict[str, set[str]]:
        """Tensor -> the calls that read it."""
        found: dict[str, set[str]] = {}
        for call in self.calls:
            for tensor in call.reads:
                found.setdefault(tensor, set()).add(call.name)
        return found

    def kept(self, calls: Iterable[Call]) -> frozenset[str]:
        """Return the tensors among those written by some calls that others read, and results."""
        calls = tuple(calls)
        inside = {call.name for call in calls}
        return frozenset(t for call in calls for t in call.writes
                         if t in self.results or not self.readers.get(t, set()) <= inside)

    def regions(self, outside: Mapping[str, str], name: str = "") -> tuple[Region, ...]:
        """Return convex groups of the calls that can be planned, in an order in which they may run.

        Parameters
        ----------
        outside : mapping of str to str
            Calls that cannot be planned -> why.
        name : str
            Regions are called so, and a number.
        """
        nodes = []
        for call, fence in zip(self.calls, divided(c.effect for c in self.calls), strict=True):
            before = [*(self.writer[t] for t in call.reads if t in self.writer), *(self.calls[n].name for n in fence)]
            nodes.append(Node(call.name, tuple(dict.fromkeys(before)), outside.get(call.name, "")))
        steps = convex_parts(nodes)
        step_of = {o: number for number, step in enumerate(steps) for o in step.operators}
        place = {call.name: n for n, call in enumerate(self.calls)}
        found: list[Region] = []
        for number, step in enumerate(steps):
            if not step.outside:
                calls = tuple(self.calls[n] for n in sorted(place[o] for o in step.operators))
                found.append(Region(f"{name}.{len(found)}", calls, self.kept(calls), self._alive(number, step_of)))
        return tuple(found)

    def _alive(self, step: int, step_of: Mapping[str, int]) -> tuple[int | None, ...]:
        """Return the bytes of each tensor alive while a step runs: inputs, weights, results between steps."""
        found = list(self.elsewhere)
        for tensor, readers in self.readers.items():
            writer = self.writer.get(tensor)
            last = len(step_of) if tensor in self.results else max(step_of[r] for r in readers)
            if writer is None or step_of[writer] < step <= last:
                found.append(self.sizes.get(tensor))
        return tuple(found)


@dataclass(frozen=True)
class Fused:
    """Calls that one function computes."""

    symbol: str
    calls: tuple[Call, ...]
    made: Any


class Fuser:
    """Plans the calls of a graph, and makes a function of each part of a plan.

    Parameters
    ----------
    taken : set of str
        Names that functions cannot have; those of new ones are added.
    name : str
        Name of the graph, for its regions.
    told : function, optional
        Called with (symbol, part, calls, kept) after each function is made.

    Attributes
    ----------
    outside : dict of str to str
        Calls, and regions, in no plan -> why.
    """

    def __init__(
        self, graph: CallGraph, maker: Maker, taken: set[str] | None = None, name: str = "",
        told: Callable[..., None] | None = None,
    ) -> None:  # fmt: skip
        self.graph, self.maker, self.name, self.told = graph, maker, name, told
        self.taken: set[str] = taken if taken is not None else set()
        self.fused: list[Fused] = []
        self._lost: list[tuple[str, str]] = []  # calls with an rKernel given up, and the text of it
        functions: Functions = maker.functions
        self.outside = {call.name: call.outside for call in graph.calls if call.outside}
        for call in graph.calls:
            if not call.outside:
                try:
                    functions.called(call)
                except RollerError as error:
                    self.outside[call.name] = functions.reason(error)

    @property
    def regions(self) -> tuple[Region, ...]:
        return self.graph.regions(self.outside, self.name)

    def run(self) -> list[FusedRegion]:
        """Plan and make everything, and return the report of each region; `fused` has the functions."""
        planned = self._planned()
        known = {call.name for region, _ in planned for call in region.calls}
        found = []
        for number, (region, plan) in enumerate(planned):
            names = {call.name for call in region.calls}
            refused = [why for o, why in self._lost if o in names or (not number and o not in known)]
            made = [one for part in plan.parts for one in self._made(region, part, refused)]
            found.append(FusedRegion(region.name, replace(plan, parts=tuple(part for part, _ in made)),
                                     tuple(symbol for _, symbol in made), tuple(refused)))
        return found

    def _planned(self) -> list[tuple[Region, FusionPlan]]:
        """Return the regions with a plan each; every rKernel in them has code."""
        while True:
            outside = len(self.outside)
            found, unplanned = [], {}
            for region in self.regions:
                try:
                    found.append((region, self.plan(region)))
                except BadInput as error:
                    unplanned[region.name] = str(error)
            if len(self.outside) == outside:
                self.outside |= unplanned
                return found

    def plan(self, region: Region) -> FusionPlan:
        """Return a plan. Drops rKernels without code; a call with none left becomes `outside`."""
        functions = self.maker.functions
        resident = region.resident_bytes(self.maker.device.far.capacity_bytes)
        while True:
            calls = [call for call in region.calls if call.name not in self.outside]
            kept = [call.name for call in calls if region.kept.intersection(call.writes)]
            found = {call.name: functions.called(call) for call in calls}
            apart = {name: planned.apart for name, planned in found.items() if planned.apart}
            for name, why in apart.items():
                if (line := (name, self.maker.apart.format(name, why))) not in self._lost:
                    self._lost.append(line)
            plan = self.maker.plan(call_graph(calls, functions, self.graph.sizes), kept, resident, set(apart))
            lost = False
            for name, kernel in [k for part in plan.parts if part.program for k in part.kernels]:
                call = self.graph.by_name[name]
                planned = found[name]
                try:
                    self.maker.check(call, kernel)
                except CannotFuse as error:
                    lost = True
                    if planned.drop(kernel):
                        self._lost.append((name, str(error)))
                    if not planned.kernels:
                        self.outside[name] = f"none of its plans has code: {error.what}"
                except UnsupportedOperator as error:  # an equal function, of an earlier call, has lost its last one
                    lost, self.outside[name] = True, error.what
            if not lost:
                return plan

    def _made(self, region: Region, part: Part, refused: list[str]) -> list[tuple[Part, str]]:
        """Return a part and its function; without code, its halves and theirs, and in the end single operators."""
        if part.program is None:
            refused += [why for why in part.reasons if why not in refused]
            return [(part, "")]
        names = {o for o, _ in part.kernels}
        calls = tuple(call for call in region.calls if call.name in names)
        kept = self.graph.kept(calls)
        try:
            symbol = next(s for s in self.maker.symbols() if s not in self.taken)
            made = self.maker.make(symbol, part, calls, kept)
        except Exception as error:  # a kernel whose text is not understood must not stop the model
            why = error if isinstance(error, RollerError) else f"{type(error).__name__}: {last_line(error)}"
            refused.append(f"{', '.join(o for o, _ in part.kernels)}: {why}")
            if len(calls) == 1:
                return [(Part(part.plain, part.sequential_seconds, part.sequential_seconds), "")]
            half = len(calls) // 2
            found: list[tuple[Part, str]] = []
            for some in (calls[:half], calls[half:]):
                smaller = replace(region, calls=some, kept=self.graph.kept(some))
                found += [one for p in self.plan(smaller).parts for one in self._made(smaller, p, refused)]
            return found
        self.taken.add(symbol)
        self.fused.append(Fused(symbol, calls, made))
        if self.told is not None:
            self.told(symbol, part, calls, kept)
        return [(part, symbol)]
