"""The reference for a kernel's results: the unscheduled PrimFunc, built by TVM, on seeded random inputs."""

from __future__ import annotations

from typing import Any

from ..tir.nodes import nests
from .targets import exported

#: LLVM's level for the reference, which runs once or twice. SqueezeNet's 26 operators on an AVX-512 server take 12 s to
#: compile at level 3, TVM's own, and 4.5 s at this one; they run for 0.15 and 0.17 s.
OPT_LEVEL = 1


def reference_function(mod: Any, target: Any) -> Any:
    """Return a module's function with its own loops (`reference_module`), built by TVM for a target's CPU."""
    import tvm

    words = exported(target) if target.kind.name == "llvm" else {"kind": "llvm"}
    return tvm.compile(reference_module(mod), tvm.target.Target({**words, "opt-level": OPT_LEVEL}))["main"]


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
    except Exception:  # TVM's errors of a schedule, or nests that are no blocks: one loop after the other then
        return mod
    return schedule.mod


def default_module(mod: Any, target: Any) -> Any:
    """Return a module scheduled by TVM's defaults: unchanged on a CPU, dlight's schedules on a GPU."""
    if target.kind.name == "llvm":
        return mod
    from tvm.s_tir import dlight

    with target:
        # Copied: the pass changes the module that it is given.
        return dlight.ApplyDefaultSchedule(*gpu_rules())(type(mod)(dict(mod.functions_items())))


def gpu_rules() -> list[Any]:
    """Return the dlight rules for unscheduled functions on a GPU, in the order in which they are tried."""
    from tvm.s_tir.dlight import gpu

    return [gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()]


def default_schedule(mod: Any, target: Any) -> Any:
    """`default_module` of a function as a schedule, whose trace a database can hold; None where no rule takes it.

    Examples
    --------
    >>> trace = default_schedule(tvm.IRModule({"main": func}), tvm.target.Target("llvm")).trace
    """
    from tvm import s_tir

    if target.kind.name == "llvm":
        schedule = s_tir.Schedule(mod)
        schedule.get_sblock("root", func_name="main")  # a database passes over records without an instruction
        return schedule
    with target:
        made = (rule.apply(mod["main"], target, False) for rule in gpu_rules())
        found = next((schedule for schedule in made if schedule), None)
    return found[0] if isinstance(found, list) else found
