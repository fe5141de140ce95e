"""Backend of ``torch.compile``: ``torch.compile(module, backend="roller")``, found by its entry point.

A graph that torch captured is exported, built with Roller's schedules at its first call, and run on torch's own memory.
A graph that cannot be built runs in torch as it is, and a warning tells the reason.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from roller_tvm import api
from roller_tvm.errors import BadInput, RollerError, UnsupportedOperator, UsageError
from roller_tvm.models.arguments import bind
from roller_tvm.models.sources import quiet

#: Keywords of `api.compile` that ``options=`` may hold.
OPTIONS = ("target", "records", "schedules", "layout", "device", "threads", "fuse_rtasks")
#: Builds of one graph whose shapes the exporter fixed; torch's own limit of recompilations is 8.
MOST_BUILDS = 8


class RunsInTorch(UserWarning):
    """A graph that Roller did not build, with the reason; torch runs it."""


def roller(graph: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **_: Any) -> Any:
    """Return a function that computes a captured graph; the backend "roller" of ``torch.compile``.

    Parameters
    ----------
    graph : torch.fx.GraphModule
    example_inputs : sequence
        Its arguments: tensors, weights among them, and open extents.
    options : mapping, optional
        Keywords of `roller_tvm.compile`: target, records, schedules, layout, device, threads, fuse_rtasks.

    Raises
    ------
    UsageError
        An option is unknown.

    Examples
    --------
    >>> fast = torch.compile(module.eval(), backend="roller")  # doctest: +SKIP
    >>> with torch.no_grad():  # doctest: +SKIP
    ...     y = fast(x)
    """
    import torch

    options = dict(options or {})
    if unknown := [name for name in options if name not in OPTIONS]:
        told = f"torch.compile has no option '{unknown[0]}' for the backend roller"
        raise UsageError(told, "options", f"give {', '.join(OPTIONS)}")
    if torch.is_grad_enabled() and any(getattr(one, "requires_grad", False) for one in example_inputs):
        _warn("gradients are computed", "call it under torch.no_grad() or torch.inference_mode()")
        return graph.forward
    try:
        return _Compiled(_Captured(graph, example_inputs), options)
    except UnsupportedOperator as error:
        _warn(error.what, error.remedy)
        return graph.forward


def _warn(what: str, remedy: str) -> None:
    warnings.warn(f"roller: torch runs this graph: {what}; {remedy}", RunsInTorch, stacklevel=3)


class _Captured:
    """A captured graph with its weights told from its inputs.

    Attributes
    ----------
    weights, inputs : list of int
        Positions of the weights and of the input tensors among the arguments.
    """

    def __init__(self, graph: Any, example_inputs: Sequence[Any]) -> None:
        import torch

        self.graph = graph
        nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        tensors = [n for n, one in enumerate(example_inputs) if isinstance(one, torch.Tensor)]
        # Dynamo marks what belongs to the module: parameters, buffers.
        self.weights = [n for n in tensors if getattr(example_inputs[n], "_dynamo_static_input_type", None)]
        self.inputs = [n for n in tensors if n not in self.weights]
        self.open = {n: _open(nodes[n]) for n in self.inputs}
        kinds = {getattr(example_inputs[n].device, "type", "cpu") for n in tensors}
        if len(kinds) > 1:
            raise UnsupportedOperator(f"its tensors are on {' and '.join(sorted(kinds))}", remedy="move them to one")
        self.device = kinds.pop() if kinds else "cpu"

    def program(self, arguments: Sequence[Any]) -> tuple[Any, list[Callable[[Sequence[Any], Sequence[Any]], Any]]]:
        """Return the ExportedProgram of the graph with these weights, and how each result is had.

        A result is a function of the program's outputs and of the arguments.

        Raises
        ------
        UnsupportedOperator
            torch cannot export the graph, or it changes its inputs.
        """
        import torch

        module = torch.fx.GraphModule(self.graph, copy.deepcopy(self.graph.graph))
        graph = module.graph
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        results = _results(graph, placeholders)
        for position, node in enumerate(placeholders):
            if position in self.weights:
                name = f"roller_weight_{position}"
                module.register_buffer(name, arguments[position].detach())
                with graph.inserting_before(node):
                    node.replace_all_uses_with(graph.get_attr(name))
            elif position not in self.inputs:
                self._without_extent(graph, node, placeholders)
        for position, node in enumerate(placeholders):
            if position not in self.inputs:
                graph.erase_node(node)
        module.recompile()
        given = tuple(arguments[n].detach() for n in self.inputs)
        shapes = tuple({d: torch.export.Dim.AUTO for d in sorted(self.open[n])} for n in self.inputs)
        try:
            with torch.no_grad(), quiet():
                program = torch.export.export(module, given, dynamic_shapes=shapes, strict=False)
        except Exception as error:  # the exporter raises whatever tracing meets
            told = (str(error).strip() or type(error).__name__).splitlines()[0]
            remedy = "see the exporter's message"
            raise UnsupportedOperator(f"torch.export cannot take it: {told}", remedy=remedy) from error
        program = program.run_decompositions()  # before, changes in place are operators like others
        signature = program.graph_signature
        if signature.user_inputs_to_mutate or signature.buffers_to_mutate:
            raise UnsupportedOperator("it changes its inputs in place", remedy="return new tensors instead")
        return program, results

    def _without_extent(self, graph: Any, node: Any, placeholders: Sequence[Any]) -> None:
        """Read an open extent from the shape of an input."""
        import torch

        extent = node.meta.get("example_value", node.meta.get("val"))
        if not node.users:
            return
        for position in self.inputs:
            tensor = placeholders[position]
            shape = tensor.meta["example_value"].shape
            for d, own in enumerate(shape):
                if (
                    isinstance(own, torch.SymInt)
                    and isinstance(extent, torch.SymInt)
                    and own.node.expr == extent.node.expr
                ):
                    with graph.inserting_after(placeholders[-1]):
                        size = graph.call_method("size", (tensor, d))
                    node.replace_all_uses_with(size)
                    return
        raise UnsupportedOperator(f"the number {node.name} is an input", remedy="give it as a tensor")


def _open(node: Any) -> set[int]:
    """Return the dimensions of an input tensor that torch leaves open."""
    import torch

    shape = node.meta["example_value"].shape if "example_value" in node.meta else ()
    return {d for d, extent in enumerate(shape) if isinstance(extent, torch.SymInt)}


def _results(graph: Any, placeholders: Sequence[Any]) -> list[Callable[[Sequence[Any], Sequence[Any]], Any]]:
    """Leave the computed tensors as the graph's outputs; return how each of its results is had."""
    import torch

    output = next(node for node in graph.nodes if node.op == "output")
    found: list[Callable[[Sequence[Any], Sequence[Any]], Any]] = []
    kept: list[Any] = []
    for one in output.args[0]:
        if not isinstance(one, torch.fx.Node):
            found.append(partial(_constant, one))
        elif one in placeholders:
            found.append(partial(_argument, placeholders.index(one)))
        elif not isinstance(one.meta.get("example_value", one.meta.get("val")), torch.Tensor):
            raise UnsupportedOperator(f"its result {one.name} is no tensor", remedy="return it as a tensor")
        else:
            if one not in kept:
                kept.append(one)
            found.append(partial(_output, kept.index(one)))
    if not kept:
        raise UnsupportedOperator("it computes nothing", remedy="there is nothing to build")
    output.args = (tuple(kept),)
    return found


def _constant(value: Any, made: Sequence[Any], given: Sequence[Any]) -> Any:
    return value


def _argument(position: int, made: Sequence[Any], given: Sequence[Any]) -> Any:
    return given[position]


def _output(position: int, made: Sequence[Any], given: Sequence[Any]) -> Any:
    return made[position]


class _Compiled:
    """A captured graph, built when it is first called and again when its weights change.

    Where the exporter fixed a shape that torch leaves open, each shape gets a build of its own.
    """

    def __init__(self, captured: _Captured, options: Mapping[str, Any]) -> None:
        self._captured, self._options = captured, options
        self._models: list[tuple[api.Model, list[Any]]] = []
        self._versions: list[tuple[int, int]] = []
        self._in_torch = False

    def __call__(self, *arguments: Any) -> Any:
        import torch

        if self._in_torch:
            return self._captured.graph(*arguments)
        versions = [_version(arguments[n]) for n in self._captured.weights]
        if versions != self._versions:
            if self._models:
                warnings.warn("roller: weights have changed; the graph is built again", stacklevel=2)
            self._models, self._versions = [], versions
        given = {n: arguments[n] for n in self._captured.inputs}
        found = next((one for one in self._models if _takes(one[0], given.values())), None)
        if found is None:
            try:
                found = self._build(arguments)
            except RollerError as error:
                self._in_torch = True
                _warn(f"{error.what} ({error.where})" if error.where else error.what, error.remedy)
                return self._captured.graph(*arguments)
            self._models.append(found)
        model, results = found
        inputs = dict(zip(model.inputs, (_plain(one) for one in given.values()), strict=True))
        made = [torch.from_dlpack(one) if hasattr(one, "__dlpack__") else one for one in model.run(inputs, True)]
        return tuple(result(made, arguments) for result in results)

    def _build(self, arguments: Sequence[Any]) -> tuple[api.Model, list[Any]]:
        if len(self._models) == MOST_BUILDS:
            remedy = "mark open dimensions: torch._dynamo.mark_dynamic"
            raise UnsupportedOperator(f"{MOST_BUILDS} shapes are built", remedy=remedy)
        program, results = self._captured.program(arguments)
        options = dict(self._options)
        if self._captured.device == "cuda":
            options.setdefault("target", "cuda")
        model = api.compile(program, **options)
        if not _takes(model, [arguments[n] for n in self._captured.inputs]):
            told = ", ".join(f"{name} {list(shape)}" for name, (shape, _) in model.inputs.items())
            raise BadInput(f"the importer changed its inputs to {told}", "graph", "report it")
        return model, results


def _version(weight: Any) -> tuple[int, int]:
    """Return values that change when a weight changes in place or is another."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def _plain(tensor: Any) -> Any:
    """Return a tensor without gradient that DLPack can export."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _takes(model: api.Model, tensors: Any) -> bool:
    """Return True if a model takes tensors of these shapes."""
    extents: dict[str, int] = {}
    shapes = [shape for shape, _ in model.inputs.values()]
    try:
        for shape, one in zip(shapes, tensors, strict=True):
            bind(extents, "input", tuple(one.shape), shape, "graph")
    except (BadInput, ValueError):
        return False
    return True
