"""Proofs of TensorIR functions: lowered by TVM's own passes to loops, memory and barriers, then to integer sets."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir

from ..device import DeviceSpec
from ..schedules.proofs import Proof, prove_lowered

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


def prove(func: Any, original: Any, target: Any, device: DeviceSpec | None = None, name: str = "") -> Proof:
    """Return the proof of a scheduled function.

    Parameters
    ----------
    func : PrimFunc
        Scheduled, by Roller or by anyone.
    original : PrimFunc or None
        The same before it was scheduled: outputs have to come from the same inputs.
    target : Target
        Where it runs.

    Examples
    --------
    >>> prove(schedule.mod["main"], func, target).answer
    'proven'
    """
    host = tvm.target.Target("llvm")
    reference = None if original is None else loops_of(original, host)
    return prove_lowered(loops_of(func, target), reference, device, name)
