"""PrimFuncs fused by rTasks: planned by ``roller_tvm.rammer``, with CUDA from TVM's code generator."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..codegen.apply_tensorir import apply_steps_tir
from ..codegen.host_code import HostCode
from ..codegen.host_code_tensorir import generated, target_of
from ..device import DeviceSpec
from ..errors import RollerError, UnsupportedOperator, UsageError, last_line
from ..planner.lower import lower
from ..rammer import DataFlowGraph, Edge, FusionPlan, Part, RKernel, ROperator, plan_graph, planned_rkernels
from ..rammer.code import FusedKernel, OperatorCode, check_intermediates, fuse, refuse_waits
from ..rammer.device_code import CannotFuse
from ..rammer.dialect import CUDA
from ..rammer.opencl_code import OPENCL
from ..roller.features import NO_FEATURES, Features
from ..te.body import REMEDY
from .emulated import opencl_function
from .nodes import structural_hash, structurally_equal
from .read import TirReading, read_prim_func


@dataclass(frozen=True)
class Call:
    """A PrimFunc called in a graph.

    Parameters
    ----------
    name : str
        Name, unique in the graph.
    func : tvm.tirx.PrimFunc
        A function that is not scheduled yet.
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
        Kernels in an order in which they may run; an unfused part has its operators' own kernels.
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


@dataclass(eq=False)
class RFunction:
    """A PrimFunc read and planned.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
    reading : TirReading
    kernels : tuple of RKernel
        rKernels of its plans.
    """

    func: Any
    reading: TirReading
    kernels: tuple[RKernel, ...]


class RFunctions:
    """PrimFuncs as rOperators of a device; equal ones are read and planned once, whatever their names.

    Parameters
    ----------
    device : DeviceSpec
    top : int
        Plans per function; they are its rKernels.
    tf32 : bool
        See `plan.features.Features`.

    Examples
    --------
    >>> functions = RFunctions(device)  # doctest: +SKIP
    >>> functions.of(func, "conv1").kernels[0].name  # doctest: +SKIP
    'plan 0'
    """

    def __init__(self, device: DeviceSpec, top: int = 10, tf32: bool = False) -> None:
        self.device, self.top = device, top
        # Loops side by side on a CPU are merged as they are: no copies with layouts of their own.
        self.features = Features.of_tensor_ir(device, tf32) if device.kind == "gpu" else NO_FEATURES
        self._by_hash: dict[int, list[tuple[Any, RFunction | RollerError]]] = {}
        self._by_id: dict[int, tuple[Any, RFunction | RollerError]] = {}

    def of(self, func: Any, name: str = "") -> RFunction:
        """Return a function with its rKernels.

        Raises
        ------
        UnsupportedOperator
            If Roller cannot plan the function; names it.
        """
        if id(func) not in self._by_id:
            bare = func.without_attr("global_symbol") if func.attrs and "global_symbol" in func.attrs else func
            alike = self._by_hash.setdefault(structural_hash(bare), [])
            found = next((made for other, made in alike if structurally_equal(other, bare)), None)
            if found is None:
                found = self._made(func, name)
                alike.append((bare, found))
            self._by_id[id(func)] = func, found
        known = self._by_id[id(func)][1]
        if isinstance(known, RollerError):
            raise known
        if not known.kernels:
            raise UnsupportedOperator("none of its plans has code", name, REMEDY)
        return known

    def give_up(self, func: Any, kernel: RKernel) -> None:
        """Drop an rKernel that has no code; a function without rKernels cannot be planned."""
        found = self.of(func)
        found.kernels = tuple(k for k in found.kernels if k is not kernel)

    def _made(self, func: Any, name: str) -> RFunction | RollerError:
        try:
            reading = read_prim_func(func, name or None)
            for stage, told in reading.elsewhere.items():
                raise UnsupportedOperator(f"block '{stage}' writes {told}", name, "leave it a kernel of its own")
            kernels = planned_rkernels(reading.expression, self.device, self.top, self.features)
            return RFunction(func, reading, kernels)
        except RollerError as error:
            return error


def call_graph(calls: Sequence[Call], functions: RFunctions) -> DataFlowGraph:
    """Return calls of PrimFuncs as a graph of rOperators.

    Raises
    ------
    UnsupportedOperator
        If Roller cannot plan a function; names it: leave it out of the graph.
    UsageError
        If two calls write one tensor.

    Examples
    --------
    >>> plan_graph(call_graph(calls, RFunctions(device)), device)  # doctest: +SKIP
    """
    operators = []
    writer: dict[str, tuple[str, str]] = {}  # of a tensor: the call, and the stage of it
    for call in calls:
        found = functions.of(call.func, call.name)
        named = found.reading.arguments
        arguments = named if len(named) == len(call.tensors) else ("",) * len(call.tensors)
        if arguments is not named and len(found.reading.expression.stages) > 1:
            raise UnsupportedOperator("one of its blocks has several results, and it has further blocks", call.name,
                                      "leave it a kernel of its own")  # fmt: skip
        every = list(zip(arguments, call.tensors, strict=True))
        split = len(every) - call.outputs
        inputs = tuple(Edge(argument, *writer[tensor]) for argument, tensor in every[:split] if tensor in writer)
        operators.append(ROperator(call.name, found.kernels, inputs))
        for argument, tensor in every[split:]:
            if tensor in writer:
                raise UsageError(f"'{tensor}' is written by '{writer[tensor][0]}' too", where=f"call '{call.name}'",
                                 remedy="give each result a tensor of its own")
            writer[tensor] = call.name, argument
    return DataFlowGraph(tuple(operators))


def fuse_calls(
    calls: Sequence[Call], device: DeviceSpec, target: Any, kept: Collection[str] = (), policy: str = "best",
    launch: str = "stream", top: int = 10,
) -> FusedCalls:  # fmt: skip
    """Plan a graph of PrimFuncs and make its kernels.

    Parameters
    ----------
    calls : sequence of Call
        Calls in an order in which they may run.
    device : DeviceSpec
    target : tvm.target.Target or str
        Target for cuda, or just the architecture.
    kept : collection of str
        Tensors that are read outside of the graph; those that no call reads are kept anyway.
    policy, launch
        See ``rammer.plan_graph``.
    top : int
        Plans per function; the fastest and the most efficient of them are rKernels.

    Raises
    ------
    UnsupportedOperator
        If Roller cannot plan a function; names it: leave it out of the graph.
    """
    functions = RFunctions(device, top)
    plan = plan_graph(call_graph(calls, functions), device, policy, launch)
    maker = KernelMaker(functions, target)
    kernels: list[tuple[Part, FusedKernel | tuple[OperatorCode, ...]]] = []
    refused = []
    for number, part in enumerate(plan.parts):
        if part.program:
            try:
                kernels.append((part, maker.fused(f"rtasks_{number}", part, calls, kept)))
                continue
            except CannotFuse as err:
                refused.append(str(err))
        by_name = {call.name: call for call in calls}
        kernels.append((part, tuple(maker.code(by_name[name], kernel) for name, kernel in part.kernels)))
    return FusedCalls(plan, tuple(kernels), tuple(refused))


class KernelMaker:
    """Kernels of calls, on their own and fused; the code of equal functions is generated once.

    Parameters
    ----------
    functions : RFunctions
    target : tvm.target.Target, dict or str
        Target for cuda, or just the architecture; or ``emulated.OPENCL``.
    """

    def __init__(self, functions: RFunctions, target: Any) -> None:
        self.functions, self.target = functions, target
        self.dialect = OPENCL if target_of(target).kind.name == "opencl" else CUDA
        self._made: dict[tuple[int, int], tuple[RKernel, tuple[str, HostCode] | CannotFuse]] = {}

    def code(self, call: Call, kernel: RKernel) -> OperatorCode:
        """Return a call's kernels for one rKernel.

        Raises
        ------
        CannotFuse
            If the plan's steps do not apply to the function, or TVM makes no kernels of it; names the call.
        """
        found = self.functions.of(call.func, call.name)
        key = id(found), id(kernel)
        if key not in self._made:
            self._made[key] = kernel, self._generated(found, call.name, kernel)
        made = self._made[key][1]
        if isinstance(made, CannotFuse):
            raise made
        return OperatorCode(*made, call.tensors, call.outputs)

    def _generated(self, found: RFunction, name: str, kernel: RKernel) -> tuple[str, HostCode] | CannotFuse:
        import tvm

        assert kernel.plan is not None
        current = tvm.transform.PassContext.current()
        ahead = self.dialect is CUDA and any(program.choice("stages", 1) > 1 for program in kernel.plan.programs)
        config = {**current.config, **({"tirx.use_async_copy": True} if ahead else {})}
        try:
            with tvm.transform.PassContext(opt_level=current.opt_level, config=config):
                scheduled = apply_steps_tir(found.func, found.reading, lower(kernel.plan)).mod["main"]
                if self.dialect is OPENCL:
                    function = opencl_function(scheduled)
                    made = function.source, function.host
                else:
                    made = generated(scheduled, self.target)
                check_intermediates(kernel, made[1])
                return made
        except Exception as error:  # a defect of one recipe, or of TVM's lowering, must not stop the other operators
            what = error.what if isinstance(error, RollerError) else last_line(error)
            return CannotFuse(f"no code for its rKernel '{kernel.name}': {what}", where=f"operator '{name}'",
                              remedy="leave the operator a kernel of its own")

    def fused(self, name: str, part: Part, calls: Sequence[Call], kept: Collection[str] = ()) -> FusedKernel:
        """Return the one kernel of a plan's part.

        Parameters
        ----------
        name : str
            Name of the kernel.
        part : Part
            A part with a program.
        calls : sequence of Call
            Calls of the whole graph: tensors of the part that others read are kept.
        kept : collection of str
            Tensors that are read outside of the graph.

        Raises
        ------
        CannotFuse
        """
        if part.program is None:
            raise ValueError("only a part with a program is one kernel")
        refuse_waits(name, part.program.waits, self.dialect)
        inside = {name for name, _ in part.kernels}
        by_name: Mapping[str, Call] = {call.name: call for call in calls}
        outside = {t for c in calls if c.name not in inside for t in c.tensors[: len(c.tensors) - c.outputs]}
        codes = {name: self.code(by_name[name], kernel) for name, kernel in part.kernels}
        return fuse(name, part.program, codes, self.functions.device, {*kept, *outside}, self.dialect)
