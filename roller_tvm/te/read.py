"""TE DAGs as tensor expressions.

Nodes are told apart by the name of their class, so that one reader serves both lines of TVM.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import UnsupportedOperator
from ..ir.expression import TensorExpression
from ..ir.pattern import choose_anchor
from ..ir.stage import Stage, Tensor
from .body import StageReader
from .nodes import REMEDY, dtype_of, extent_of, unique


@dataclass(frozen=True)
class TeReading:
    """A tensor expression read from a TE DAG, and the DAG's objects that it came from.

    Parameters
    ----------
    expression : TensorExpression
    ops : dict
        Stage -> its te.Operation, in the order of the DAG.
    axes : dict
        Stage -> {TE axis -> names of the axes it became}, in the order of ``op.axis`` and then
        ``op.reduce_axis``. Axes whose names repeat within a stage get a number.
    tensors : dict
        Input -> its te.Tensor.
    positions : dict
        Stage or input -> position among all operations of the DAG, placeholders included (for a ComputeDAG:
        the stage number of auto_scheduler).
    layout_free : tuple of str
        Inputs whose layout the operator leaves to the scheduler.
    """

    expression: TensorExpression
    ops: dict[str, Any]
    axes: dict[str, dict[str, tuple[str, ...]]]
    tensors: dict[str, Any]
    positions: dict[str, int]
    layout_free: tuple[str, ...] = ()


def read_te(source: Any, name: str | None = None, constants: Collection[Any] = ()) -> TeReading:
    """Read a TE DAG.

    Parameters
    ----------
    source : ComputeDAG, te.Tensor or list of te.Tensor
        A DAG of auto_scheduler, whose order is kept, or output tensors (inputs may be among them).
    name : str, optional
        Name of the expression; by default the last stage's.
    constants : collection of str or te.Tensor
        Inputs whose values are known at build time.

    Raises
    ------
    UnsupportedOperator
        If the DAG cannot be planned: dynamic shapes, extern or scan operations and the like.

    Examples
    --------
    >>> from tvm import te
    >>> x = te.placeholder((8, 4), name="x")
    >>> str(read_te(te.compute((4, 8), lambda i, j: x[j, i] + 1.0, name="y")).expression.output)
    'y(i:4, j:8) float32 = {1*add} of x[j, i]'
    """
    ops = _operations(source)
    names = _unique_names(ops)
    constant_names = {c for c in constants if isinstance(c, str)} | {
        names[c.op] for c in constants if not isinstance(c, str) and c.op in names
    }
    inputs: list[Tensor] = []
    stages: list[Stage] = []
    reading: dict[str, Any] = {"ops": {}, "axes": {}, "tensors": {}, "positions": {}}
    free: list[str] = []
    for position, op in enumerate(ops):
        own = names[op]
        reading["positions"][own] = position
        kind = type(op).__name__
        if kind == "PlaceholderOp":
            tensor = op.output(0)
            shape = tuple(extent_of(e, own, f"dimension {d}") for d, e in enumerate(tensor.shape))
            inputs.append(Tensor(own, shape, dtype_of(tensor.dtype, own), own in constant_names))
            reading["tensors"][own] = tensor
        elif kind == "ComputeOp":
            stage, axes = StageReader(op, own, names).read()
            stages.append(stage)
            reading["ops"][own] = op
            reading["axes"][own] = axes
            free += _layout_free(op, names)
        else:
            raise UnsupportedOperator(
                f"'{own}' is a {kind}, only computations over axes can be planned", name or own, REMEDY
            )
    _check_results(ops, names, source)
    if not stages:
        raise UnsupportedOperator(
            "nothing is computed, there are only placeholders", name or "te", "give the output tensors"
        )
    try:
        expression = TensorExpression(
            name or stages[-1].name, tuple(inputs), tuple(stages), choose_anchor(stages),
            stored=_stored(source, names, stages),
        )  # fmt: skip
    except ValueError as error:
        raise UnsupportedOperator(str(error), name or stages[-1].name, REMEDY) from error
    return TeReading(expression, **reading, layout_free=tuple(dict.fromkeys(free)))


def _check_results(ops: list[Any], names: dict[Any, str], source: Any) -> None:
    """Refuse several results if nothing reads the first: TVM then computes all of them for each tile."""
    used = {(t.op, int(t.value_index)) for t in (*_tensors(source), *(i for op in ops for i in op.input_tensors))}
    for op in ops:
        if op.num_outputs > 1 and (op, 0) not in used:
            what = f"nothing reads the first of its {op.num_outputs} results"
            raise UnsupportedOperator(what, names[op], "leave out results that nothing reads")


def _stored(source: Any, names: dict[Any, str], stages: list[Stage]) -> tuple[str, ...]:
    """Return the names of stages that are requested as outputs although other stages read them."""
    asked = {names[t.op] for t in _tensors(source)}
    read = {a.tensor for s in stages for a in s.reads}
    return tuple(s.name for s in stages if s.name in asked and s.name in read)


def _tensors(source: Any) -> list[Any]:
    """Return the tensors of a DAG, or the given tensors as a list."""
    if hasattr(source, "ops") and hasattr(source, "tensors"):
        return list(source.tensors)
    return list(source) if isinstance(source, list | tuple) or type(source).__name__ == "Array" else [source]


def _operations(source: Any) -> list[Any]:
    if hasattr(source, "ops") and hasattr(source, "tensors"):
        return list(source.ops)
    tensors = _tensors(source)
    order: dict[Any, None] = {}
    for tensor in tensors:
        _visit(tensor.op, order)
    return list(order)


def _visit(op: Any, order: dict[Any, None]) -> None:
    """Append the operations to `order`, depth first and without recursion: DAGs of fused subgraphs can be deep."""
    todo = [(op, False)]
    while todo:
        current, ready = todo.pop()
        if current in order:
            continue
        if ready:
            order[current] = None
            continue
        todo.append((current, True))
        todo += [(t.op, False) for t in reversed(list(current.input_tensors)) if t.op not in order]


def _unique_names(ops: Iterable[Any]) -> dict[Any, str]:
    names: dict[Any, str] = {}
    used: set[str] = set()
    for op in ops:
        names[op] = unique(str(op.name) or "stage", used)
    return names


def _layout_free(op: Any, names: dict[Any, str]) -> list[str]:
    attrs = op.attrs
    if not attrs or "layout_free_placeholders" not in attrs:
        return []
    return [names[t.op] for t in attrs["layout_free_placeholders"] if t.op in names]
