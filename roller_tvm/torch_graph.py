"""Graphs that Dynamo captured, as programs of torch.export: weights told from inputs, results told from memory.

Dynamo wants of a backend what the graph does in torch: changes of inputs in place, results that are views of inputs
or of one another, their strides, numbers among inputs and results.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roller_tvm.errors import UnsupportedOperator
from roller_tvm.models.sources import depending, quiet

#: Prefix of the weights' names in a program.
WEIGHT = "roller_weight_"


@dataclass(frozen=True)
class Result:
    """One result of a graph, and how it is had.

    Parameters
    ----------
    kind : {'constant', 'argument', 'output', 'number'}
    value : object
        The constant, the position among the arguments or among the program's outputs, or the expression of a number.
    layout : tuple, optional
        (size, stride, storage offset) of a view of the argument or output; None if it is that tensor itself.
    """

    kind: str
    value: Any
    layout: tuple[Sequence[Any], Sequence[Any], Any] | None = None

    def of(self, made: Sequence[Any], given: Sequence[Any], extents: Mapping[Any, Any]) -> Any:
        """Return the result, given the program's outputs, the graph's arguments and the values of open extents."""
        import torch

        if self.kind == "constant":
            return self.value
        if self.kind == "number":
            return number(self.value, extents)
        tensor = (given if self.kind == "argument" else made)[self.value]
        if self.layout is None:
            return tensor
        size, stride, offset = self.layout
        numbers = [[number(one, extents) for one in part] for part in (size, stride)]
        return torch.as_strided(tensor, *numbers, number(offset, extents))


@dataclass(frozen=True)
class Program:
    """A graph as a program without side effects.

    Parameters
    ----------
    exported : torch.export.ExportedProgram
        In core ATen; its outputs are the new values of changed arguments, then what results are made of.
    changed : tuple of int
        Arguments that the graph changes in place, in the order of the outputs.
    strides : tuple
        Strides of each further output, which results expect.
    own : tuple of bool
        Whether an output depends on an input; else its memory belongs to the model.
    results : tuple of Result
    """

    exported: Any
    changed: tuple[int, ...]
    strides: tuple[Sequence[Any], ...]
    own: tuple[bool, ...]
    results: tuple[Result, ...]


def number(value: Any, extents: Mapping[Any, Any]) -> Any:
    """Return a number; an expression of open extents with their values."""
    node = getattr(value, "node", None)
    if node is None:
        return value
    found = node.expr.xreplace(extents)
    if found.free_symbols:
        raise UnsupportedOperator(f"the number {found} is not known", remedy="return it as a tensor")
    return int(found) if found.is_integer else float(found)


def fake(node: Any) -> Any:
    """Return the tensor or number that Dynamo noted for a node, or None."""
    return node.meta.get("example_value", node.meta.get("val"))


class Captured:
    """A captured graph.

    Attributes
    ----------
    weights, inputs, numbers : list of int
        Positions among the arguments: weights, which are constants of a build; input tensors; numbers that are no
        extent of an input, also constants of a build.
    device : str
    """

    def __init__(self, graph: Any, example_inputs: Sequence[Any]) -> None:
        import torch

        self.graph = graph
        self._nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        tensors = [n for n, one in enumerate(example_inputs) if isinstance(one, torch.Tensor)]
        # Dynamo marks what belongs to the module: parameters, buffers.
        self.weights = [n for n in tensors if getattr(example_inputs[n], "_dynamo_static_input_type", None)]
        self.inputs = [n for n in tensors if n not in self.weights]
        self._symbols = {
            n: fake(node).node.expr for n, node in enumerate(self._nodes) if isinstance(fake(node), torch.SymInt)
        }
        self.numbers = [n for n in self._symbols if self._nodes[n].users and self._extent(n) is None]
        if any(isinstance(fake(node), torch.SymFloat) for node in self._nodes):
            raise UnsupportedOperator("a number that changes is an input", remedy="give it as a tensor")
        kinds = {getattr(example_inputs[n].device, "type", "cpu") for n in tensors}
        if len(kinds) > 1:
            raise UnsupportedOperator(f"its tensors are on {' and '.join(sorted(kinds))}", remedy="move them to one")
        self.device = kinds.pop() if kinds else "cpu"

    def extents(self, arguments: Sequence[Any]) -> dict[Any, Any]:
        """Return the values of the open extents in a call, as sympy's numbers."""
        import sympy

        return {symbol: sympy.Integer(arguments[n]) for n, symbol in self._symbols.items() if symbol.is_Symbol}

    def changing(self, positions: Sequence[int]) -> None:
        """Take weights as inputs from now on."""
        self.weights = [n for n in self.weights if n not in positions]
        self.inputs = sorted({*self.inputs, *positions})

    def program(self, arguments: Sequence[Any]) -> Program:
        """Return the program of the graph with these weights and numbers.

        Raises
        ------
        UnsupportedOperator
            torch cannot export the graph, or the graph does what a program cannot.
        """
        import torch

        module = torch.fx.GraphModule(self.graph, copy.deepcopy(self.graph.graph))
        graph = module.graph
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        results, kept = self._results(graph, placeholders)
        strides = tuple(fake(node).stride() for node in kept)
        dtypes = [fake(node).dtype for node in kept]
        reached = depending([placeholders[n] for n in self.inputs])
        own = tuple(node in reached for node in kept)
        for position, node in enumerate(placeholders):
            if position in self.weights:
                name = f"{WEIGHT}{position}"
                module.register_buffer(name, arguments[position].detach())
                with graph.inserting_before(node):
                    node.replace_all_uses_with(graph.get_attr(name))
            elif position in self.numbers:
                node.replace_all_uses_with(arguments[position])
            elif position not in self.inputs and node.users:
                self._without_extent(graph, position, placeholders)
        for position, node in enumerate(placeholders):
            if position not in self.inputs:
                graph.erase_node(node)
        _without_items(graph)
        module.recompile()
        given = tuple(arguments[n].detach() for n in self.inputs)
        shapes = tuple({d: torch.export.Dim.AUTO for d in self._open(n)} for n in self.inputs)
        try:
            with torch.no_grad(), quiet():
                exported = torch.export.export(module, given, dynamic_shapes=shapes, strict=False)
                exported = exported.run_decompositions()  # before, changes in place are operators like others
        except Exception as error:  # the exporter raises whatever tracing meets
            told = (str(error).strip() or type(error).__name__).splitlines()[0]
            remedy = "see the exporter's message"
            raise UnsupportedOperator(f"torch.export cannot take it: {told}", remedy=remedy) from error
        if changed := exported.graph_signature.buffers_to_mutate:
            self.changing([int(name.removeprefix(WEIGHT)) for name in changed.values()])
            return self.program(arguments)
        positions = self._without_changes(exported)
        outputs = next(node for node in exported.graph.nodes if node.op == "output").args[0]
        told = [node.meta["val"].dtype for node in outputs[len(positions) :]]
        if told != dtypes:
            raise UnsupportedOperator(f"its results would be {told} instead of {dtypes}", remedy="report it")
        return Program(exported, positions, strides, own, results)

    def _without_changes(self, exported: Any) -> tuple[int, ...]:
        """Make results of the new values of changed inputs; return the positions of these inputs."""
        from torch.export.graph_signature import OutputKind

        signature, positions = exported.graph_signature, []
        for spec in signature.output_specs:
            if spec.kind == OutputKind.USER_INPUT_MUTATION:
                positions.append(self.inputs[list(signature.user_inputs).index(spec.target)])
                spec.kind, spec.target = OutputKind.USER_OUTPUT, None
        return tuple(positions)

    def _open(self, position: int) -> list[int]:
        """Return the dimensions of an input tensor that torch leaves open."""
        import torch

        return [d for d, extent in enumerate(fake(self._nodes[position]).shape) if isinstance(extent, torch.SymInt)]

    def _extent(self, number_at: int) -> tuple[int, int] | None:
        """Return (input, dimension) that a number is the extent of, or None."""
        wanted = self._symbols[number_at]
        for position in self.inputs:
            for d in self._open(position):
                if fake(self._nodes[position]).shape[d].node.expr == wanted:
                    return position, d
        return None

    def _without_extent(self, graph: Any, number_at: int, placeholders: Sequence[Any]) -> None:
        """Read an open extent from the shape of an input."""
        if (found := self._extent(number_at)) is None:
            raise UnsupportedOperator(f"the number {placeholders[number_at].name} is an input", remedy="give a tensor")
        with graph.inserting_after(placeholders[-1]):
            size = graph.call_method("size", (placeholders[found[0]], found[1]))
        placeholders[number_at].replace_all_uses_with(size)

    def _owners(self) -> dict[int, Any]:
        """Return the first node of each memory."""
        import torch

        owners: dict[int, Any] = {}
        for node in self.graph.graph.nodes:
            if isinstance(fake(node), torch.Tensor):
                owners.setdefault(_storage(fake(node)), node)
        return owners

    def _results(self, graph: Any, placeholders: Sequence[Any]) -> tuple[tuple[Result, ...], list[Any]]:
        """Leave the tensors that results are made of as a graph's outputs; return the results and these nodes."""
        import torch

        # A copy of the graph has other nodes, in the same order.
        copies = dict(zip(self.graph.graph.nodes, graph.nodes, strict=True))
        owners = {storage: copies[node] for storage, node in self._owners().items()}
        output = next(node for node in graph.nodes if node.op == "output")
        results: list[Result] = []
        kept: list[Any] = []
        for one in output.args[0]:
            value = fake(one) if isinstance(one, torch.fx.Node) else one
            if not isinstance(one, torch.fx.Node):
                results.append(Result("constant", one))
            elif isinstance(value, (torch.SymInt, int, float, bool)):
                results.append(Result("number", value))
            elif not isinstance(value, torch.Tensor):
                raise UnsupportedOperator(f"its result {one.name} is no tensor", remedy="return it as a tensor")
            else:
                owner = owners[_storage(value)]
                if owner not in placeholders and owner not in kept:
                    kept.append(owner)
                kind, place = ("argument", placeholders) if owner in placeholders else ("output", kept)
                results.append(Result(kind, place.index(owner), _layout(value, fake(owner))))
        output.args = (tuple(kept),)
        return tuple(results), kept


def _storage(tensor: Any) -> int:
    import torch

    return int(tensor.untyped_storage()._cdata) if isinstance(tensor, torch.Tensor) else 0


def _layout(view: Any, owner: Any) -> tuple[Any, Any, Any] | None:
    """Return the layout of a view of a tensor; None if it is that tensor."""
    if view.dtype != owner.dtype or view.is_conj() or view.is_neg():
        raise UnsupportedOperator("its result is a tensor in the memory of another type", remedy="return a copy")
    told = [(one.shape, one.stride(), one.storage_offset()) for one in (view, owner)]
    same = [[str(n) for n in (*size, *stride, offset)] for size, stride, offset in told]
    return None if same[0] == same[1] else told[0]


def _without_items(graph: Any) -> None:
    """Use the tensors in which Dynamo hands over Python's numbers, instead of their numbers."""
    for node in list(graph.nodes):
        if node.op == "call_method" and node.target == "item" and fake(node.args[0]).dim() == 0:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
