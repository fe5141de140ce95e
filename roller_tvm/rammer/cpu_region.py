"""vEUs of a CPU: worker threads. Operators that leave some idle run side by side in one parallel region.

Threads of a parallel region cannot wait for one another cheaply, so a plan holds operators of one wave: phase by phase
their chunks are shared out over the threads, each phase a region. An operator that keeps all threads busy has nothing
to gain and stays on its own.

Scheduled loop nests become rTasks too: statements of either TVM line are read by their kind and fields, which both
share; nothing of TVM is imported.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ..device import DeviceSpec
from ..device.known import estimate
from ..errors import UnsupportedOperator
from ..te.numbering import PARALLEL
from .fusion_plan import FusionPlan, Part
from .memory import Live, MemoryRule, in_order, peak_bytes, size
from .roperator import DataFlowGraph, Phase, RKernel, ROperator
from .rtask import RTask
from .simulation import simulate
from .task_program import ProgramBuilder, TaskProgram
from .veu import VDevice

POLICY = "side by side"
#: Most chunks of an operator to share out one by one; with more, no thread is left idle and nothing can be gained.
CHUNKS_MOST = 4096


def plan_regions(
    graph: DataFlowGraph, device: DeviceSpec, kept: Collection[str] = (), resident_bytes: int = 0,
    apart: Collection[str] = (),
) -> FusionPlan:  # fmt: skip
    """Plan the operators of each wave in as few parallel regions as are predicted to pay.

    An operator joins the group with which the region gains the most, if the gain exceeds the model's error
    (``least_gain``, a share of the time of both); else it stays on its own.

    Parameters
    ----------
    graph : DataFlowGraph
        Graph of rKernels for the CPU: an rTask is a chunk of a parallel loop.
    kept, resident_bytes
        See ``plan_graph``.
    apart : collection of str
        Operators that cannot run with others.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.rammer import Phase
    >>> one = RKernel("k", (Phase(2, 4e-6, 4e-6),), 4e-6)
    >>> graph = DataFlowGraph(tuple(ROperator(f"gate{n}", (one,)) for n in range(4)))
    >>> plan = plan_regions(graph, load_device("cpu"))
    >>> plan.launches, plan.sequential_launches
    (1, 4)
    """
    memory = MemoryRule.of(graph, device, kept, resident_bytes)
    live = Live(graph, frozenset(kept))
    parts: list[Part] = []
    for wave in graph.waves:
        many = {o.name: n for o in wave if (n := max(p.tasks for p in o.fastest.phases)) > CHUNKS_MOST}
        free = [o for o in wave if o.name not in apart and o.name not in many]
        for group in [*_groups(free, device), *([o] for o in wave if o not in free)]:
            names = [o.name for o in group]
            together = len(group) > 1 and live.alone(names) <= memory.limit_bytes
            reasons: tuple[str, ...] = ()
            if len(group) > 1 and not together:
                reasons = (f"{', '.join(names)}: {size(live.alone(names))} would be alive, {memory}",)
            elif names[0] in many:
                reasons = (f"{names[0]}: its {many[names[0]]} chunks leave no thread idle",)
            parts += [_together(group, device)] if together else [_apart(o, device, reasons) for o in group]
            for some in [names] if together else [[n] for n in names]:
                live.add(some)
                live.close()
    peak = peak_bytes(graph, [group for part in parts for group in part.launched], kept)
    if peak > memory.limit_bytes:  # by the order of waves; in the graph's own nothing is ever too much
        parts = [_apart(graph.by_name[name], device, (f"one by one: in waves {size(peak)} are alive, {memory}",))
                 for name in in_order(graph)]
        peak = memory.peak_bytes
    return FusionPlan(device.name, POLICY, "stream", tuple(parts), peak, memory.peak_bytes, memory.limit_bytes)


def _groups(wave: Sequence[ROperator], device: DeviceSpec) -> list[list[ROperator]]:
    """Return the operators of a wave in groups to run side by side; the longest operators are placed first."""
    least = estimate("least_gain")
    groups: list[tuple[float, list[ROperator]]] = []
    for operator in sorted(wave, key=lambda o: -region_seconds([o.fastest], device)):
        single = region_seconds([operator.fastest], device)
        gains = []
        for n, (seconds, group) in enumerate(groups):
            both = region_seconds([o.fastest for o in (*group, operator)], device)
            gains.append((seconds + single - both, n, both))
        gain, n, both = max(gains, default=(0.0, 0, 0.0))
        if gains and gain > least * (groups[n][0] + single):
            groups[n] = both, [*groups[n][1], operator]
        else:
            groups.append((single, [operator]))
    place = {o.name: n for n, o in enumerate(wave)}
    return [sorted(group, key=lambda o: place[o.name]) for _, group in groups]


def region_seconds(kernels: Sequence[RKernel], device: DeviceSpec) -> float:
    """Return the predicted seconds of rKernels side by side: opening their regions, and the longest thread of each.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.rammer import Phase
    >>> device = replace(load_device("v100"), units=2, launch_overhead_us=1.0)
    >>> one = RKernel("k", (Phase(1, 4e-6, 4e-6),), 4e-6)
    >>> round(region_seconds([one], device) * 1e6), round(region_seconds([one, one], device) * 1e6)
    (4, 5)
    """
    total = 0.0
    for number in range(max(len(k.phases) for k in kernels)):
        phases = [k.phases[number] for k in kernels if number < len(k.phases)]
        if len(kernels) > 1 or phases[0].tasks > 1:  # what has one chunk, alone, opens no region
            total += device.launch_overhead_us * 1e-6
        total += max(seconds for seconds, _ in shares(phases_of(kernels, number), device.units))
    return total


def phases_of(kernels: Sequence[RKernel], number: int) -> list[tuple[int, float]]:
    """Return (chunks, seconds of one) of each rKernel's phase of this number; no chunks if it has no such phase."""
    return [(k.phases[number].tasks, k.phases[number].alone_seconds) if number < len(k.phases) else (0, 0.0)
            for k in kernels]


def shares(work: Sequence[tuple[int, float]], threads: int) -> list[tuple[float, tuple[int, ...]]]:
    """Return, for each thread, its seconds and how many chunks of each kind it runs.

    The longest chunks come first, each on the thread that is free first.

    Examples
    --------
    >>> shares([(1, 3.0), (4, 1.0)], 2)
    [(4.0, (1, 1)), (3.0, (0, 3))]
    """
    heap = [(0.0, t) for t in range(threads)]
    counts = [[0] * len(work) for _ in range(threads)]
    for kind in sorted(range(len(work)), key=lambda n: -work[n][1]):
        for _ in range(work[kind][0]):
            free, t = heap[0]
            counts[t][kind] += 1
            heapq.heapreplace(heap, (free + work[kind][1], t))
    seconds = dict((t, s) for s, t in heap)
    return [(seconds[t], tuple(counts[t])) for t in range(threads)]


def _apart(operator: ROperator, device: DeviceSpec, reasons: tuple[str, ...] = ()) -> Part:
    kernel = operator.fastest
    seconds = region_seconds([kernel], device)
    return Part(((operator.name, kernel),), seconds, seconds, reasons=reasons)


def _together(group: Sequence[ROperator], device: DeviceSpec) -> Part:
    chosen = tuple((o.name, o.fastest) for o in group)
    program = region_program(chosen, device)
    apart = sum(region_seconds([k], device) for _, k in chosen)
    threads = device.units
    idle = ", ".join(f"{o} {min(threads, max(p.tasks for p in k.phases))}" for o, k in chosen)
    return Part(chosen, simulate(program).makespan, apart, program,
                (f"of {threads} threads they use, one by one: {idle}",))


def region_program(chosen: tuple[tuple[str, RKernel], ...], device: DeviceSpec) -> TaskProgram:
    """Return the rTasks of rKernels side by side on a CPU's threads, with a barrier between one phase and the next."""
    kernels = [k for _, k in chosen]
    vdevice = VDevice.of(device, kernels)
    builder = ProgramBuilder(vdevice, chosen)
    count = [0] * vdevice.veus
    before: dict[int, int] = {}
    for number in range(max(len(k.phases) for k in kernels)):
        given = shares(phases_of(kernels, number), device.units)
        first = [0] * len(kernels)
        last: dict[int, int] = {}
        for v, (_, counts) in enumerate(given):
            for n, (operator, _) in enumerate(chosen):
                for task in range(first[n], first[n] + counts[n]):
                    builder.append(RTask(operator, number, task), v)
                    if before:
                        builder.wait_all(RTask(operator, number, task), before)
                    last[v] = count[v]
                    count[v] += 1
                first[n] += counts[n]
        before = last
    return builder.build()


_REMEDY = "it stays a function of its own"
_NESTS = ("For", "BufferStore", "IfThenElse")


def is_parallel(statement: Any) -> bool:
    """Return whether a statement is a loop whose iterations are shared out over threads."""
    return type(statement).__name__ == "For" and int(statement.kind) == PARALLEL


def check_nest(statement: Any, name: str) -> None:
    """Raise ``UnsupportedOperator`` if a statement is no nest whose iterations can be shared out."""
    kind = type(statement).__name__
    if kind not in _NESTS:
        raise UnsupportedOperator(f"expected a loop, found a {kind}", name, _REMEDY)
    if _parallel_inside(statement.body if is_parallel(statement) else statement):
        raise UnsupportedOperator("one of its parallel loops is not the outermost", name, _REMEDY)
    if is_parallel(statement) and not hasattr(statement.extent, "value"):
        raise UnsupportedOperator("the extent of its parallel loop is not a number", name, _REMEDY)


def _parallel_inside(statement: Any) -> bool:
    if statement is None or is_parallel(statement):
        return statement is not None
    kind = type(statement).__name__
    if kind == "SeqStmt":
        return any(map(_parallel_inside, statement.seq))
    if kind == "IfThenElse":
        return _parallel_inside(statement.then_case) or _parallel_inside(statement.else_case)
    return _parallel_inside(getattr(statement, "body", None))


def points(statement: Any) -> float:
    """Return how many statements a nest executes in all; a loop of unknown extent counts once."""
    kind = type(statement).__name__
    if kind == "For":
        return points(statement.body) * float(getattr(statement.extent, "value", 1))
    if kind == "SeqStmt":
        return sum(map(points, statement.seq))
    if kind == "IfThenElse":
        return max(points(statement.then_case), points(statement.else_case))
    if kind in ("BufferStore", "Evaluate"):
        return 1.0
    body = getattr(statement, "body", None)
    return points(body) if body is not None else 0.0


@dataclass(frozen=True)
class Loops:
    """A scheduled function's allocations, and its loop nests in order."""

    allocated: tuple[Any, ...]
    nests: tuple[Any, ...]

    @classmethod
    def of(cls, body: Any, name: str) -> Loops:
        """Return the loops of a function's body.

        Raises
        ------
        UnsupportedOperator
            They cannot be shared out to threads; names the operator.
        """
        allocated, nests = [], []
        todo = [body]
        while todo:
            statement = todo.pop(0)
            kind = type(statement).__name__
            if kind == "SeqStmt":
                todo[:0] = list(statement.seq)
            elif kind in ("Allocate", "AllocBuffer"):
                allocated.append(statement)
                todo[:0] = [statement.body] if hasattr(statement, "body") else []
            else:
                check_nest(statement, name)
                nests.append(statement)
        if not nests:
            raise UnsupportedOperator("it computes nothing", name, _REMEDY)
        return cls(tuple(allocated), tuple(nests))


def region_kernel(nests: Sequence[Any], seconds: float, device: DeviceSpec) -> RKernel:
    """Return an rKernel with a phase per nest; without any nest the operator stays on its own.

    The time is divided by the work of the nests.

    Parameters
    ----------
    nests : sequence of statement
        Loop nests, one after the other.
    seconds : float
        Time of all nests on their own, launches included.
    """
    if not nests:
        return RKernel("roller", (Phase(1, seconds, seconds),), seconds)
    chunks = [int(n.extent) if is_parallel(n) else 1 for n in nests]
    net = max(seconds - device.launch_overhead_us * 1e-6 * sum(c > 1 for c in chunks), 0.0)
    rounds = [-(-c // device.units) for c in chunks]
    # On the threads that it has, by the busiest of them.
    weights = [points(n) / c * r for n, c, r in zip(nests, chunks, rounds, strict=True)]
    total = sum(weights) or 1.0
    times = [net * w / total / r for w, r in zip(weights, rounds, strict=True)]
    return RKernel("roller", tuple(Phase(c, t, t) for c, t in zip(chunks, times, strict=True)), net)


def region_phases(
    nests: Mapping[str, Sequence[Any]], program: TaskProgram, tir: Any, ranged: Callable[[Any, Any, Any], Any]
) -> list[Any]:
    """Return one parallel loop per phase, with an iteration per worker thread.

    A thread runs as many iterations of each operator's own parallel loop as the program gives it, all of a serial
    nest, or nothing of it.

    Parameters
    ----------
    nests : mapping of str to sequence of statement
        Operator -> its loop nests.
    tir : module
        ``tvm.tir`` or ``tvm.tirx``.
    ranged : function
        (loop, start, extent) -> the loop over these iterations.
    """

    def share(nest: Any, counts: Sequence[int], thread: Any) -> Any:
        if not is_parallel(nest):
            return tir.IfThenElse(thread == counts.index(1), nest, None)
        kind = str(getattr(nest.loop_var, "ty", nest.loop_var).dtype)
        first = [0, *accumulate(counts)]
        return ranged(nest, by_thread(first[:-1], thread, kind, tir), by_thread(counts, thread, kind, tir))

    phases = []
    for number in range(max(map(len, nests.values()))):
        thread = tir.Var("veu", "int32")
        lists = [share(own[number], tasks_by_thread(program, operator, number), thread)
                 for operator, own in nests.items() if number < len(own)]
        inner = lists[0] if len(lists) == 1 else tir.SeqStmt(lists)
        phases.append(tir.For(thread, 0, program.device.veus, tir.ForKind.PARALLEL, inner))
    return phases


def tasks_by_thread(program: TaskProgram, operator: str, phase: int) -> list[int]:
    """Return the number of a phase's rTasks on each thread."""
    return [sum(isinstance(e, RTask) and e[:2] == (operator, phase) for e in entries) for entries in program.prog]


def by_thread(values: Sequence[int], thread: Any, kind: str, tir: Any) -> Any:
    """Return an expression for a thread's value: linear in the thread's number if possible, else a chain of selects.

    Parameters
    ----------
    thread : Var
        Number of the thread, int32.
    tir : module
        ``tvm.tir`` or ``tvm.tirx``.
    """
    number = thread.astype(kind) if kind != "int32" else thread
    step = values[1] - values[0] if len(values) > 1 else 0
    if all(v == values[0] + n * step for n, v in enumerate(values)):
        return number * tir.const(step, kind) + tir.const(values[0], kind) if step else tir.const(values[0], kind)
    result = tir.const(values[-1], kind)
    for n in reversed(range(len(values) - 1)):
        if values[n] != values[n + 1]:
            result = tir.Select(thread <= n, tir.const(values[n], kind), result)
    return result
