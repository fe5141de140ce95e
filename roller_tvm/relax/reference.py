"""What a kernel's answer is compared with: the unscheduled PrimFunc, built by TVM, on seeded random inputs."""

from __future__ import annotations

from typing import Any

from ..tir.nodes import nests


def reference_module(mod: Any) -> Any:
    """The module's own loops, the outermost independent one in parallel, the last dimension innermost.

    No decision of ours is in it: nothing is split, staged or computed elsewhere.
    """
    from tvm import s_tir

    schedule = s_tir.Schedule(mod)
    try:
        blocks = schedule.get_child_blocks(schedule.get_sblock("root", func_name="main"))
        for nest, block in zip(nests(mod["main"]), blocks, strict=True):
            loops = {str(schedule.get(loop).loop_var.name): loop for loop in schedule.get_loops(block)}
            spatial = [loops[label] for _, label in nest.spatial if label in loops]
            reduce = [loops[label] for _, label in nest.reduce if label in loops]
            if reduce and len(spatial) > 1:
                schedule.reorder(*spatial[:-1], *reduce, spatial[-1])
            outer = next((s for s in spatial[:-1] or spatial if int(schedule.get(s).extent) > 1), None)
            if outer is not None:
                schedule.parallel(outer)
    except Exception:  # one after the other then
        return mod
    return schedule.mod


def default_module(mod: Any, target: Any) -> Any:
    """What TVM makes of a module that nobody scheduled: on a CPU nothing, on a GPU dlight's schedules."""
    if target.kind.name == "llvm":
        return mod
    from tvm.s_tir import dlight

    rules = (dlight.gpu.Matmul(), dlight.gpu.GEMV(), dlight.gpu.Reduction(), dlight.gpu.GeneralReduction(),
             dlight.gpu.Fallback())  # fmt: skip
    with target:
        # Copied: the pass changes the module that it is given.
        return dlight.ApplyDefaultSchedule(*rules)(type(mod)(dict(mod.functions_items())))
