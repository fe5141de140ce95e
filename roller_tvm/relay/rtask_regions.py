"""Relay's fused functions side by side in one parallel region of a CPU, as one function of TIR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te
from roller_tvm.device.known import estimate
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.planner.construction import RankedPlan
from roller_tvm.planner.lower import lower
from roller_tvm.planner.plan_cache import plan_cache
from roller_tvm.rammer import TaskProgram
from roller_tvm.rammer.cpu_region import Loops, region_kernel, region_phases
from roller_tvm.rammer.functions import Planned
from roller_tvm.relay.candidates import packed_operands
from roller_tvm.relay.rtask_functions import RelayFunctions
from roller_tvm.te import TeReading, read_te


@dataclass(frozen=True)
class Scheduled:
    """A computation with its plan for a CPU."""

    program: TeProgram
    plan: RankedPlan

    def lowered(self) -> Any:
        import tvm

        schedule, arguments = apply_steps_te(self.program, lower(self.plan.plan))
        return tvm.lower(schedule, arguments, name="main")["main"]


class RegionFunctions(RelayFunctions):
    """Fused functions by Roller's fastest plan for a CPU; the handle of each is a `Scheduled`."""

    def planned(
        self, program: TeProgram, arguments: tuple[str | None, ...], reading: TeReading
    ) -> Planned:  # fmt: skip
        """Return a computation with its one rKernel: a phase per loop nest, an rTask per iteration of its loop."""
        best = plan_cache().construct(reading.expression, self.device, 1).best
        made, nests, apart = Scheduled(program, best), (), ""
        try:
            nests = Loops.of(made.lowered().body, reading.expression.name).nests
            apart = self._packed(program, best.seconds)
        except UnsupportedOperator as error:
            apart = error.what
        return Planned(made, arguments, (region_kernel(nests, best.seconds, self.device),), apart)

    def _packed(self, program: TeProgram, seconds: float) -> str:
        """Return why an operator is faster alone, with its weights packed by ``relay.build``; '' if it is not."""
        import tvm

        if not tvm.transform.PassContext.current().config.get("relay.backend.use_auto_scheduler", False):
            return ""
        free = packed_operands(SimpleNamespace(ops=list(program.ops.values())))
        if not free:
            return ""
        reading = read_te(list(program.tensors), constants=free)
        packed = plan_cache().construct(reading.expression, self.device, 1).best.seconds
        if packed < seconds * (1 - estimate("least_gain")):
            return (f"with its weights packed it takes {packed * 1e6:.1f} us, {seconds * 1e6:.1f} us without, "
                    "and relay.build packs those of its own functions alone")
        return ""


def merged(
    name: str, program: TaskProgram, members: Sequence[tuple[str, Scheduled, tuple[int, ...]]],
    specs: Sequence[tuple[tuple[int, ...], str]],
) -> str:  # fmt: skip
    """Return a module with the operators merged into one function, as JSON.

    Parameters
    ----------
    members : sequence of (operator, Scheduled, tensors)
        Tensors are positions among the function's parameters.
    specs : sequence of (shape, dtype)
        Shapes and dtypes of the function's parameters.
    """
    import tvm
    from tvm import tir

    handles = [tir.Var(f"p{n}", "handle") for n in range(len(specs))]
    buffers = [tir.decl_buffer(shape, dtype, f"buffer{n}") for n, (shape, dtype) in enumerate(specs)]
    allocated: list[Any] = []
    nests: dict[str, tuple[Any, ...]] = {}
    for operator, computation, places in members:
        # One computation may be there twice: every variable anew.
        func = tir.stmt_functor.renew_defs(computation.lowered())
        data = {func.buffer_map[p].data: buffers[place].data for p, place in zip(func.params, places, strict=True)}
        found = Loops.of(tir.stmt_functor.substitute(func.body, data), operator)
        allocated += found.allocated
        nests[operator] = found.nests

    def ranged(nest: Any, start: Any, extent: Any) -> Any:
        # A loop from 0, as TVM's passes and its code generator expect.
        body = tir.stmt_functor.substitute(nest.body, {nest.loop_var: nest.loop_var + start + nest.min})
        return tir.For(nest.loop_var, tir.const(0, nest.loop_var.dtype), extent, tir.ForKind.SERIAL, body)

    phases = region_phases(nests, program, tir, ranged)
    body = phases[0] if len(phases) == 1 else tir.SeqStmt(phases)
    for one in reversed(allocated):
        body = tir.Allocate(one.buffer_var, one.dtype, one.extents, one.condition, body, one.annotations)
    made = tir.PrimFunc(handles, body, None, dict(zip(handles, buffers, strict=True)))
    made = made.with_attr({"global_symbol": name, "tir.noalias": True, "from_legacy_te_schedule": True})
    return str(tvm.ir.save_json(tvm.IRModule({name: made})))
