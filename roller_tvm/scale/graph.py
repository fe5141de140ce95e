"""A model as operators on tensors of known shapes, each with the ways in which nodes may share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..ir import TensorExpression
from .placement import SUM, WHOLE, Placement, Window, split


@dataclass(frozen=True)
class Way:
    """One axis along which nodes share an operator.

    Attributes
    ----------
    axis : str
        Its name; '' for none: each node computes all of it.
    extent : int
    ins, outs : tuple of int or None
        The dimension of each input and output that goes along the axis; None: all of the input is read.
    sums : bool
        True for a reduction: outputs are addends.
    window : Window, optional
        What an output along the axis reads of the first input.
    even : bool
        True if the parts must be equal.
    """

    axis: str
    extent: int
    ins: tuple[int | None, ...]
    outs: tuple[int | None, ...]
    sums: bool = False
    window: Window | None = None
    even: bool = False

    def fits(self, nodes: int) -> bool:
        """Return True if each node has a part."""
        return not self.axis or (self.extent % nodes == 0 if self.even else self.extent >= nodes)

    def needs(self, number: int) -> Placement:
        """Return the placement of an input that this way needs."""
        dim = self.ins[number]
        if dim is None:
            return WHOLE
        return Placement("split", dim, self.window) if number == 0 and self.window is not None else split(dim)

    def makes(self, number: int) -> Placement:
        """Return the placement of an output."""
        dim = self.outs[number]
        if self.sums:
            return SUM
        return WHOLE if dim is None else split(dim)


@dataclass(frozen=True)
class Value:
    """A tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int


#: The expression of a part of an operator, by the shapes of its inputs and outputs; None where there is none.
Expression = Callable[[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]], "TensorExpression | None"]


@dataclass(frozen=True)
class Op:
    """An operator.

    Attributes
    ----------
    name, kind : str
    inputs, outputs : tuple of str
        Tensors; '' for an input that is left out.
    ways : tuple of Way
        The first is that of no axis.
    expression : function
        The expression of a part of it, for its predicted time.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ways: tuple[Way, ...]
    expression: Expression = field(compare=False, repr=False)

    def for_nodes(self, nodes: int) -> tuple[Way, ...]:
        """Return the ways that so many nodes can go."""
        return tuple([w for w in self.ways if w.fits(nodes)]) if nodes > 1 else self.ways[:1]


@dataclass(frozen=True)
class Graph:
    """Operators in order, and the tensors between them.

    Attributes
    ----------
    states : mapping of input to output
        What an output has after a run its input has in the next one, where it lies.
    """

    name: str
    values: Mapping[str, Value]
    constants: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ops: tuple[Op, ...]
    states: Mapping[str, str] = field(default_factory=dict)
