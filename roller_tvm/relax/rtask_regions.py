"""Scheduled functions of a CPU side by side in one parallel region, as one PrimFunc."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import renew_defs, transform

from ..codegen.tensorir_packing import constant_parameters
from ..device import DeviceSpec
from ..errors import RollerError, UnsupportedOperator
from ..rammer import Part, TaskProgram
from ..rammer.cpu_region import Loops, region_kernel, region_phases
from ..rammer.functions import Call, Functions, Planned
from ..rammer.makers import RegionMaker
from ..tir.nodes import key, parameters
from .candidates import make_candidates
from .fused_calls import Made

#: What TVM's ``SplitLayoutRewritePreproc`` calls a function whose constants it packed.
PACKED = "_prepacked"
_REMEDY = "give FuseRTasks the module before its functions are scheduled"


class ScheduledFunctions(Functions):
    """Scheduled PrimFuncs, by the time that is predicted of them.

    Parameters
    ----------
    device : DeviceSpec
        The CPU.
    seconds : mapping of str to float
        Function, as it was called before its constants were packed -> seconds a call, with the parallel regions that
        it opens.
    """

    def __init__(self, device: DeviceSpec, seconds: Mapping[str, float]) -> None:
        super().__init__(device)
        self._seconds = seconds

    def digest(self, func: Any) -> int:
        return key(func)

    def same(self, func: Any, other: Any) -> bool:
        return key(func) == key(other)

    def reason(self, error: RollerError) -> str:
        return error.what + (f" ({error.where})" if error.where else "")

    def read(self, func: Any, name: str) -> Planned:
        if not (func.attrs and func.attrs.get("tirx.is_scheduled")):
            raise UnsupportedOperator("it is not scheduled", name, _REMEDY)
        seconds = self._seconds.get(name.removesuffix(PACKED))
        if seconds is None:
            raise UnsupportedOperator("how long it takes is not predicted", name, _REMEDY)
        nests, apart = (), ""
        try:
            nests = Loops.of(plain(func).body, name).nests
        except UnsupportedOperator as error:
            apart = error.what
        kernel = region_kernel(nests, seconds, self.device)
        return Planned(func, ("",) * len(parameters(func)), (kernel,), apart=apart)


def predicted_seconds(mod: Any, device: DeviceSpec, known: Mapping[str, float]) -> dict[str, float]:
    """Return the predicted time of a module's functions in seconds, with launches; omits those that cannot be planned.

    Parameters
    ----------
    mod : tvm.IRModule
        Before it is scheduled.
    known : mapping of str to float
        Seconds of functions that need not be looked at.
    """
    found = dict(known)
    for var, func in mod.functions_items():
        name = str(var.name_hint)
        if type(func).__name__ == "PrimFunc" and name not in found:
            plans = make_candidates(func, device, 1, constant_parameters(func), name).plans
            if plans:
                found[name] = plans[0].ranked.seconds
    return found


class CpuRegions(RegionMaker):
    """Makes one PrimFunc of functions side by side."""

    def make(self, symbol: str, part: Part, calls: Sequence[Call], kept: Collection[str]) -> Made:
        assert part.program is not None
        func = side_by_side(calls, part.program)
        return Made(func, tuple(t for c in calls for t in c.reads), tuple(t for c in calls for t in c.writes))

    def symbols(self) -> Iterator[str]:
        return (f"side_by_side{n or ''}" for n in count())


def plain(func: Any) -> Any:
    """Return the function without blocks."""
    return tvm.transform.Sequential([
        transform.LowerInitBlock(), transform.PlanAndUpdateBufferAllocationLocation(),
        transform.ConvertBlocksToOpaque(), transform.CompactBufferAllocation(), transform.LowerMatchBuffer(),
        transform.LowerOpaqueBlock(),
    ])(tvm.IRModule({"main": func}))["main"]  # fmt: skip


def side_by_side(calls: Sequence[Call], program: TaskProgram) -> Any:
    """Return calls that do not depend on each other as one function, marked as scheduled.

    Its parameters are the calls' inputs, repeated if several read one, then their results.

    Parameters
    ----------
    program : TaskProgram
        The chunks of each thread; an rTask is an iteration of a function's parallel loop.

    Raises
    ------
    UnsupportedOperator
        If the parallel loops of a function are not its outermost; names it.
    """
    inputs: list[Any] = []
    results: list[Any] = []
    allocated: list[Any] = []
    nests: dict[str, tuple[Any, ...]] = {}
    for call in calls:
        func = renew_defs(plain(call.func))  # one function may be called twice
        loops = Loops.of(func.body, call.name)
        inputs += list(func.params[: len(call.reads)])
        results += list(func.params[len(call.reads) :])
        allocated += loops.allocated
        nests[call.name] = loops.nests

    def ranged(nest: Any, start: Any, extent: Any) -> Any:
        return tirx.For(nest.loop_var, start + nest.min, extent, tirx.ForKind.SERIAL, nest.body)

    body = [*allocated, *region_phases(nests, program, tirx, ranged)]
    attrs: dict[str, Any] = {"tirx.noalias": True, "tirx.is_scheduled": True}
    own = calls[0].func.attrs or {}
    attrs |= {name: own[name] for name in ("target", "s_tir") if own.get(name) is not None}
    whole = body[0] if len(body) == 1 else tirx.SeqStmt(body)
    return tirx.PrimFunc([*inputs, *results], whole).with_attrs(attrs)
