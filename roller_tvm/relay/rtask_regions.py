"""Merges the scheduled loops of operators into one parallel region of a CPU.

The merged function has one parallel loop per phase, with one iteration per worker thread. A thread runs as many
iterations of each operator's own parallel loop as the plan gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from roller_tvm.codegen.apply_te import apply_steps_te
from roller_tvm.device.cpu_data import estimate
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.planner import construct
from roller_tvm.planner.construction import RankedPlan
from roller_tvm.planner.lower import lower
from roller_tvm.rammer import RKernel, TaskProgram
from roller_tvm.rammer.nests import by_thread, check_nest, is_parallel, region_kernel, tasks_by_thread
from roller_tvm.relay.candidates import packed_operands
from roller_tvm.relay.rtask_kernels import Computation, Computations
from roller_tvm.te import TeReading, read_te


@dataclass(frozen=True)
class Nests:
    """A lowered function's allocations and its loop nests, in order."""

    allocated: tuple[Any, ...]
    nests: tuple[Any, ...]


@dataclass
class Regions(Computations):
    """Reads fused functions and plans each with Roller's fastest plan for a CPU."""

    _plans: dict[int, RankedPlan] = field(default_factory=dict, repr=False)
    _apart: dict[int, str] = field(default_factory=dict, repr=False)

    def kernels(self, computation: Computation, reading: TeReading) -> tuple[RKernel, ...]:
        """Return the one rKernel: a phase per loop nest, an rTask per iteration of the parallel loop."""
        best = self._plans[id(computation)] = construct(reading.expression, self.device, 1).best
        try:
            nests = nests_of(self._lowered(computation), reading.expression.name).nests
            self._apart[id(computation)] = self._packed(computation, best.seconds)
        except UnsupportedOperator as error:
            nests, self._apart[id(computation)] = (), error.what
        return (region_kernel(nests, best.seconds, self.device),)

    def apart(self, computation: Computation) -> str:
        """Return why an operator cannot run side by side with others; '' if it can."""
        return self._apart[id(computation)]

    def _packed(self, computation: Computation, seconds: float) -> str:
        """Return why an operator is faster alone, with its weights packed by ``relay.build``; '' if it is not."""
        import tvm

        if not tvm.transform.PassContext.current().config.get("relay.backend.use_auto_scheduler", False):
            return ""
        free = packed_operands(SimpleNamespace(ops=list(computation.program.ops.values())))
        if not free:
            return ""
        reading = read_te(list(computation.program.tensors), constants=free)
        packed = construct(reading.expression, self.device, 1).best.seconds
        if packed < seconds * (1 - estimate("side_by_side_gain")):
            return (f"with its weights packed it takes {packed * 1e6:.1f} us, {seconds * 1e6:.1f} us without, "
                    "and relay.build packs those of its own functions alone")
        return ""

    def _lowered(self, computation: Computation) -> Any:
        import tvm

        schedule, arguments = apply_steps_te(computation.program, lower(self._plans[id(computation)].plan))
        return tvm.lower(schedule, arguments, name="main")["main"]

    def merged(
        self, name: str, program: TaskProgram, members: Sequence[tuple[str, Computation, tuple[int, ...]]],
        specs: Sequence[tuple[tuple[int, ...], str]],
    ) -> str:  # fmt: skip
        """Return a module with the operators merged into one function, as JSON.

        Parameters
        ----------
        name : str
            Name of the function.
        program : TaskProgram
        members : sequence of (operator, Computation, tensors)
            Tensors are positions among the function's parameters.
        specs : sequence of (shape, dtype)
            Shapes and dtypes of the function's parameters.
        """
        import tvm
        from tvm import tir

        handles = [tir.Var(f"p{n}", "handle") for n in range(len(specs))]
        buffers = [tir.decl_buffer(shape, dtype, f"buffer{n}") for n, (shape, dtype) in enumerate(specs)]
        allocated: list[Any] = []
        nests: list[tuple[Any, ...]] = []
        for operator, computation, places in members:
            # One computation may be there twice: every variable anew.
            func = tir.stmt_functor.renew_defs(self._lowered(computation))
            data = {func.buffer_map[p].data: buffers[place].data for p, place in zip(func.params, places, strict=True)}
            found = nests_of(func.with_body(tir.stmt_functor.substitute(func.body, data)), operator)
            allocated += found.allocated
            nests.append(found.nests)
        phases = []
        for number in range(max(map(len, nests))):
            thread = tir.Var("veu", "int32")
            lists = [
                _list_of(own[number], tasks_by_thread(program, operator, number), thread)
                for (operator, _, _), own in zip(members, nests, strict=True) if number < len(own)
            ]  # fmt: skip
            inner = lists[0] if len(lists) == 1 else tir.SeqStmt(lists)
            phases.append(tir.For(thread, 0, program.device.veus, tir.ForKind.PARALLEL, inner))
        body = phases[0] if len(phases) == 1 else tir.SeqStmt(phases)
        for one in reversed(allocated):
            body = tir.Allocate(one.buffer_var, one.dtype, one.extents, one.condition, body, one.annotations)
        made = tir.PrimFunc(handles, body, None, dict(zip(handles, buffers, strict=True)))
        made = made.with_attr({"global_symbol": name, "tir.noalias": True, "from_legacy_te_schedule": True})
        return str(tvm.ir.save_json(tvm.IRModule({name: made})))


def nests_of(func: Any, name: str) -> Nests:
    """Return the allocations and loop nests of a lowered function.

    Raises
    ------
    UnsupportedOperator
        Its loops cannot be shared out to threads.
    """
    allocated, nests = [], []
    todo = [func.body]
    while todo:
        statement = todo.pop(0)
        kind = type(statement).__name__
        if kind == "SeqStmt":
            todo[:0] = list(statement.seq)
        elif kind == "Allocate":
            allocated.append(statement)
            todo.insert(0, statement.body)
        else:
            check_nest(statement, name)
            nests.append(statement)
    return Nests(tuple(allocated), tuple(nests))


def _list_of(nest: Any, counts: Sequence[int], thread: Any) -> Any:
    """Return a thread's share of a nest: its range of a parallel loop; all of a serial one, or nothing."""
    from tvm import tir

    if not is_parallel(nest):
        return tir.IfThenElse(thread == counts.index(1), nest, None)
    kind = str(nest.loop_var.dtype)
    first = [0, *accumulate(counts)]
    start, extent = by_thread(first[:-1], thread, kind, tir), by_thread(counts, thread, kind, tir)
    # A loop from 0, as TVM's passes and its code generator expect.
    body = tir.stmt_functor.substitute(nest.body, {nest.loop_var: nest.loop_var + start + nest.min})
    return tir.For(nest.loop_var, tir.const(0, kind), extent, tir.ForKind.SERIAL, body)
