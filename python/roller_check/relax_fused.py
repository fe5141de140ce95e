"""Fused kernels of a Relax module as OpenCL on PoCL."""

from __future__ import annotations

from typing import Any

from roller_check import relax_plans
from roller_check.check import Checked
from roller_check.fused import OnPocl, OwnLoops, require_gpu_and_pocl
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import RollerError
from roller_tvm.rammer.functions import Call, Planned
from roller_tvm.relax.fuse_rtasks import rtask_graph
from roller_tvm.relax.rtask_fusion import Fusion, GpuKernels, fused
from roller_tvm.relax.tasks import reduction_terms
from roller_tvm.tir.nodes import parameters
from roller_tvm.tuning.numerics import shape_of


def check_fusion_on_pocl(
    mod: Any, target: Any = None, device: DeviceSpec | str | None = None, policy: str = "horizontal",
    launch: str = "stream", top: int = 10, tf32: bool = False,
) -> dict[str, Checked | RollerError]:  # fmt: skip
    """Execute every fused kernel of a module in OpenCL, and compare it with its operators as TVM computes them.

    Parameters
    ----------
    mod, target, device, policy, launch, top, tf32
        As for `FuseRTasks`. With the default policy no block waits for another, as OpenCL needs it.

    Returns
    -------
    dict of str to Checked or RollerError
        The result of each function that `FuseRTasks` makes; see `together.witnessed`.

    Raises
    ------
    TargetError
        It is no GPU's.
    ToolchainError
        There is no PoCL.
    """
    graph = rtask_graph(mod, target, device, top, tf32)
    require_gpu_and_pocl(graph.device, graph.target.kind.name)
    witness = OnPocl(graph.functions, own_loops)
    fused(graph.mod, GpuKernels(graph.functions, policy, launch), Fusion(graph.device), witness)
    return witness.found


def own_loops(_planned: Planned, call: Call) -> OwnLoops:
    """Return a function by its unscheduled loops."""
    known = [(shape_of(p), str(p.dtype)) for p in parameters(call.func)]
    results = range(len(known) - call.outputs, len(known))
    return OwnLoops(tuple(known), relax_plans.own_loops(call.func, results), reduction_terms(call.func))


__all__ = ["check_fusion_on_pocl"]
