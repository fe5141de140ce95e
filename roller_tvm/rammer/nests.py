"""Loop nests of either TVM line's scheduled functions as rTasks: which are parallel, and how much they compute.

Statements are read by their kind and fields, which both lines share; nothing of TVM is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..device import DeviceSpec
from ..errors import UnsupportedOperator
from .operators import RKernel
from .program import RTask, TaskProgram
from .regions import nests_kernel

_PARALLEL = 1
_REMEDY = "it stays a function of its own"
_NESTS = ("For", "BufferStore", "IfThenElse")


def is_parallel(statement: Any) -> bool:
    """Return whether a statement is a loop whose iterations are shared out over threads."""
    return type(statement).__name__ == "For" and int(statement.kind) == _PARALLEL


def check_nest(statement: Any, name: str) -> None:
    """Raise ``UnsupportedOperator`` if a statement is no nest whose iterations can be shared out.

    Parameters
    ----------
    statement : tvm.tir.Stmt or tvm.tirx.Stmt
    name : str
        Name of the operator.
    """
    kind = type(statement).__name__
    if kind not in _NESTS:
        raise UnsupportedOperator(f"expected a loop, found a {kind}", name, _REMEDY)
    if _parallel_inside(statement.body if is_parallel(statement) else statement):
        raise UnsupportedOperator("one of its parallel loops is not the outermost", name, _REMEDY)
    if is_parallel(statement) and not hasattr(statement.extent, "value"):
        raise UnsupportedOperator("the extent of its parallel loop is not a number", name, _REMEDY)


def _parallel_inside(statement: Any) -> bool:
    if statement is None or is_parallel(statement):
        return statement is not None
    kind = type(statement).__name__
    if kind == "SeqStmt":
        return any(map(_parallel_inside, statement.seq))
    if kind == "IfThenElse":
        return _parallel_inside(statement.then_case) or _parallel_inside(statement.else_case)
    return _parallel_inside(getattr(statement, "body", None))


def points(statement: Any) -> float:
    """Return how many statements a nest executes in all; a loop of unknown extent counts once."""
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


def region_kernel(nests: Sequence[Any], seconds: float, device: DeviceSpec) -> RKernel:
    """Return an rKernel with a phase per nest; the time is divided by the work of the nests."""
    return nests_kernel([(int(n.extent) if is_parallel(n) else 1, points(n)) for n in nests], seconds, device)


def tasks_by_thread(program: TaskProgram, operator: str, phase: int) -> list[int]:
    """Return the number of a phase's rTasks on each thread."""
    return [sum(isinstance(e, RTask) and e[:2] == (operator, phase) for e in entries) for entries in program.prog]


def by_thread(values: Sequence[int], thread: Any, kind: str, tir: Any) -> Any:
    """Return an expression for a thread's value: linear in the thread's number if possible, else a chain of selects.

    Parameters
    ----------
    values : sequence of int
        Value of each thread.
    thread : Var
        Number of the thread, int32.
    kind : str
        Dtype of the values.
    tir : module
        ``tvm.tir`` or ``tvm.tirx``.
    """
    number = thread.astype(kind) if kind != "int32" else thread
    step = values[1] - values[0] if len(values) > 1 else 0
    if all(v == values[0] + n * step for n, v in enumerate(values)):
        return number * tir.const(step, kind) + tir.const(values[0], kind) if step else tir.const(values[0], kind)
    result = tir.const(values[-1], kind)
    for n in range(len(values) - 2, -1, -1):
        if values[n] != values[n + 1]:
            result = tir.Select(thread <= n, tir.const(values[n], kind), result)
    return result
