"""Nodes of an ONNX graph put in the place of others, or refused by name. Needs the onnx package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import UnsupportedOperator
from .onnx_file import Onnx
from .types import TensorType

SIMPLIFY = "simplify it first (pip install onnxslim; onnxslim IN OUT), or export it with an older opset"


@dataclass(frozen=True)
class Graph:
    """A graph under rewriting: the model's own, or one within a node.

    Parameters
    ----------
    graph : onnx.GraphProto
    onnx : Onnx
    known : mapping of value name to TensorType
        Empty within a node.
    constants : dict
        Value name -> its tensor, of the graphs around it and of its own nodes so far.
    """

    graph: Any
    onnx: Onnx
    known: Mapping[str, TensorType]
    constants: dict[str, Any]

    @property
    def opset(self) -> int:
        """Version of ONNX's own operators."""
        return self.onnx.opset

    def shape(self, node: Any) -> tuple[int | None, ...] | None:
        """Return the shape of a node's first input as far as it is known, None where its rank is not."""
        known = self.known.get(node.input[0])
        return None if known is None else known.shape

    def value(self, node: Any, index: int, what: str) -> list[int] | None:
        """Return a constant integer input as a list; None if it is absent.

        Raises
        ------
        UnsupportedOperator
            The input is computed in the graph.
        """
        from onnx import numpy_helper

        name = node.input[index] if index < len(node.input) else ""
        if not name:
            return None
        if name not in self.constants:
            raise self.refused(node, f"'{name}', its {what}, is no constant", SIMPLIFY)
        return [int(e) for e in numpy_helper.to_array(self.constants[name]).reshape(-1)]

    def refused(self, node: Any, why: str, remedy: str) -> UnsupportedOperator:
        """Return the error for a node that the importer would misread."""
        called = node.name or node.output[0]
        return self.onnx.wrong(f"{self.onnx.importer} misreads {node.op_type} '{called}': {why}", remedy)


#: From a node to the nodes in its place; None if it stays.
Handler = Callable[[Any, Graph], "list[Any] | None"]


def rewrite(onnx: Onnx, handlers: Mapping[str, Handler]) -> None:
    """Put other nodes in the place of a model's, in place, in its subgraphs too; `handlers` are by operator.

    Raises
    ------
    UnsupportedOperator
        A handler refused a node.
    """
    _rewrite(Graph(onnx.model.graph, onnx, onnx.known, {}), handlers)


def _rewrite(graph: Graph, handlers: Mapping[str, Handler]) -> None:
    from onnx import AttributeProto, TensorProto

    graph.constants.update({tensor.name: tensor for tensor in graph.graph.initializer})
    result, changed = [], False
    for node in graph.graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                _rewrite(replace(graph, graph=attribute.g, known={}, constants=dict(graph.constants)), handlers)
            elif node.op_type == "Constant" and attribute.name == "value":
                graph.constants[node.output[0]] = attribute.t
            elif node.op_type == "Constant" and attribute.name in ("value_int", "value_ints"):
                ints = [attribute.i] if attribute.name == "value_int" else list(attribute.ints)
                tensor = TensorProto(dims=[len(ints)], data_type=TensorProto.INT64, int64_data=ints)
                graph.constants[node.output[0]] = tensor
        handler = handlers.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        made = handler(node, graph) if handler is not None else None
        changed |= made is not None
        result += [node] if made is None else made
    if changed:
        copies = []
        for node in result:
            copies.append(type(node)())
            copies[-1].CopyFrom(node)
        del graph.graph.node[:]
        graph.graph.node.extend(copies)


def attribute(node: Any, name: str, default: Any) -> Any:
    """Return the value of a node's attribute; text as str."""
    from onnx import helper

    found = next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
    return found.decode() if isinstance(found, bytes) else found


def replaced(node: Any, inputs: list[str], without: tuple[str, ...], **attributes: Any) -> list[Any]:
    """Return the node with other inputs, without some attributes and with others."""
    from onnx import helper

    made = type(node)()
    made.CopyFrom(node)
    del made.input[:]
    made.input.extend(inputs)
    kept = [a for a in node.attribute if a.name not in (*without, *attributes)]
    del made.attribute[:]
    made.attribute.extend([*kept, *(helper.make_attribute(key, value) for key, value in attributes.items())])
    return [made]
