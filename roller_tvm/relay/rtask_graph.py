"""The operators of a Relay function as rOperators, and fusion plans for the parts that can be planned."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

from roller_tvm.codegen.cuda_text import dtype_bytes
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.rammer import DataFlowGraph, Edge, FusionPlan, Node, Part, RKernel, ROperator, convex_parts
from roller_tvm.rammer.device_code import CannotFuse
from roller_tvm.rammer.partition import divided
from roller_tvm.relay.dataflow import CallNode, DataFlow, Tensor
from roller_tvm.relay.rtask_codegen import KernelCode, RegionCode
from roller_tvm.relay.rtask_kernels import Computation, Computations


class Kind(Protocol):
    """Makes plans and code for a kind of device: kernels for a GPU, parallel regions for a CPU."""

    device: DeviceSpec
    target: Any
    launch: str

    @property
    def made(self) -> Computations:
        """The reader and planner of single operators."""

    def schedule(self, graph: RTaskGraph, operators: DataFlowGraph, kept: list[str], resident: int) -> FusionPlan:
        """Return a plan for operators; see ``rammer.plan_graph``."""

    def check(self, computation: Computation, kernel: RKernel, name: str) -> None:
        """Raise ``CannotFuse`` if an rKernel has no code."""

    def code(
        self, graph: RTaskGraph, symbol: str, part: Part, inside: Sequence[CallNode]
    ) -> tuple[KernelCode | RegionCode, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the code of a part, its inputs and its outputs; raise ``CannotFuse`` if it has none."""


class RTaskGraph:
    """Plans the data flow of a function.

    Parameters
    ----------
    flow : DataFlow
    kind : Kind

    Attributes
    ----------
    calls : dict of str to CallNode
    computations : dict of str to Computation
        Computations of the calls that may be in a plan.
    outside : dict of str to str
        Name of each call in no plan -> the reason.
    refused : list of str
        Why planned parts were given up.
    """

    def __init__(self, flow: DataFlow, kind: Kind) -> None:
        self.flow, self.kind = flow, kind
        self.outside = {node.name: node.outside for node in flow.calls if node.outside}
        self.refused: list[str] = []
        self.calls = {node.name: node for node in flow.calls}
        self.computations: dict[str, Computation] = {}
        self._producers: dict[Tensor, CallNode] = {t: node for node in flow.calls for t in node.outputs}
        made_by = {node.call: node for node in flow.calls}
        for tensor in (t for node in flow.calls for t in node.inputs if t not in self._producers):
            if (maker := made_by.get(_whole(tensor[0]))) is not None:  # a part of a part of what a call returns
                self._producers[tensor] = maker
        self._readers: dict[Tensor, set[str]] = {}
        for node in flow.calls:
            for tensor in node.inputs:
                self._readers.setdefault(tensor, set()).add(node.name)
        self._results = set(flow.results)
        self._names: dict[Tensor, str] = {}
        for node in flow.calls:
            if not node.outside:
                try:
                    self.computations[node.name] = kind.made.of(node.call.op, node.name)
                except UnsupportedOperator as error:
                    self.outside[node.name] = error.what

    def plans(self) -> list[FusionPlan]:
        """Return a plan for each convex part; every rKernel in them has code."""
        fences = divided([node.effect for node in self.flow.calls])
        while True:
            nodes = []
            for node, fence in zip(self.flow.calls, fences, strict=True):
                inputs = [self._producers[t].name for t in node.inputs if t in self._producers]
                inputs += [self.flow.calls[n].name for n in fence]
                nodes.append(Node(node.name, tuple(dict.fromkeys(inputs)), self.outside.get(node.name, "")))
            self._steps = convex_parts(nodes)
            self._step = {name: number for number, step in enumerate(self._steps) for name in step.operators}
            outside = len(self.outside)
            plans = [self.plan_of(step.operators) for step in self._steps if not step.outside]
            if len(self.outside) == outside:
                return plans

    def plan_of(self, names: Sequence[str]) -> FusionPlan:
        """Return a plan. Drops rKernels without code; an operator with none left becomes `outside`."""
        while True:
            names = [name for name in names if name not in self.outside]
            plan = self._plan(names)
            lost = False
            for name, kernel in [k for part in plan.parts if part.program for k in part.kernels]:
                computation = self.computations[name]
                try:
                    self.kind.check(computation, kernel, name)
                except CannotFuse as error:
                    lost = True
                    if kernel in computation.kernels:
                        self.refused.append(str(error))
                        computation.kernels = tuple(k for k in computation.kernels if k is not kernel)
                    if not computation.kernels:
                        self.outside[name] = error.what
            if not lost:
                return plan

    def _plan(self, names: Sequence[str]) -> FusionPlan:
        inside = set(names)
        operators = []
        for name in names:
            node, computation = self.calls[name], self.computations[name]
            edges = []
            for argument, tensor in zip(computation.inputs, node.inputs, strict=True):
                writer = self._producers.get(tensor)  # also of what it does not read: it is given it
                if writer is not None and writer.name in inside:
                    edges.append(Edge(argument or "", writer.name, self.computations[writer.name].outputs[tensor[1]]))
            size = sum(map(_bytes, node.outputs)) if computation.kernels[0].plan is None else 0
            operators.append(ROperator(name, computation.kernels, tuple(edges), size))
        kept = [n for n in names if any(self.kept(t, inside) for t in self.calls[n].outputs)]
        resident = self._resident(self._step[names[0]]) if names else 0
        return self.kind.schedule(self, DataFlowGraph(tuple(operators)), kept, resident)

    def kept(self, tensor: Tensor, inside: set[str]) -> bool:
        """Return whether a tensor is a result or is read outside of these operators."""
        return tensor in self._results or not self._readers.get(tensor, set()) <= inside

    def _resident(self, step: int) -> int:
        """Return the bytes that other tensors occupy while a step runs: inputs, weights, results between steps."""
        total = 0
        for tensor, readers in self._readers.items():
            node = self._producers.get(tensor)
            last = len(self._steps) if tensor in self._results else max(self._step[r] for r in readers)
            if node is None or self._step[node.name] < step <= last:
                total += _bytes(tensor)
        return total

    def tensors(self, name: str) -> tuple[str, ...]:
        """Return the names of the tensors that a call computes with, then of those it writes."""
        node, computation = self.calls[name], self.computations[name]
        read = [t for t, argument in zip(node.inputs, computation.inputs, strict=True) if argument]
        return tuple(self.name(t) for t in (*read, *node.outputs))

    def name(self, tensor: Tensor) -> str:
        """Return a tensor's name, unique in the graph."""
        if tensor not in self._names:
            expr, number = tensor
            node = self._producers.get(tensor)
            if node is not None:
                name = node.name if len(node.outputs) == 1 else f"{node.name}:{number}"
            else:
                name = f"{getattr(expr, 'name_hint', 'constant')}@{len(self._names)}"
            self._names[tensor] = name
        return self._names[tensor]


def _whole(expr: Any) -> Any:
    """Return the expression under all TupleGetItems."""
    from tvm import relay

    while isinstance(expr, relay.TupleGetItem):
        expr = expr.tuple_value
    return expr


def _bytes(tensor: Tensor) -> int:
    """Return the size of a tensor in bytes; 0 if it is not known."""
    try:
        shape, dtype = shape_of(tensor)
        return prod(shape) * dtype_bytes(dtype)
    except (TypeError, ValueError, AttributeError):  # a dynamic shape, no tensor
        return 0


def shape_of(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype of a tensor."""
    from tvm import relay

    expr, number = tensor
    kind = expr.checked_type
    kind = kind.fields[number] if isinstance(kind, relay.TupleType) else kind
    return tuple(int(e) for e in kind.shape), str(kind.dtype)
