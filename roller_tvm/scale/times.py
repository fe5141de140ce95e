"""Predicted times: of a part of an operator by the micro-performance model, of messages by the network."""

from __future__ import annotations

import functools
import math

from ..device import DeviceSpec
from ..errors import SpecError, UnsupportedOperator
from ..ir import TensorExpression
from ..ir.operators import operator
from ..planner.construct import construct
from ..roller.rtile import RTile
from .graph import Graph, Op, Way
from .moves import Step, steps
from .placement import WHOLE, Placement

#: The level of the network in rTiles.
NETWORK = "network"


@functools.lru_cache(maxsize=4096)
def _seconds(expression: TensorExpression, device: DeviceSpec) -> float:
    return construct(expression, device, top=1).best.estimate.seconds


@functools.lru_cache(maxsize=65536)
def steps_of(source: Placement, target: Placement, shape: tuple[int, ...], nodes: int, size: int) -> tuple[Step, ...]:
    """Return `moves.steps`, kept."""
    return steps(source, target, shape, nodes, size)


class Times:
    """Times of a graph's operators and moves on a number of nodes.

    Parameters
    ----------
    graph : Graph
    device : DeviceSpec
        A node, with its network.
    nodes : int
    """

    def __init__(self, graph: Graph, device: DeviceSpec, nodes: int) -> None:
        if device.network is None:
            remedy = "measure it: mpirun -n 4 roller-tvm profile --mpi -o nodes.toml; or write a [network] table"
            raise SpecError("states no network", f"device {device.name}", remedy)
        self.graph, self.device, self.nodes, self.network = graph, device, nodes, device.network
        self._known: dict[tuple[str, Way], float] = {}

    def compute(self, op: Op, way: Way) -> float:
        """Return the time of the part of a node, one of those with the most work."""
        key = (op.outputs[0], way)
        if key not in self._known:
            self._known[key] = self.of_shapes(op, *self.part(op, way))
        return self._known[key]

    def part(self, op: Op, way: Way) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Return the shapes of the inputs and outputs of the part of a node with the larger share."""
        node = self.nodes - 1
        ins = tuple([self._shape(name, way.needs(n), node) for n, name in enumerate(op.inputs)])
        return ins, tuple([self._shape(name, way.makes(n), node) for n, name in enumerate(op.outputs)])

    def tile(self, op: Op, way: Way) -> RTile | None:
        """Return the rTile of an operator at the level of the network; None for one without an expression."""
        expression = op.expression(*self.part(op, way))
        return RTile(NETWORK, tuple(expression.anchor.extents.items())) if expression is not None else None

    def of_shapes(self, op: Op, ins: tuple[tuple[int, ...], ...], outs: tuple[tuple[int, ...], ...]) -> float:
        """Return the time of an operator on these shapes."""
        expression = op.expression(ins, outs)
        if expression is not None:
            try:
                return _seconds(expression, self.device)
            except UnsupportedOperator:  # TVM's own schedule will compute it
                pass
        elements = max([math.prod(shape) for shape in (*ins, *outs) if shape], default=1)
        return _seconds(operator("relu", shape=(max(elements, 1),)), self.device)

    def _shape(self, name: str, placement: Placement, node: int) -> tuple[int, ...]:
        if not name:
            return ()
        return (placement if placement.kind != "sum" else WHOLE).local_shape(
            self.graph.values[name].shape, self.nodes, node
        )

    def rounds(self, name: str, source: Placement, target: Placement) -> tuple[Step, ...]:
        """Return the rounds of messages that take a tensor from one placement to another."""
        value = self.graph.values[name]
        return steps_of(source, target, value.shape, self.nodes, value.itemsize)

    def move(self, name: str, source: Placement, target: Placement) -> float:
        """Return the time of these rounds."""
        return sum(self.network.seconds(*step.busiest) for step in self.rounds(name, source, target))
