"""Proofs of TE schedules: lowered by TVM's own passes to loops, memory and barriers, then to integer sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.schedules.levels import Levels, levels_of
from roller_tvm.schedules.proofs import Proof, prove_lowered, verdict
from roller_tvm.schedules.proofs.read import read_kernel
from roller_tvm.schedules.proofs.verdict import not_executed, without_reference
from roller_tvm.tools import tool

#: Bytes to which StorageFlatten aligns.
_LINE = 64


def loops_of(schedule: Any, args: Sequence[Any]) -> Any:
    """Return a te.Schedule as loops over flat buffers that are as large as needed, with its barriers."""
    import tvm
    from tvm.driver.build_module import schedule_to_module

    passes = [
        tvm.tir.transform.InjectPrefetch(), tvm.tir.transform.StorageFlatten(_LINE), tvm.tir.transform.Simplify(),
        tvm.tir.transform.ThreadSync("shared"),
    ]  # fmt: skip
    return tvm.transform.Sequential(passes)(schedule_to_module(schedule, list(args), "main"))["main"]


def prove(schedule: Any, args: Sequence[Any], device: DeviceSpec | None = None, name: str = "") -> Proof:
    """Return the proof of a te.Schedule, held against the same outputs without one.

    Parameters
    ----------
    schedule : te.Schedule
    args : sequence of te.Tensor
        Arguments of the compiled function.

    Examples
    --------
    >>> prove(schedule, args).answer
    'proven'
    """
    from tvm import te

    outputs = [t.op for t in args if not isinstance(t.op, te.PlaceholderOp)]
    reference = loops_of(te.create_schedule(outputs), args)
    return replace(_proof(_Loops(loops_of(schedule, args)), _Loops(reference), device), kernel=name)


def levels(schedule: Any, args: Sequence[Any]) -> Levels:
    """Return the four levels of a te.Schedule, in isl's notation.

    Examples
    --------
    >>> print(levels(schedule, args).schedule)
    { b_[i] -> [0, i] : 0 <= i <= 7 }
    """
    return levels_of(read_kernel(loops_of(schedule, args), flat=True, folds=False))


def prove_alone(schedule: Any, args: Sequence[Any], device: DeviceSpec, name: str) -> str:
    """Return what is proven of a kernel that was never without its schedule."""
    proof = prove_lowered(loops_of(schedule, args), None, device, name, flat=True)
    return verdict(without_reference(proof), not_executed)


class _Loops:
    """Lowered loops that equal others of the same structure, whatever they are called."""

    def __init__(self, func: Any) -> None:
        self.func = func.without_attr("global_symbol")

    def __hash__(self) -> int:
        import tvm

        return int(tvm.ir.structural_hash(self.func))

    def __eq__(self, other: object) -> bool:
        import tvm

        return isinstance(other, _Loops) and bool(tvm.ir.structural_equal(self.func, other.func))


@lru_cache(maxsize=1024)
def _proof(loops: _Loops, reference: _Loops, device: DeviceSpec | None) -> Proof:
    return prove_lowered(loops.func, reference.func, device, flat=True)


def prove_kernels(states: Mapping[str, tuple[Any, Any]], target: Any, device: DeviceSpec) -> dict[str, str]:
    """Return what is proven of each kernel of a build.

    Parameters
    ----------
    states : mapping
        Kernel -> its ComputeDAG and its State.

    Raises
    ------
    RefutedKernel, WrongAnswer
        A kernel is wrong, by its proof or, if that is undecided, by an execution.
    """
    found = {}
    for name, (dag, state) in states.items():
        schedule, args = dag.apply_steps_from_state(state)
        check = partial(_checked, schedule, args, target, float(dag.flop_ct))
        found[name] = verdict(prove(schedule, args, device, name), check)
    return found


def _checked(schedule: Any, args: Sequence[Any], target: Any, flops: float) -> Any:
    return tool("roller_check.relay_plans").check_schedule(schedule, args, target, flops)
