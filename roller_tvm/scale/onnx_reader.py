"""An ONNX model as a graph of operators on known shapes. Needs onnx."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..errors import BadInput, UnsupportedOperator
from .expressions import expression_of
from .graph import Graph, Op, Value
from .ways import Node, ways_of

#: From this version of ONNX on, Softmax goes along one axis.
OPSET = 13


@dataclass(frozen=True)
class Source:
    """A model that was read: its graph, and ONNX's node of each operator."""

    graph: Graph
    nodes: tuple[Any, ...]
    opsets: tuple[Any, ...]
    ir_version: int


def read_graph(
    model: Any, name: str, shapes: Mapping[str, Any] | None = None, states: Mapping[str, str] | None = None
) -> Source:
    """Return the graph of an ONNX model.

    Parameters
    ----------
    model : onnx.ModelProto
    name : str
        Of the model in messages.
    shapes : mapping of input to shape, optional
    states : mapping of input to output, optional
        What an output has after a run its input has in the next.

    Raises
    ------
    BadInput
        A shape is open, or a state's input and output are not alike.
    UnsupportedOperator
        An operator holds a graph of its own, or is of another domain than ONNX's.
    """
    from onnx import numpy_helper

    model = _inferred(model, name, dict(shapes or {}))
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset < OPSET:
        raise UnsupportedOperator(f"is of opset {opset}", name, f"export it with opset {OPSET} or later")
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    ops, nodes = [], []
    values = {**_values(model, name), **{n: _value(n, a.shape, a.dtype) for n, a in constants.items()}}
    for node in _plain_nodes(model, name):
        if _folded(node, constants, values, model.opset_import):
            continue
        missing = [n for n in (*node.input, *node.output) if n and n not in values]
        if missing:
            raise BadInput(f"the shape of '{missing[0]}' is not known", name, "give --input-shapes, or simplify it")
        ops.append(_op(node, values, constants))
        nodes.append(node)
    inputs = tuple(i.name for i in model.graph.input if i.name not in constants)
    outputs = tuple(o.name for o in model.graph.output)
    graph = Graph(name, values, constants, inputs, outputs, tuple(ops), _states(states or {}, inputs, outputs, values))
    return Source(graph, tuple(nodes), tuple(model.opset_import), model.ir_version)


def _inferred(model: Any, name: str, shapes: dict[str, Any]) -> Any:
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    given = {i.name for i in copy.graph.initializer}
    for tensor in copy.graph.input:
        dims = tensor.type.tensor_type.shape.dim
        if tensor.name in shapes:
            wanted = shapes.pop(tensor.name)
            if len(wanted) != len(dims):
                raise BadInput(f"'{tensor.name}' has {len(dims)} dimensions, not {len(wanted)}", name, "give as many")
            for dim, extent in zip(dims, wanted, strict=True):
                dim.dim_value = int(extent)
        if tensor.name not in given and not all(d.dim_value for d in dims):
            raise BadInput(f"the shape of input '{tensor.name}' is open", name, "nodes share known extents: give "
                           f'--input-shapes "{tensor.name}:[...]"')  # fmt: skip
    if shapes:
        raise BadInput(f"has no input '{next(iter(shapes))}'", name, "give the shape of an input")
    try:
        return onnx.shape_inference.infer_shapes(copy, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise BadInput(f"its shapes do not agree: {error}", name, "check the model") from error


def _value(name: str, shape: Any, dtype: Any) -> Value:
    dtype = np.dtype(dtype)
    return Value(name, tuple(int(e) for e in shape), dtype.name, dtype.itemsize)


def _values(model: Any, name: str) -> dict[str, Value]:
    from onnx import helper

    found = {}
    for tensor in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        kind = tensor.type.tensor_type
        if kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim):
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
            found[tensor.name] = _value(tensor.name, (d.dim_value for d in kind.shape.dim), dtype)
    return found


def _plain_nodes(model: Any, name: str) -> Any:
    """Yield the nodes; a Gemm with a bias is a product and a sum, for what is added to addends would be added often."""
    from onnx import AttributeProto, helper

    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx"):
            raise UnsupportedOperator(f"'{node.op_type}' is of domain '{node.domain}'", name, "replace it")
        if any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute):
            told = f"'{node.op_type}' holds a graph of its own"
            raise UnsupportedOperator(told, name, "unroll it, or simplify the model")
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Gemm" and len(node.input) > 2 and node.input[2] and given.get("beta", 1.0) == 1.0:
            product = f"{node.output[0]}.product"
            kept = {key: value for key, value in given.items() if key != "beta"}
            yield helper.make_node("Gemm", node.input[:2], [product], name=node.name, **kept)
            yield helper.make_node("Add", [product, node.input[2]], node.output)
        else:
            yield node


def _folded(node: Any, constants: dict[str, Any], values: dict[str, Value], opsets: Any) -> bool:
    """Compute an operator of constants, and the shape of a tensor; return False for another."""
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    if node.op_type == "Shape" and node.input[0] in values and not node.attribute:
        made = [np.array(values[node.input[0]].shape, np.int64)]
    elif all(n in constants for n in node.input if n) and not node.op_type.startswith("Random"):
        empty = [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in node.output]
        graph = helper.make_graph([node], "constant", [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(constants[n].dtype), None)
            for n in dict.fromkeys(node.input) if n
        ], empty)  # fmt: skip
        evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets))
        made = [np.asarray(a) for a in evaluator.run(None, {n: constants[n] for n in node.input if n})]
    else:
        if node.op_type == "Gemm" and node.output[0] not in values:  # made by _plain_nodes
            given = {a.name: a.i for a in node.attribute if a.name in ("transA", "transB")}
            a, b = (values[n] for n in node.input[:2])
            shape = (a.shape[given.get("transA", 0)], b.shape[1 - given.get("transB", 0)])
            values[node.output[0]] = _value(node.output[0], shape, a.dtype)
        return False
    for name, array in zip(node.output, made, strict=True):
        constants[name] = array
        values[name] = _value(name, array.shape, array.dtype)
    return True


def _op(node: Any, values: Mapping[str, Value], constants: Mapping[str, Any]) -> Op:
    from onnx import helper

    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
    read = Node(
        node.op_type, attributes, tuple([values[n].shape if n else None for n in node.input]),
        tuple([values[n].shape for n in node.output if n]),
        {number: constants[n] for number, n in enumerate(node.input) if n in constants},
    )  # fmt: skip
    name = node.name or node.output[0]
    outputs = tuple([n for n in node.output if n])
    told = partial(expression_of, node.op_type, attributes)
    return Op(name, node.op_type, tuple(node.input), outputs, ways_of(read), told)


def _states(
    states: Mapping[str, str], inputs: tuple[str, ...], outputs: tuple[str, ...], values: Mapping[str, Value]
) -> Mapping[str, str]:
    for name, output in states.items():
        for known, one, what in ((inputs, name, "input"), (outputs, output, "output")):
            if one not in known:
                raise BadInput(f"has no {what} '{one}'", "states", f"its {what}s are {', '.join(known)}")
        if (values[name].shape, values[name].dtype) != (values[output].shape, values[output].dtype):
            told = f"'{name}' is {values[name].shape} {values[name].dtype}, '{output}' is another"
            raise BadInput(told, "states", "name an input and an output that are alike")
    return dict(states)
