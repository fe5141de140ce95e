"""A Relax module as graphs of rTasks: the calls of each dataflow block, cut where something cannot be planned."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from ..device import DeviceSpec
from ..errors import BadInput
from ..rammer import Costs, DataFlowGraph, FusionPlan, Part, ROperator, plan_graph
from ..rammer.policy import plain_kernel
from ..tir.cuda import cuda_target
from ..tir.rtasks import Call, RFunctions, call_graph
from .blocks import Block, Region, read_blocks
from .devices import device_of, find_target
from .lowered import NotFused, require_lowered


@dataclass(frozen=True, eq=False)
class RTaskGraph:
    """The calls of a module that can be planned, and those that cannot.

    Parameters
    ----------
    device : DeviceSpec
    target : tvm.target.Target
    mod : tvm.IRModule
        Legalized and fused.
    blocks : tuple of Block
    functions : RFunctions
        The rKernels of the PrimFuncs.
    """

    device: DeviceSpec
    target: Any
    mod: Any
    blocks: tuple[Block, ...]
    functions: RFunctions

    @property
    def regions(self) -> tuple[Region, ...]:
        return tuple(region for block in self.blocks for region in block.regions)

    @property
    def outside(self) -> tuple[tuple[str, str], ...]:
        """The bindings that cannot be planned: (name, reason)."""
        return tuple(one for block in self.blocks for one in block.outside)

    def graph(self, region: Region) -> DataFlowGraph:
        """A region as rOperators."""
        return call_graph(region.calls, self.functions)

    def plan(
        self, region: Region, policy: str = "best", launch: str = "stream", resident_bytes: int = 0
    ) -> FusionPlan:  # fmt: skip
        """A plan for a region, nothing built; see ``rammer.plan_graph``."""
        kept = {c.name for c in region.calls if region.kept.intersection(c.tensors[len(c.tensors) - c.outputs :])}
        return plan_graph(self.graph(region), self.device, policy, launch, kept, resident_bytes)

    def plans(self, policy: str = "best", launch: str = "stream") -> tuple[FusionPlan, ...]:
        """A plan for each region.

        Parameters
        ----------
        policy, launch
            See ``rammer.plan_graph``.
        """
        return tuple(self.plan(region, policy, launch) for region in self.regions)

    def apart(self, call: Call, launch: str = "stream") -> Part:
        """A call that stays a function of its own."""
        costs = Costs.of(self.device, launch)
        operator = ROperator(call.name, self.functions.of(call.func, call.name).kernels)
        kernel = plain_kernel(operator, costs)
        seconds = kernel.seconds + len(kernel.phases) * costs.launch_seconds
        return Part(((call.name, kernel),), seconds, seconds)

    def __str__(self) -> str:
        calls = sum(len(r.calls) for r in self.regions)
        lines = [f"{calls} operators in {len(self.regions)} graphs on {self.device.name}, {len(self.outside)} outside"]
        return "\n".join([*lines, *(f"  {name}: outside, {reason}" for name, reason in self.outside)])


def rtask_graph(
    mod: Any, target: Any = None, device: DeviceSpec | str | None = None, top: int = 10, tf32: bool = False
) -> RTaskGraph:  # fmt: skip
    """The graphs of rTasks in a Relax module; nothing is built.

    Parameters
    ----------
    mod : tvm.IRModule
        As an importer gives it, its weights bound, or legalized and fused.
    target : Target, dict or str, optional
        By default the target in scope, or what the device runs.
    device : DeviceSpec or str, optional
        By default the one that follows from the target.
    top : int
        Plans a function, which are its rKernels.
    tf32 : bool
        See `ScheduleWithRoller`.

    Examples
    --------
    >>> graph = rtask_graph(model.mod, device="v100")  # doctest: +SKIP
    >>> print(graph.plans(launch="graph")[0])  # doctest: +SKIP
    13 kernels instead of 76 on v100 (list, launched from a graph): 241.0 us against 391.3 us predicted, 1.62x
    """
    target = _target(target, device)
    spec = device_of(device, target)
    mod = in_dataflow(lowered(mod, target))
    functions = RFunctions(spec, top, tf32)
    return RTaskGraph(spec, target, mod, tuple(read_blocks(mod, functions)), functions)


def _target(target: Any, device: DeviceSpec | str | None) -> Any:
    from ..device import load_device

    if target is None and device is not None and tvm.target.Target.current(allow_none=True) is None:
        spec = load_device(device) if isinstance(device, str) else device
        if spec.kind == "gpu":
            return cuda_target(spec.arch, spec)
        target = {"kind": "llvm", "num-cores": spec.units}
    return find_target(target)


def lowered(mod: Any, target: Any) -> Any:
    """A module legalized and fused; one that calls PrimFuncs only stays as it is, however they were fused."""
    from .pipeline import prepare

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotFused)
            require_lowered(mod)
    except BadInput:
        return prepare(mod, target)
    return mod


def in_dataflow(mod: Any) -> Any:
    """A module with its bindings in dataflow blocks, as far as they are pure."""
    return relax.transform.ConvertToDataflow()(mod)


__all__ = ["RTaskGraph", "in_dataflow", "lowered", "rtask_graph"]
