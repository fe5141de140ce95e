"""Fused kernels of a Relax module as OpenCL on PoCL."""

from __future__ import annotations

from typing import Any

import tvm

from ..device import DeviceSpec
from ..emulate import Checked
from ..emulate.together import Arrays
from ..errors import RollerError
from ..rammer.functions import Call, Planned
from ..rammer.on_pocl import OnPocl, OwnLoops, require_gpu_and_pocl
from ..tir.nodes import parameters
from ..tuning.numerics import shape_of
from .fuse_rtasks import rtask_graph
from .reference import reference_module
from .rtask_fusion import Fusion, GpuKernels, fused
from .tasks import reduction_terms


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
        The result of each function that `FuseRTasks` makes; see `emulate.together.witnessed`.

    Raises
    ------
    TargetError
        It is no GPU's.
    ToolchainError
        There is no PoCL.

    Examples
    --------
    >>> found = check_fusion_on_pocl(model.mod, "cuda -arch=sm_80")  # doctest: +SKIP
    >>> [name for name, result in found.items() if isinstance(result, WrongAnswer)]  # doctest: +SKIP
    []
    """
    graph = rtask_graph(mod, target, device, top, tf32)
    require_gpu_and_pocl(graph.device, graph.target.kind.name)
    witness = OnPocl(graph.functions, own_loops)
    fused(graph.mod, GpuKernels(graph.functions, policy, launch), Fusion(graph.device), witness)
    return witness.found


def own_loops(_planned: Planned, call: Call) -> OwnLoops:
    """Return a function by its unscheduled loops."""
    plain = reference_module(tvm.IRModule({"main": call.func.with_attr("global_symbol", "main")}))
    cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    kernel = tvm.compile(plain, target=tvm.target.Target({"kind": "llvm", "mcpu": str(cpu)}))
    known = [(shape_of(p), str(p.dtype)) for p in parameters(call.func)]

    def compute(arrays: Arrays) -> Arrays:
        made = [tvm.runtime.empty(shape, dtype) for shape, dtype in known[len(known) - call.outputs :]]
        kernel(*map(tvm.runtime.tensor, arrays), *made)
        return [m.numpy() for m in made]

    return OwnLoops(tuple(known), compute, reduction_terms(call.func))


__all__ = ["check_fusion_on_pocl"]
