"""The stages and loops of a TVM program under our names: schedule steps act on them.

Both appliers (``apply_te``, ``apply_state``) start from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TeProgram:
    """A TE program with our names for its operations and their loops.

    Parameters
    ----------
    tensors : tuple of te.Tensor
        Inputs and outputs, in the order of the compiled function's arguments.
    ops : mapping of name -> te.Operation
        Placeholders and computations by our unique names (TE's own names may occur several times).
    loops : mapping of name -> tuple of str
        Loops of each computation: spatial axes, then reduction axes.
    """

    tensors: tuple[Any, ...]
    ops: Mapping[str, Any]
    loops: Mapping[str, tuple[str, ...]]

    @classmethod
    def of_dag(cls, dag: Any) -> TeProgram:
        """Return a program named after TE's own names, with a number appended to repeated ones."""
        ops: dict[str, Any] = {}
        loops: dict[str, tuple[str, ...]] = {}
        for op in dag.ops:
            name = unique(op.name, ops)
            ops[name] = op
            names: dict[str, None] = {}
            for axis in (*getattr(op, "axis", ()), *getattr(op, "reduce_axis", ())):
                names[unique(axis.var.name, names)] = None
            if hasattr(op, "body"):
                loops[name] = tuple(names)
        return cls(tuple(dag.tensors), ops, loops)

    @classmethod
    def of_reading(cls, reading: Any, tensors: Sequence[Any] = ()) -> TeProgram:
        """Return the program of a ``read_te`` result; `tensors` gives the order of the arguments."""
        ops = {name: tensor.op for name, tensor in reading.tensors.items()} | dict(reading.ops)
        ordered = {name: ops[name] for name in sorted(ops, key=lambda n: reading.positions[n])}
        if not tensors:
            outputs = [reading.ops[s.name].output(0) for s in reading.expression.outputs]
            tensors = [*reading.tensors.values(), *outputs]
        return cls(tuple(tensors), ordered, {name: tuple(axes) for name, axes in reading.axes.items()})

    def own_loops(self) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """Return the spatial and the reduction loops of each stage."""
        rank = {name: len(self.ops[name].axis) for name in self.loops}
        return {name: (loops[: rank[name]], loops[rank[name] :]) for name, loops in self.loops.items()}


def unique(name: str, taken: Mapping[str, Any]) -> str:
    """Return `name`, or the first of `name_1`, `name_2`, ... that is not taken."""
    if name not in taken:
        return name
    number = 1
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"
