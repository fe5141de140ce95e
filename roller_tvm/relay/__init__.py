"""The Relay line's edge: operators of a Relay model planned, measured, recorded, built (TVM when used)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from roller_tvm.tools import tool
from roller_tvm.tvm_env import use_all_cores

if TYPE_CHECKING:
    from roller_tvm.relay.building import build
    from roller_tvm.relay.fuse_rtasks import FuseRTasks, GraphFusion, fused_sources, fusion_of
    from roller_tvm.relay.fused_codegen import register_fused_kernels
    from roller_tvm.relay.rewrites import EdgeVectors, PrefetchPanels, StackTiles, VectorMath, WideIndices
    from roller_tvm.relay.tuning import TunedTask, TuneResult, tune
    from roller_tvm.relay.winograd import use_winograd

__all__ = [
    "EdgeVectors", "FuseRTasks", "GraphFusion", "PrefetchPanels", "StackTiles", "TuneResult", "TunedTask", "VectorMath",
    "WideIndices", "build", "check_fusion_on_pocl", "fused_sources", "fusion_of", "register_fused_kernels", "tune",
    "use_winograd",
]  # fmt: skip

# Looked up when used: worker processes need nothing of the planner, and start sooner without it.
_HOME = {
    "build": "building",
    "check_fusion_on_pocl": "roller_check.relay_fused",
    "EdgeVectors": "rewrites",
    "FuseRTasks": "fuse_rtasks",
    "GraphFusion": "fuse_rtasks",
    "fused_sources": "fuse_rtasks",
    "fusion_of": "fuse_rtasks",
    "PrefetchPanels": "rewrites",
    "register_fused_kernels": "fused_codegen",
    "StackTiles": "rewrites",
    "tune": "tuning",
    "TuneResult": "tuning",
    "TunedTask": "tuning",
    "VectorMath": "rewrites",
    "WideIndices": "rewrites",
    "use_winograd": "winograd",
}


use_all_cores()


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME[name]
    module = tool(home) if "." in home else importlib.import_module(f"{__name__}.{home}")
    value = getattr(module, name)
    globals()[name] = value
    return value
