"""Proofs of TensorIR functions: lowered by TVM's own passes to loops, memory and barriers, then to integer sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ..device import DeviceSpec
from ..schedules.levels import Levels, levels_of
from ..schedules.proofs import Proof, prove_lowered, verdict
from ..schedules.proofs.blocks import Blocks, blocks_of
from ..schedules.proofs.cases import Sizes
from ..schedules.proofs.read import read_kernel
from ..schedules.proofs.verdict import not_executed, without_reference
from ..tir.nodes import tensors_of
from ..tir.open_axes import is_open
from ..tools import tool
from .begins import with_begins
from .marking import around_stores, marked, unmarked
from .marks import PLANNED
from .modules import is_prim_func
from .size_checks import kernel_checks
from .structures import Function

_T = s_tir.transform


def loops_of(func: Any, target: Any) -> Any:
    """Return a function as loops over buffers that are as large as needed, with its barriers; nothing is flattened."""
    passes = [
        _T.CanonicalizeLoop(), _T.LowerCrossThreadReduction(), _T.LowerInitBlock(),
        _T.PlanAndUpdateBufferAllocationLocation(), _T.ConvertBlocksToOpaque(), _T.LiftThreadBinding(),
        _T.ManifestSharedMemoryLocalStage(), _T.CompactBufferAllocation(), _T.LowerAutoCopy(), _T.UnifyThreadBinding(),
        _T.LowerMatchBuffer(), _T.StmtSimplify(), _T.InjectSoftwarePipeline(), _T.LowerOpaqueBlock(),
        _T.StmtSimplify(), _T.ThreadSync("shared"), _T.ThreadSync("shared.dyn"),
    ]  # fmt: skip
    with target:
        module = tvm.IRModule({"main": func.with_attr("target", target)})
        return tvm.transform.Sequential(passes)(module)["main"]


def prove(
    func: Any, original: Any, target: Any, device: DeviceSpec | None = None, name: str = "", checks: Sequence[str] = ()
) -> Proof:  # fmt: skip
    """Return the proof of a scheduled function.

    Parameters
    ----------
    func : PrimFunc
        Scheduled, by Roller or by anyone.
    original : PrimFunc or None
        The same before it was scheduled: outputs have to come from the same inputs.
    target : Target
        Where it runs.
    checks : sequence of str
        Conditions that open sizes meet, in words: ``p + n <= 2048``.

    Examples
    --------
    >>> prove(schedule.mod["main"], func, target).answer
    'proven'
    """
    host = tvm.target.Target("llvm")
    reference = None if original is None else loops_of(original, host)
    lowered, blocks = with_instances(func, original, target)
    own, begins = with_begins(lowered)
    begun = (own, begins) if begins else None
    return prove_lowered(lowered, reference, device, name, Sizes(rules=tuple(checks)), blocks=blocks, begun=begun)


def with_instances(func: Any, original: Any, target: Any) -> tuple[Any, Blocks | None]:
    """Return a scheduled function lowered, its stores marked, and the blocks before its schedule.

    Where these are of another form, or TVM lowers marked functions to others, there are no marks.
    """
    lowered, blocks = loops_of(func, target), None if original is None else blocks_of(original)
    if blocks is None:
        return lowered, None
    own = around_stores(loops_of(marked(func, blocks), target))
    return (own, blocks) if tvm_ffi.structural_equal(unmarked(own), lowered, map_free_vars=True) else (lowered, None)


def levels(func: Any, target: Any) -> Levels:
    """Return the four levels of a scheduled function, in isl's notation.

    Examples
    --------
    >>> print(levels(schedule.mod["main"], target).storage)
    { a[o0, o1] -> global[32o0 + o1] : 0 <= o0 <= 15 and 0 <= o1 <= 31; ... }
    """
    return levels_of(read_kernel(loops_of(func, target), folds=False))


def prove_module(before: Any, after: Any, target: Any, device: DeviceSpec) -> dict[str, str]:
    """Return what is proven of each PrimFunc of a scheduled module; equal ones are proven once.

    Parameters
    ----------
    before, after : IRModule
        Before and after it was scheduled; functions are told by their names.

    Raises
    ------
    RefutedKernel, WrongAnswer
        A function is wrong, by its proof or, if that is undecided, by an execution.
    """
    originals = {str(var.name_hint): func for var, func in before.functions_items() if is_prim_func(func)}
    found, checks = {}, kernel_checks(before)
    for var, func in after.functions_items():
        if is_prim_func(func):
            name = str(var.name_hint)
            marked = any(func.attrs.get(mark) for mark in PLANNED)
            original = None if marked or name not in originals else Function(originals[name])
            own = func.attrs.get("target", target)
            found[name] = _proven(Function(func), original, own, device, name, checks.get(name, ()))
    return found


def _proven(
    func: Function, original: Function | None, target: Any, device: DeviceSpec, name: str, checks: tuple[str, ...]
) -> str:  # fmt: skip
    # Equal functions may have other names for their sizes, and so other checks.
    extents = (extent for buffer in tensors_of(func.func) for extent in buffer.shape)
    sizes = tuple(str(extent.name) for extent in extents if isinstance(extent, tirx.Var))
    proof = _proof(func, original, str(target), device, checks, sizes)

    def execute() -> Any:
        if original is None:
            return not_executed()
        if is_open(original.func):
            if target.kind.name != "llvm":
                return not_executed("its sizes are open")
            return tool("roller_check.open_kernels").check_open(original.func, func.func, checks)
        return tool("roller_check.relax_plans").check_scheduled(original.func, func.func, target)

    return verdict(replace(proof, kernel=name), execute)


@lru_cache(maxsize=1024)  # networks repeat themselves, and so do builds of one network
def _proof(
    func: Function, original: Function | None, target: str, device: DeviceSpec, checks: tuple[str, ...],
    _sizes: tuple[str, ...],
) -> Proof:  # fmt: skip
    unscheduled = original.func if original else None
    found = prove(func.func, unscheduled, tvm.target.Target(target), device, checks=checks)
    if original is not None:
        return found
    return without_reference(found)
