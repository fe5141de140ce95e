"""Scheduled functions of a CPU as one: operators that do not depend on each other share one parallel region.

Planned by ``roller_tvm.rammer.regions``. The merged function has a ``parallel`` loop per phase, whose iterations are
the worker threads' lists: a thread runs as many iterations of each operator's parallel loop as the plan gives it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ..device import DeviceSpec
from ..errors import UnsupportedOperator, UsageError
from ..rammer import DataFlowGraph, Edge, FusionPlan, Part, ROperator, TaskProgram
from ..rammer.nests import by_thread, check_nest, is_parallel, region_kernel, tasks_by_thread
from ..rammer.regions import plan_regions
from ..te.numbering import dtype_of_node
from .nodes import parameters


@dataclass(frozen=True)
class ScheduledCall:
    """A scheduled PrimFunc called in a graph.

    Parameters
    ----------
    name : str
        Name, unique in the graph.
    func : tvm.tirx.PrimFunc
        A function scheduled for a CPU.
    tensors : tuple of str
        The graph's tensor for each parameter; the last ones are written.
    seconds : float
        Predicted time, with the parallel regions that it opens.
    outputs : int
    """

    name: str
    func: Any
    tensors: tuple[str, ...]
    seconds: float
    outputs: int = 1

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.tensors[: len(self.tensors) - self.outputs]

    @property
    def results(self) -> tuple[str, ...]:
        return self.tensors[len(self.tensors) - self.outputs :]


@dataclass(frozen=True)
class MergedCall:
    """Calls that became one.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        A function marked as scheduled.
    tensors : tuple of str
        The graph's tensor for each parameter: inputs (repeated if several calls read one), then results.
    outputs : int
        Number of tensors that it writes: the last ones.
    """

    func: Any
    tensors: tuple[str, ...]
    outputs: int


@dataclass(frozen=True)
class MergedCalls:
    """A graph of calls, some of them merged.

    Parameters
    ----------
    plan : FusionPlan
    steps : tuple of (Part, MergedCall or None)
        Parts in an order in which they may run; None if the part's calls stay as they are.
    refused : tuple of str
        Why functions were not considered.
    """

    plan: FusionPlan
    steps: tuple[tuple[Part, MergedCall | None], ...]
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Loops:
    """A function's statements: its allocations, and nests one after the other (a parallel one by its `For`)."""

    allocated: tuple[Any, ...]
    nests: tuple[Any, ...]


def merge_calls(calls: Sequence[ScheduledCall], device: DeviceSpec, kept: Collection[str] = ()) -> MergedCalls:
    """Plan which calls run side by side on a CPU's threads, and merge those.

    Parameters
    ----------
    calls : sequence of ScheduledCall
        Calls in an order in which they may run.
    device : DeviceSpec
        The CPU.
    kept : collection of str
        Tensors that are read outside of the graph although a call of it reads them too.

    Examples
    --------
    >>> merged = merge_calls(calls, load_device("cpu"))  # doctest: +SKIP
    >>> merged.plan.launches, merged.plan.sequential_launches  # doctest: +SKIP
    (41, 68)
    """
    writer: dict[str, str] = {}
    operators, refused = [], []
    loops: dict[str, _Loops] = {}
    known: dict[int, _Loops | str] = {}
    for call in calls:
        found = known.get(id(call.func))
        if found is None:
            try:
                found = known[id(call.func)] = _loops(call.func, call.name)
            except UnsupportedOperator as error:
                found = known[id(call.func)] = error.what
        if isinstance(found, str):
            refused.append(f"{call.name}: {found}")
        else:
            loops[call.name] = found
        inputs = tuple(Edge(t, writer[t]) for t in call.inputs if t in writer)
        size = sum(_bytes(p) for p in parameters(call.func)[len(call.inputs) :])
        kernel = region_kernel(found.nests if not isinstance(found, str) else (), call.seconds, device)
        operators.append(ROperator(call.name, (kernel,), inputs, size))
        for tensor in call.results:
            if tensor in writer:
                raise UsageError(f"'{tensor}' is written by '{writer[tensor]}' too", where=f"call '{call.name}'",
                                 remedy="give each result a tensor of its own")
            writer[tensor] = call.name
    apart = {call.name for call in calls} - set(loops)
    plan = plan_regions(DataFlowGraph(tuple(operators)), device, {writer[t] for t in kept if t in writer}, apart=apart)
    by_name = {call.name: call for call in calls}
    steps: list[tuple[Part, MergedCall | None]] = []
    for number, part in enumerate(plan.parts):
        names = [o for o, _ in part.kernels]
        made = None
        if part.program:
            made = side_by_side([by_name[n] for n in names], part.program, f"side_by_side_{number}")
        steps.append((part, made))
    return MergedCalls(plan, tuple(steps), tuple(refused))


def _bytes(buffer: Any) -> int:
    import tvm

    count = 1
    for extent in buffer.shape:
        count *= int(extent)
    bits = tvm.DataType(str(buffer.dtype)).bits
    return count * bits // 8


def _loops(func: Any, name: str) -> _Loops:
    """Return a scheduled function without its blocks, as nests.

    Raises
    ------
    UnsupportedOperator
    """
    return _nests(_plain(func), name)


def _plain(func: Any) -> Any:
    """Return the function without blocks."""
    import tvm
    from tvm.s_tir import transform

    return tvm.transform.Sequential([
        transform.LowerInitBlock(), transform.PlanAndUpdateBufferAllocationLocation(),
        transform.ConvertBlocksToOpaque(), transform.CompactBufferAllocation(), transform.LowerMatchBuffer(),
        transform.LowerOpaqueBlock(),
    ])(tvm.IRModule({"main": func}))["main"]  # fmt: skip


def _nests(plain: Any, name: str) -> _Loops:
    body = plain.body
    allocated, nests = [], []
    todo = list(body.seq) if type(body).__name__ == "SeqStmt" else [body]
    while todo:
        statement = todo.pop(0)
        kind = type(statement).__name__
        if kind == "SeqStmt":
            todo[:0] = list(statement.seq)
        elif kind == "AllocBuffer":
            allocated.append(statement)
        else:
            check_nest(statement, name)
            nests.append(statement)
    if not nests:
        raise UnsupportedOperator("it computes nothing", name, "it stays a function of its own")
    return _Loops(tuple(allocated), tuple(nests))


def side_by_side(calls: Sequence[ScheduledCall], program: TaskProgram, name: str) -> MergedCall:
    """Return calls that do not depend on each other as one function.

    Parameters
    ----------
    calls : sequence of ScheduledCall
    program : TaskProgram
        The chunks of each thread; an rTask is an iteration of a function's parallel loop.
    name : str
        Name of the function.

    Raises
    ------
    UnsupportedOperator
        If the parallel loops of a function are not its outermost; names it.
    """
    from tvm import tirx
    from tvm.s_tir import renew_defs

    inputs: list[Any] = []
    results: list[Any] = []
    read: list[str] = []
    written: list[str] = []
    allocated: list[Any] = []
    nests: list[tuple[Any, ...]] = []
    for call in calls:
        func = renew_defs(_plain(call.func))  # one function may be called twice
        loops = _nests(func, call.name)
        split = len(call.inputs)
        inputs += list(func.params[:split])
        results += list(func.params[split:])
        read += call.inputs
        written += call.results
        allocated += loops.allocated
        nests.append(loops.nests)
    threads = program.device.veus
    body = [*allocated]
    for number in range(max(map(len, nests))):
        thread = tirx.Var("veu", "int32")
        lists = []
        for call, own in zip(calls, nests, strict=True):
            if number < len(own):
                lists.append(_list_of(own[number], tasks_by_thread(program, call.name, number), thread, tirx))
        inner = lists[0] if len(lists) == 1 else tirx.SeqStmt(lists)
        body.append(tirx.For(thread, 0, threads, tirx.ForKind.PARALLEL, inner))
    whole = body[0] if len(body) == 1 else tirx.SeqStmt(body)
    attrs: dict[str, Any] = {"global_symbol": name, "tirx.noalias": True, "tirx.is_scheduled": True}
    target = (calls[0].func.attrs or {}).get("target")
    if target is not None:
        attrs["target"] = target
    func = tirx.PrimFunc([*inputs, *results], whole).with_attrs(attrs)
    if "s_tir" in (calls[0].func.attrs or {}):
        func = func.with_attr("s_tir", calls[0].func.attrs["s_tir"])
    return MergedCall(func, (*read, *written), len(written))


def _list_of(nest: Any, counts: Sequence[int], thread: Any, tirx: Any) -> Any:
    """Return a thread's part of a nest: its range of the parallel loop, all of a serial one, or nothing."""
    if not is_parallel(nest):
        return tirx.IfThenElse(thread == counts.index(1), nest, None)
    first = [0, *accumulate(counts)]
    kind = dtype_of_node(nest.loop_var)
    start = by_thread(first[:-1], thread, kind, tirx)
    extent = by_thread(counts, thread, kind, tirx)
    return tirx.For(nest.loop_var, start + nest.min, extent, tirx.ForKind.SERIAL, nest.body)
