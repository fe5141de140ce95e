"""The Relax line (apache-tvm 0.25 and later): the pass, tuning, and what MetaSchedule needs of Roller."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import NoTvm
from ..tools import tool
from ..tvm_env import import_relax_tvm, line, use_all_cores

#: Name -> module that has it; imported when it is asked for, so that each costs only what it needs.
_LAZY = {
    "Buckets": "dynamic",
    "ConcatInPlace": "concat_in_place",
    "EdgeVectors": "rewrites",
    "FoldScales": "folding",
    "GroupNorms": "group_norms",
    "GroupedProducts": "grouped",
    "FuseRTasks": "fuse_rtasks",
    "PlanLayout": "layout",
    "MovedParts": "moved_parts",
    "PowersAsProducts": "powers",
    "PrefetchPanels": "rewrites",
    "ResultsInPlace": "results_in_place",
    "RollerSpace": "components",
    "RollerStrategy": "components",
    "ScheduleWithRoller": "schedule",
    "StackTiles": "rewrites",
    "SumsAsAdditions": "sums",
    "UnalignedInputs": "alignment",
    "VectorMath": "rewrites",
    "build": "pipeline",
    "check_fusion_on_pocl": "roller_check.relax_fused",
    "load_model": "importers",
    "prepare": "pipeline",
    "roller_pipeline": "pipeline",
    "rtask_graph": "fuse_rtasks",
    "tune": "tuning",
    "tune_relax": "metaschedule",
    "tune_tir": "metaschedule",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    home = _LAZY[name]
    return getattr(tool(home) if "." in home else import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])


def _register() -> None:
    """``relax.get_pipeline("roller")``, whichever of TVM and this package is imported first."""
    if line() != "relax":
        return
    try:
        tvm = import_relax_tvm()
    except NoTvm:  # whoever needs it is told
        return
    if not hasattr(tvm, "relax"):  # a runtime without a compiler
        return
    from tvm.relax.pipeline import PIPELINE_MAP, register_pipeline

    def roller(**options: Any) -> Any:
        return import_module(f"{__name__}.pipeline").roller_pipeline(**options)

    if "roller" not in PIPELINE_MAP:
        register_pipeline("roller")(roller)


use_all_cores()
_register()

__all__ = [  # noqa: F822
    "Buckets",
    "ConcatInPlace",
    "EdgeVectors",
    "FoldScales",
    "FuseRTasks",
    "GroupNorms",
    "GroupedProducts",
    "MovedParts",
    "PlanLayout",
    "PrefetchPanels",
    "ResultsInPlace",
    "RollerSpace",
    "RollerStrategy",
    "ScheduleWithRoller",
    "StackTiles",
    "SumsAsAdditions",
    "UnalignedInputs",
    "VectorMath",
    "build",
    "check_fusion_on_pocl",
    "load_model",
    "prepare",
    "roller_pipeline",
    "rtask_graph",
    "tune",
    "tune_relax",
    "tune_tir",
]
