"""Makers: they plan rOperators for a kind of device, and make the code of a part of a plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from itertools import count
from typing import Any

from ..codegen.host_code import HostCode
from ..device import DeviceSpec
from ..errors import RollerError, last_line
from .cpu_region import plan_regions
from .cuda_functions import CannotFuse
from .dialect import CUDA, Dialect
from .functions import Call, CodeFunctions, Functions, Planned
from .fused_kernel import FusedKernel, OperatorCode, check_intermediates, fuse, refuse_waits
from .fusion_plan import FusionPlan, Part
from .roperator import DataFlowGraph, RKernel
from .wavefront import plan_graph


class Maker(ABC):
    """Plans and makes functions of many rTasks for one kind of device."""

    #: Text of the refusal to run an operator (the first value) side by side with others, and why.
    apart = "{}: {}"

    def __init__(self, functions: Functions) -> None:
        self.functions = functions

    @property
    def device(self) -> DeviceSpec:
        return self.functions.device

    @abstractmethod
    def plan(self, graph: DataFlowGraph, kept: Collection[str], resident: int, apart: Collection[str]) -> FusionPlan:
        """Return a plan; see ``wavefront.plan_graph``, and ``cpu_region.plan_regions`` for `apart`."""

    @abstractmethod
    def make(self, symbol: str, part: Part, calls: Sequence[Call], kept: Collection[str]) -> Any:
        """Return a part's function; raise ``CannotFuse`` if it has no code.

        Parameters
        ----------
        part : Part
            A part with a program.
        calls : sequence of Call
            Calls of the part, in the graph's order.
        kept : collection of str
            Tensors that they write and others read.
        """

    @abstractmethod
    def check(self, call: Call, kernel: RKernel) -> None:
        """Raise ``CannotFuse`` if an rKernel of a call has no code."""

    def symbols(self) -> Iterator[str]:
        """Yield names for functions."""
        return (f"rtasks_{n}" for n in count())


class KernelMaker(Maker):
    """Kernels of calls, on their own and fused; the code of equal functions is generated once.

    Parameters
    ----------
    policy, launch
        See ``wavefront.plan_graph``.
    """

    def __init__(
        self, functions: CodeFunctions, policy: str = "best", launch: str = "stream", dialect: Dialect = CUDA
    ) -> None:  # fmt: skip
        super().__init__(functions)
        self.code_of = functions
        self.policy, self.launch, self.dialect = policy, launch, dialect
        self._made: dict[tuple[int, int], tuple[RKernel, tuple[str, HostCode] | CannotFuse]] = {}

    def plan(self, graph: DataFlowGraph, kept: Collection[str], resident: int, apart: Collection[str]) -> FusionPlan:
        return plan_graph(graph, self.device, self.policy, self.launch, kept, resident)

    def check(self, call: Call, kernel: RKernel) -> None:
        self.code(call, kernel)

    def make(self, symbol: str, part: Part, calls: Sequence[Call], kept: Collection[str]) -> Any:
        return self.fused(symbol, part, calls, kept)

    def code(self, call: Call, kernel: RKernel) -> OperatorCode:
        """Return a call's kernels for one rKernel.

        Raises
        ------
        CannotFuse
            If the plan's steps do not apply to the function, or TVM makes no kernels of it; names the call.
        """
        planned = self.functions.called(call)
        key = id(planned), id(kernel)
        if key not in self._made:
            self._made[key] = kernel, self._generated(planned, call.name, kernel)
        made = self._made[key][1]
        if isinstance(made, CannotFuse):
            raise made
        read = [t for argument, t in zip(planned.arguments, call.tensors, strict=True) if argument is not None]
        return OperatorCode(*made, tuple(read), call.outputs)

    def _generated(self, planned: Planned, name: str, kernel: RKernel) -> tuple[str, HostCode] | CannotFuse:
        try:
            made = self.code_of.generate(planned, kernel, self.dialect)
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
        part : Part
            A part with a program.
        calls : sequence of Call
            Calls of the part, or of a larger graph: tensors that others of them read are kept.
        kept : collection of str
            Tensors that are read elsewhere.

        Raises
        ------
        CannotFuse
        """
        if part.program is None:
            raise ValueError("only a part with a program is one kernel")
        refuse_waits(name, part.program.waits, self.dialect)
        inside = {operator for operator, _ in part.kernels}
        by_name = {call.name: call for call in calls}
        outside = {t for c in calls if c.name not in inside for t in c.reads}
        codes = {operator: self.code(by_name[operator], kernel) for operator, kernel in part.kernels}
        return fuse(name, part.program, codes, self.device, {*kept, *outside}, self.dialect)


class RegionMaker(Maker):
    """Operators side by side in one parallel region of a CPU."""

    def check(self, call: Call, kernel: RKernel) -> None:
        """Do nothing: the loops were checked when the function was planned."""

    def plan(self, graph: DataFlowGraph, kept: Collection[str], resident: int, apart: Collection[str]) -> FusionPlan:
        return plan_regions(graph, self.device, kept, resident, apart)
