"""FuseRTasks: the operators of a Relax module scheduled together, each plan one kernel (Rammer, OSDI'20)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm

from ..device import DeviceSpec, load_device
from ..errors import BadInput
from ..rammer import DataFlowGraph, FusionPlan, plan_graph
from ..rammer.functions import call_graph
from ..rammer.fuse import Region
from ..rammer.makers import KernelMaker
from .cuda import cuda_target
from .dataflow import Block
from .devices import device_of, find_target
from .lowered import NotFused, require_lowered
from .pipeline import prepare, schedule
from .rtask_functions import RFunctions
from .rtask_fusion import Fusion, RTaskFusion, fusers, in_dataflow


@tvm.transform.module_pass(opt_level=0, name="FuseRTasks")
class FuseRTasks:
    """Make one kernel of operators that are predicted to take less time so, and put it in the place of their calls.

    The operators of each dataflow block are planned by ``roller_tvm.rammer``; where one cannot be (an extern call, a
    shape known at run time, no kernel) it stays as it is, and no plan reaches across it and back. What a plan hands on
    within itself lies in one workspace, a tensor of the model like any other; plans keep no more alive than
    ``rammer.memory.MemoryRule`` allows. A plan's kernel must not run twice at the same time.

    Put it after ``FuseTIR`` (a module that is not legalized yet is prepared first) and before the functions that are
    left are scheduled. On a CPU, where operators run side by side in one parallel region, it schedules the functions
    itself.

    A kernel whose blocks wait for each other counts their steps in the loaded module: run it in one stream at a time.
    All of its blocks have to run at once: on a device of fewer units than planned for it fails after some seconds. A
    target names an architecture; where your card has fewer units than others of it (A30, L4, a MIG slice), name the
    card, or describe it in a spec file: `device`.

    Parameters
    ----------
    target : Target, dict or str, optional
        By default the target in whose scope the pass runs.
    device : DeviceSpec or str, optional
        By default the one that stands for the target's architecture.
    policy : str
        See ``rammer.plan_graph``. With 'horizontal' no block waits for another: such kernels may run in any streams,
        and ``check_fusion_on_pocl`` executes them.
    launch : str, optional
        How the model's kernels are launched, 'stream' or 'graph' (a CUDA graph): what fusing saves. By default as
        ``relax.backend.use_cuda_graph`` says.
    top : int
        Plans a function, of which its rKernels are chosen.
    tf32 : bool
        See `ScheduleWithRoller`.

    Attributes
    ----------
    report : Fusion
        What the last run did.

    Raises
    ------
    TargetError
        A target that is neither cuda nor a CPU.
    TvmLineError
        A TVM before 0.27, for cuda.

    Examples
    --------
    >>> with tvm.target.Target({"kind": "cuda", "arch": "sm_80"}):
    ...     mod = FuseRTasks()(mod)
    """

    def __init__(
        self, target: Any = None, device: DeviceSpec | str | None = None, policy: str = "best",
        launch: str | None = None, top: int = 10, tf32: bool = False,
    ) -> None:  # fmt: skip
        self.fusion = RTaskFusion(target, device, policy, launch, top, tf32)

    @property
    def report(self) -> Fusion:
        return self.fusion.report

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """Return the module with its plans as functions."""
        target = find_target(self.fusion.target)
        if target.kind.name == "llvm":
            return schedule(lowered(mod, target), target, device=self.fusion.device, fuse_rtasks=self)[0]
        return self.fusion.kernels(lowered(mod, target) if target.kind.name == "cuda" else mod)

    def merged(self, mod: Any, seconds: Mapping[str, float]) -> Any:
        """Return a module for a CPU with functions merged; see `RTaskFusion.merged`."""
        return self.fusion.merged(mod, seconds)


@dataclass(frozen=True, eq=False)
class RTaskGraph:
    """The calls of a module that can be planned, and those that cannot.

    Parameters
    ----------
    mod : tvm.IRModule
        Legalized and fused.
    functions : RFunctions
        The rKernels of the PrimFuncs.
    outside : tuple of (name, reason)
        The bindings that cannot be planned.
    """

    device: DeviceSpec
    target: Any
    mod: Any
    blocks: tuple[Block, ...]
    functions: RFunctions
    regions: tuple[Region, ...]
    outside: tuple[tuple[str, str], ...]

    def graph(self, region: Region) -> DataFlowGraph:
        """Return a region as rOperators."""
        return call_graph(region.calls, self.functions)

    def plans(self, policy: str = "best", launch: str = "stream") -> tuple[FusionPlan, ...]:
        """Return a plan for each region; nothing is built.

        Parameters
        ----------
        policy, launch
            See ``rammer.plan_graph``.
        """
        kept = [{c.name for c in r.calls if r.kept.intersection(c.writes)} for r in self.regions]
        return tuple(plan_graph(self.graph(region), self.device, policy, launch, names)
                     for region, names in zip(self.regions, kept, strict=True))

    def __str__(self) -> str:
        calls = sum(len(r.calls) for r in self.regions)
        lines = [f"{calls} operators in {len(self.regions)} graphs on {self.device.name}, {len(self.outside)} outside"]
        return "\n".join([*lines, *(f"  {name}: outside, {reason}" for name, reason in self.outside)])


def rtask_graph(
    mod: Any, target: Any = None, device: DeviceSpec | str | None = None, top: int = 10, tf32: bool = False
) -> RTaskGraph:  # fmt: skip
    """Return the graphs of rTasks in a Relax module; nothing is built.

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
    >>> plan = rtask_graph(mod, device="v100").plans(launch="graph")[0]
    >>> plan.launches < plan.sequential_launches
    True
    """
    target = _target(target, device)
    spec = device_of(device, target)
    mod = in_dataflow(lowered(mod, target))
    functions = RFunctions(spec, top, tf32, target)
    found = fusers(mod, KernelMaker(functions))
    regions = tuple(region for _, fuser in found for region in fuser.regions)
    outside = tuple(one for block, fuser in found for one in block.outside(fuser.outside))
    return RTaskGraph(spec, target, mod, tuple(block for block, _ in found), functions, regions, outside)


def _target(target: Any, device: DeviceSpec | str | None) -> Any:
    if target is None and device is not None and tvm.target.Target.current(allow_none=True) is None:
        spec = load_device(device) if isinstance(device, str) else device
        if spec.kind == "gpu":
            return cuda_target(spec.arch, spec)
        target = {"kind": "llvm", "num-cores": spec.units}
    return find_target(target)


def lowered(mod: Any, target: Any) -> Any:
    """Return a module legalized and fused; one that calls PrimFuncs only stays as it is, however they were fused."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotFused)
            require_lowered(mod)
    except BadInput:
        return prepare(mod, target)
    return mod


__all__ = ["FuseRTasks", "Fusion", "RTaskGraph", "rtask_graph"]
