"""Mistakes in an ONNX graph that TVM's importers meet as a bare name, or not at all. Needs the onnx package."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..errors import BadInput, UnsupportedOperator
from .types import dtype_name, element_bytes

#: Domains whose operators TVM's importers read; they go by the operator's name alone.
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft", "org.pytorch.aten")
REMEDY = "check it with onnx.checker.check_model, and export it again"


def check_graph(model: Any, path: Path) -> None:
    """Refuse a graph with a value that nothing makes before it is read, or an operator of a foreign domain.

    Raises
    ------
    BadInput
        Naming the node or the output, and the value; or a weight or an input of an unknown type or a wrong size.
    UnsupportedOperator
        Naming the operator with its domain and its first node; or an input that is no tensor of numbers.
    """
    graph = model.graph
    weights = {weight.name for weight in graph.initializer}
    made = {value.name for value in graph.input} | weights
    made |= {weight.values.name for weight in graph.sparse_initializer}
    later = {name for node in graph.node for name in node.output}
    for node in graph.node:
        called = f"{node.op_type} '{node.name or (node.output[0] if node.output else '')}'"
        if node.domain not in DOMAINS:
            what = f"unsupported operators: {node.domain}.{called} of a domain that TVM does not know"
            raise UnsupportedOperator(what, str(path), "replace them in the model, or cut it before them")
        for name in node.input:
            if name and name not in made:
                why = "a later node makes: a cycle, or nodes out of order" if name in later else "nothing makes"
                raise BadInput(f"{called} reads the value '{name}', which {why}", str(path), REMEDY)
        twice = next((name for name in node.output if name and name in made), None)
        if twice is not None:
            raise BadInput(f"{called} makes the value '{twice}', which is there already", str(path), REMEDY)
        made.update(node.output)
    missing = [value.name for value in graph.output if value.name not in made]
    if missing or not graph.output:
        what = f"nothing makes its output '{missing[0]}'" if missing else "it has no outputs"
        raise BadInput(what, str(path), REMEDY)
    for value in graph.input:
        if value.name not in weights:
            _check_input(value, path)
    for weight in graph.initializer:
        _check_weight(weight, path)


def _check_input(value: Any, path: Path) -> None:
    from onnx import TensorProto

    told, number = f"input '{value.name}'", value.type.tensor_type.elem_type
    if value.type.WhichOneof("value") not in ("tensor_type", None):
        what = f"{told} is no tensor but a {value.type.WhichOneof('value').removesuffix('_type')}"
        raise UnsupportedOperator(what, str(path), "cut the model behind it")
    if number == TensorProto.STRING:
        raise UnsupportedOperator(f"{told} is a tensor of strings", str(path), "cut the model behind it")
    if number == TensorProto.UNDEFINED or number not in TensorProto.DataType.values():
        raise BadInput(f"{told} has the unknown element type {number}", str(path), REMEDY)


def _check_weight(weight: Any, path: Path) -> None:
    from onnx import TensorProto

    told = f"weight '{weight.name}'"
    if weight.data_type == TensorProto.UNDEFINED or weight.data_type not in TensorProto.DataType.values():
        raise BadInput(f"{told} has the unknown element type {weight.data_type}", str(path), REMEDY)
    dtype = dtype_name(weight.data_type)
    needed = math.prod(weight.dims) * element_bytes(weight.data_type)
    if dtype and weight.HasField("raw_data") and len(weight.raw_data) != needed:
        what = f"{told} holds {len(weight.raw_data)} bytes, and {dtype} {list(weight.dims)} needs {needed}"
        raise BadInput(what, str(path), "keep the files with its weights beside it, or export it again")
