"""Small operators of a CPU side by side in one parallel region: scheduled functions of a module, merged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax

from ..codegen.tensorir_packing import constant_parameters
from ..device import DeviceSpec
from ..errors import UnsupportedOperator
from ..rammer import FusionPlan
from ..tir.candidates import make_candidates
from ..tir.rtasks import RFunction
from ..tir.side_by_side import ScheduledCall, merge_calls
from .blocks import Block, Region
from .fused_block import FusedCall

#: What TVM's ``SplitLayoutRewritePreproc`` calls a function whose constants it packed.
PACKED = "_prepacked"
_REMEDY = "give FuseRTasks the module before its functions are scheduled"


class ScheduledFunctions:
    """Scheduled PrimFuncs by what is predicted of them, for `read_blocks`.

    Parameters
    ----------
    seconds : mapping of str to float
        Function, as it was called before its constants were packed -> seconds a call.
    """

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._seconds = seconds

    def seconds(self, name: str) -> float:
        """Return the time of one call in seconds.

        Raises
        ------
        UnsupportedOperator
            Nothing is known of it.
        """
        found = self._seconds.get(name.removesuffix(PACKED))
        if found is None:
            raise UnsupportedOperator("how long it takes is not predicted", name, _REMEDY)
        return found

    def of(self, func: Any, name: str = "") -> RFunction | None:
        """None, where a function may be in a plan; see `RFunctions.of`."""
        if not (func.attrs and func.attrs.get("tirx.is_scheduled")):
            raise UnsupportedOperator("it is not scheduled", name, _REMEDY)
        self.seconds(name)
        return None


def predicted_seconds(mod: Any, device: DeviceSpec, known: Mapping[str, float]) -> dict[str, float]:
    """Return the predicted time of a module's functions in seconds, with launches; omits those that cannot be planned.

    Parameters
    ----------
    mod : tvm.IRModule
        Before it is scheduled.
    device : DeviceSpec
    known : mapping of str to float
        Of functions that need not be looked at.
    """
    found = dict(known)
    for var, func in mod.functions_items():
        name = str(var.name_hint)
        if type(func).__name__ == "PrimFunc" and name not in found:
            plans = make_candidates(func, device, 1, constant_parameters(func), name).plans
            if plans:
                found[name] = plans[0].ranked.seconds
    return found


def merge_region(
    mod: Any, block: Block, region: Region, functions: ScheduledFunctions, device: DeviceSpec
) -> tuple[Any, FusionPlan, tuple[str, ...], list[FusedCall], tuple[str, ...]]:
    """The calls of a region that run side by side as functions of the module.

    Returns
    -------
    (module, plan, function of each part or '', their calls, refusals)
    """
    names = {c.name: str(b.binding.value.args[0].name_hint) for b in block.bounds if (c := b.call)}
    calls = [ScheduledCall(c.name, c.func, c.tensors, functions.seconds(names[c.name]), c.outputs)
             for c in region.calls]  # fmt: skip
    merged = merge_calls(calls, device, region.kept)
    builder = relax.BlockBuilder(mod)
    made, fused = [], []
    for part, one in merged.steps:
        if one is None:
            made.append("")
            continue
        inside = {o for o, _ in part.kernels}
        var = builder.add_func(one.func.without_attr("global_symbol"), "side_by_side")
        split = len(one.tensors) - one.outputs
        mine = tuple(c for c in region.calls if c.name in inside)
        fused.append(FusedCall(mine, var, one.tensors[:split], one.tensors[split:]))
        made.append(str(var.name_hint))
    return builder.get(), merged.plan, tuple(made), fused, merged.refused


__all__ = ["ScheduledFunctions", "merge_region", "predicted_seconds"]
