"""Operators side by side in one parallel region of a CPU: their scheduled loops read, and merged.

The merged function has a parallel loop a phase, whose iterations are the worker threads' lists: of each operator's own
parallel loop a thread runs so many iterations as the plan gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from roller_tvm.device.cpu_data import estimate
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.lower import lower
from roller_tvm.plan import construct
from roller_tvm.plan.candidates import RankedPlan
from roller_tvm.rammer import RKernel, RTask, TaskProgram
from roller_tvm.rammer.regions import nests_kernel
from roller_tvm.relay.apply_te import apply_steps_te
from roller_tvm.relay.candidates import packed_operands
from roller_tvm.relay.rtask_kernels import Computation, Computations
from roller_tvm.te import TeReading, read_te


@dataclass(frozen=True)
class Nests:
    """A lowered function's statements: what it allocates, and nests one after the other."""

    allocated: tuple[Any, ...]
    nests: tuple[Any, ...]


@dataclass
class Regions(Computations):
    """Fused functions with Roller's fastest plan for a CPU."""

    _plans: dict[int, RankedPlan] = field(default_factory=dict, repr=False)
    _apart: dict[int, str] = field(default_factory=dict, repr=False)

    def kernels(self, computation: Computation, reading: TeReading) -> tuple[RKernel, ...]:
        """The one rKernel: its phases are the nests of its loops, an rTask an iteration of the parallel one."""
        best = self._plans[id(computation)] = construct(reading.expression, self.device, 1).best
        try:
            nests = nests_of(self._lowered(computation), reading.expression.name).nests
            self._apart[id(computation)] = self._packed(computation, best.seconds)
        except UnsupportedOperator as error:
            nests, self._apart[id(computation)] = (), error.what
        return (region_kernel(nests, best.seconds, self.device),)

    def apart(self, computation: Computation) -> str:
        """Why an operator cannot run with others; '' where it can."""
        return self._apart[id(computation)]

    def _packed(self, computation: Computation, seconds: float) -> str:
        """Why an operator is better off by itself: ``relay.build`` packs its weights for a schedule from a record."""
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
        """A module with the operators as one function, as JSON.

        Parameters
        ----------
        name : str
            Of the function.
        program : TaskProgram
        members : sequence of (operator, Computation, tensors)
            Tensors by their place among the function's parameters.
        specs : sequence of (shape, dtype)
            Of the function's parameters.
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
                _list_of(own[number], _counts(program, operator, number), thread)
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
    """The nests of a lowered function.

    Raises
    ------
    UnsupportedOperator
        Its loops are not what can be shared out.
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
        elif kind in ("For", "BufferStore", "IfThenElse"):
            inside = statement.body if _is_parallel(statement) else statement
            if kind != "BufferStore" and _parallel_inside(inside):
                raise UnsupportedOperator("a parallel loop of it is not the outermost", name)
            if _is_parallel(statement) and not hasattr(statement.extent, "value"):
                raise UnsupportedOperator("the extent of its parallel loop is not a number", name)
            nests.append(statement)
        else:
            raise UnsupportedOperator(f"a {kind} stands where a loop is expected", name)
    return Nests(tuple(allocated), tuple(nests))


def _is_parallel(statement: Any) -> bool:
    from tvm import tir

    return isinstance(statement, tir.For) and statement.kind == tir.ForKind.PARALLEL


def _parallel_inside(statement: Any) -> bool:
    import tvm

    found: list[Any] = []
    tvm.tir.stmt_functor.post_order_visit(statement, lambda s: found.append(s) if _is_parallel(s) else None)
    return bool(found)


def region_kernel(nests: Sequence[Any], seconds: float, device: Any) -> RKernel:
    """An rKernel with a phase for each nest, the time shared out by what the nests compute."""
    return nests_kernel([(int(n.extent) if _is_parallel(n) else 1, points(n)) for n in nests], seconds, device)


def points(statement: Any) -> float:
    """How often the statements of a nest are executed, in all."""
    kind = type(statement).__name__
    if kind == "For":
        return points(statement.body) * float(getattr(statement.extent, "value", 1))
    if kind == "SeqStmt":
        return sum(map(points, statement.seq))
    if kind == "IfThenElse":
        other = statement.else_case
        return max(points(statement.then_case), points(other) if other is not None else 0.0)
    if kind in ("BufferStore", "Evaluate"):
        return 1.0
    body = getattr(statement, "body", None)
    return points(body) if body is not None else 0.0


def _counts(program: TaskProgram, operator: str, phase: int) -> list[int]:
    """rTasks of a phase on each thread."""
    return [sum(isinstance(e, RTask) and e[:2] == (operator, phase) for e in entries) for entries in program.prog]


def _list_of(nest: Any, counts: Sequence[int], thread: Any) -> Any:
    """What a thread runs of a nest: its own range of the parallel loop, or all of a serial one, or nothing."""
    from tvm import tir

    if not _is_parallel(nest):
        return tir.IfThenElse(thread == counts.index(1), nest, None)
    kind = str(nest.loop_var.dtype)
    first = [0, *accumulate(counts)]
    start, extent = _chosen(first[:-1], thread, kind), _chosen(counts, thread, kind)
    # A loop from 0, as TVM's passes and its code generator expect.
    body = tir.stmt_functor.substitute(nest.body, {nest.loop_var: nest.loop_var + start + nest.min})
    return tir.For(nest.loop_var, tir.const(0, kind), extent, tir.ForKind.SERIAL, body)


def _chosen(values: Sequence[int], thread: Any, kind: str) -> Any:
    """The value of a thread's number: a straight line where they are on one, else one by one."""
    from tvm import tir

    number = thread.astype(kind) if kind != "int32" else thread
    step = values[1] - values[0] if len(values) > 1 else 0
    if all(v == values[0] + n * step for n, v in enumerate(values)):
        return number * tir.const(step, kind) + tir.const(values[0], kind) if step else tir.const(values[0], kind)
    result = tir.const(values[-1], kind)
    for n in range(len(values) - 2, -1, -1):
        if values[n] != values[n + 1]:
            result = tir.Select(thread <= n, tir.const(values[n], kind), result)
    return result
