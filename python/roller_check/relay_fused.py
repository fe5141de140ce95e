"""Runs a Relay model's fused kernels as OpenCL on PoCL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roller_check import relay_plans
from roller_check.check import Checked
from roller_check.fused import OnPocl, OwnLoops, require_gpu_and_pocl
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import RollerError
from roller_tvm.rammer.functions import Call, Planned
from roller_tvm.relay.fuse_rtasks import GpuKernels, ModelGraph, fused, prepared, target_and_device
from roller_tvm.relay.rtask_functions import RelayFunctions
from roller_tvm.tuning.numerics import shape_of
from roller_tvm.tvm_env import import_relay_tvm


def check_fusion_on_pocl(
    mod: Any, target: Any, device: DeviceSpec | str | None = None, params: Mapping[str, Any] | None = None,
    policy: str = "horizontal", launch: str = "stream", top: int = 10,
) -> dict[str, Checked | RollerError]:  # fmt: skip
    """Execute every fused kernel of a model as OpenCL, and compare it with TVM's own results of its operators.

    Parameters
    ----------
    mod, target, device, params, policy, launch, top
        See `FuseRTasks`; for a GPU. With the default policy no block waits for another, as OpenCL needs it.

    Returns
    -------
    dict of str to Checked or RollerError
        The result of each function that `FuseRTasks` makes; see `together.witnessed`.

    Raises
    ------
    TargetError
        The target is not a GPU.
    ToolchainError
        There is no PoCL.
    """
    import_relay_tvm("fusing rTasks of a Relay model")
    made_target, spec = target_and_device(target, device)
    require_gpu_and_pocl(spec, made_target.kind.name)
    mod = prepared(mod, params, made_target)
    graph = ModelGraph.of(mod)
    functions = RelayFunctions(spec, str(made_target.arch), top)
    witness = OnPocl(functions, own_loops)
    fused(mod, graph, GpuKernels(functions, graph, policy, launch), witness)
    return witness.found


def own_loops(planned: Planned, _call: Call) -> OwnLoops:
    """Return a computation by TVM's own schedule."""
    tensors = planned.handle.tensors
    shapes = tuple((shape_of(t), str(t.dtype)) for t in tensors)
    return OwnLoops(shapes, relay_plans.own_loops(tensors), relay_plans.terms_of(tensors))


__all__ = ["check_fusion_on_pocl"]
