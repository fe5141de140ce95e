"""PrimFuncs fused by rTasks: planned by ``roller_tvm.rammer``, their CUDA taken from TVM's code generator."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ..device import DeviceSpec
from ..emulate.host import HostCode
from ..errors import UsageError
from ..lower import lower
from ..plan import construct
from ..rammer import DataFlowGraph, Edge, FusionPlan, Part, ROperator, plan_graph, rkernels
from ..rammer.code import FusedKernel, OperatorCode, fuse
from ..rammer.device_code import CannotFuse
from .apply import apply_steps_tir
from .emulated import generated
from .read import TirReading, read_prim_func


@dataclass(frozen=True)
class Call:
    """A PrimFunc called in a graph.

    Parameters
    ----------
    name : str
        Unique in the graph.
    func : tvm.tirx.PrimFunc
        Not scheduled yet.
    tensors : tuple of str
        The graph's tensor for each parameter; the last ones are written.
    outputs : int
    """

    name: str
    func: Any
    tensors: tuple[str, ...]
    outputs: int = 1


@dataclass(frozen=True)
class FusedCalls:
    """A graph of calls as kernels.

    Parameters
    ----------
    plan : FusionPlan
    kernels : tuple of (Part, FusedKernel or tuple of OperatorCode)
        In an order in which they may run; a part that stays unfused has its operators' own kernels.
    refused : tuple of str
        Why parts that were to be fused are not.
    """

    plan: FusionPlan
    kernels: tuple[tuple[Part, FusedKernel | tuple[OperatorCode, ...]], ...]
    refused: tuple[str, ...]

    @property
    def launches(self) -> int:
        return sum(1 if isinstance(code, FusedKernel) else sum(len(c.host.launches) for c in code)
                   for _, code in self.kernels)


def fuse_calls(
    calls: Sequence[Call], device: DeviceSpec, target: Any, kept: Collection[str] = (), policy: str = "best",
    launch: str = "stream", top: int = 10,
) -> FusedCalls:  # fmt: skip
    """Plan a graph of PrimFuncs and make its kernels.

    Parameters
    ----------
    calls : sequence of Call
        In an order in which they may run.
    device : DeviceSpec
    target : tvm.target.Target or str
        For cuda, or the architecture alone.
    kept : collection of str
        Tensors that are read outside of the graph; those that no call reads are kept anyway.
    policy, launch
        See ``rammer.plan_graph``.
    top : int
        Plans a function, of which the fastest and the most efficient are rKernels.

    Raises
    ------
    UnsupportedOperator
        A function that Roller cannot plan, by its name: leave it out of the graph.
    """
    readings: dict[str, TirReading] = {}
    operators = []
    writer: dict[str, tuple[str, str]] = {}  # of a tensor: the call, and the stage of it
    known: dict[int, tuple[TirReading, tuple[Any, ...]]] = {}
    for call in calls:
        if id(call.func) not in known:
            reading = read_prim_func(call.func, call.name)
            known[id(call.func)] = reading, rkernels(construct(reading.expression, device, top).plans, device)
        reading, kernels = known[id(call.func)]
        readings[call.name] = reading
        arguments = reading.arguments if len(reading.arguments) == len(call.tensors) else ("",) * len(call.tensors)
        inputs = [Edge(argument, *writer[tensor]) for argument, tensor in zip(arguments, call.tensors, strict=True)
                  if tensor in writer]
        operators.append(ROperator(call.name, kernels, tuple(inputs)))
        for argument, tensor in list(zip(arguments, call.tensors, strict=True))[len(call.tensors) - call.outputs :]:
            if tensor in writer:
                raise UsageError(f"'{tensor}' is written by '{writer[tensor][0]}' too", where=f"call '{call.name}'",
                                 remedy="give each result a tensor of its own")
            writer[tensor] = call.name, argument
    plan = plan_graph(DataFlowGraph(tuple(operators)), device, policy, launch)
    by_name = {call.name: call for call in calls}
    made: dict[tuple[int, int], tuple[str, HostCode]] = {}

    def code(name: str, kernel: Any) -> OperatorCode:
        call = by_name[name]
        key = (id(call.func), id(kernel))
        if key not in made:
            schedule = apply_steps_tir(call.func, readings[name], lower(kernel.plan))
            made[key] = generated(schedule, target)
        source, host = made[key]
        return OperatorCode(source, host, call.tensors, call.outputs)

    kernels_: list[tuple[Part, FusedKernel | tuple[OperatorCode, ...]]] = []
    refused = []
    for number, part in enumerate(plan.parts):
        inside = {name for name, _ in part.kernels}
        outside = {t for c in calls if c.name not in inside for t in c.tensors[: len(c.tensors) - c.outputs]}
        codes = {name: code(name, kernel) for name, kernel in part.kernels}
        if part.program:
            try:
                kernels_.append((part, fuse(f"rtasks_{number}", part.program, codes, device, {*kept, *outside})))
                continue
            except CannotFuse as err:
                refused.append(str(err))
        kernels_.append((part, tuple(codes.values())))
    return FusedCalls(plan, tuple(kernels_), tuple(refused))
