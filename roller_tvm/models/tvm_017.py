"""Forms of ONNX nodes that TVM 0.17's importer drops or misreads in silence: rewritten, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UnsupportedOperator
from .types import TensorType

#: Reductions by what is left of them if nothing is reduced: an operator on the input and itself, or on it alone.
UNREDUCED = {
    "ReduceL1": "Abs",
    "ReduceL2": "Abs",
    "ReduceLogSum": "Log",
    "ReduceLogSumExp": "Identity",
    "ReduceMax": "Identity",
    "ReduceMean": "Identity",
    "ReduceMin": "Identity",
    "ReduceProd": "Identity",
    "ReduceSum": "Identity",
    "ReduceSumSquare": "Mul",
}
SIMPLIFY = "simplify it first (pip install onnxslim; onnxslim IN OUT), or export it with an older opset"


def for_tvm_017(model: Any, known: Mapping[str, TensorType], path: Path) -> None:
    """Rewrite a model's nodes in place to forms that TVM 0.17 reads as ONNX means them.

    Parameters
    ----------
    model : onnx.ModelProto
    known : mapping of value name to TensorType
        As ``inferred_types`` gives them.
    path : Path
        For messages.

    Raises
    ------
    UnsupportedOperator
        Naming a node that has no such form.
    """
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    _rewrite(_Graph(model.graph, known, opset, path, {}))


@dataclass(frozen=True)
class _Graph:
    """A graph under rewriting.

    Parameters
    ----------
    graph : onnx.GraphProto
    known : mapping of value name to TensorType
    opset : int
        Version of ONNX's own operators.
    path : Path
        For messages.
    constants : dict
        Value name -> its tensor, of the graphs around it and, once ``_rewrite`` has run, of its own.
    """

    graph: Any
    known: Mapping[str, TensorType]
    opset: int
    path: Path
    constants: dict[str, Any]

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
            raise self.refused(node, f"its {what} '{name}' are no constant", SIMPLIFY)
        return [int(e) for e in numpy_helper.to_array(self.constants[name]).reshape(-1)]

    def refused(self, node: Any, why: str, remedy: str) -> UnsupportedOperator:
        """Return the error for a node that TVM 0.17 would misread."""
        called = node.name or node.output[0]
        return UnsupportedOperator(f"TVM 0.17 misreads {node.op_type} '{called}': {why}", str(self.path), remedy)


def _rewrite(graph: _Graph) -> None:
    from onnx import AttributeProto, TensorProto

    graph.constants.update({tensor.name: tensor for tensor in graph.graph.initializer})
    result, changed = [], False
    for node in graph.graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                _rewrite(_Graph(attribute.g, {}, graph.opset, graph.path, dict(graph.constants)))
            elif node.op_type == "Constant" and attribute.name == "value":
                graph.constants[node.output[0]] = attribute.t
            elif node.op_type == "Constant" and attribute.name in ("value_int", "value_ints"):
                ints = [attribute.i] if attribute.name == "value_int" else list(attribute.ints)
                tensor = TensorProto(dims=[len(ints)], data_type=TensorProto.INT64, int64_data=ints)
                graph.constants[node.output[0]] = tensor
        handler = _HANDLERS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
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


def _attribute(node: Any, name: str, default: Any) -> Any:
    from onnx import helper

    found = next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
    return found.decode() if isinstance(found, bytes) else found


def _replaced(node: Any, inputs: list[str], without: tuple[str, ...], **attributes: Any) -> list[Any]:
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


def _reduce(node: Any, graph: _Graph) -> list[Any] | None:
    """Turn the axes from an input into the attribute that they were before opset 18 (ReduceSum: 13).

    TVM 0.17 reads the first axis alone, or none; it gives a scalar's reduction a dimension.
    """
    from onnx import helper

    axes = graph.value(node, 1, "axes") if len(node.input) > 1 else None
    x = node.input[0]
    scalar = x in graph.known and graph.known[x].shape == ()
    noop = not axes and _attribute(node, "axes", None) is None and _attribute(node, "noop_with_empty_axes", 0)
    if scalar or noop:
        left = UNREDUCED[node.op_type]
        return [helper.make_node(left, [x, x] if left == "Mul" else [x], node.output, name=node.name)]
    if len(node.input) == 1:
        return None
    return _replaced(node, [x], ("noop_with_empty_axes",), **({"axes": axes} if axes else {}))


def _clip(node: Any, graph: _Graph) -> list[Any] | None:
    """Turn a clip into Max and Min, unless both bounds are constants in order.

    TVM 0.17 drops a bound whose other one is absent or computed.
    """
    from onnx import helper, numpy_helper

    low, high = ([*node.input[1:3], "", ""])[:2]
    if not low and not high:
        return None
    if low in graph.constants and high in graph.constants:
        bounds = [numpy_helper.to_array(graph.constants[name]).reshape(-1) for name in (low, high)]
        if bounds[0].size == bounds[1].size == 1 and bounds[0][0] <= bounds[1][0]:
            return None
    between = f"{node.output[0]}_above" if low and high else node.output[0]
    made = [helper.make_node("Max", [node.input[0], low], [between], name=node.name)] if low else []
    if high:
        above = between if low else node.input[0]
        made.append(helper.make_node("Min", [above, high], node.output, name=node.name))
    return made


def _dft(node: Any, graph: _Graph) -> list[Any] | None:
    """Turn the axis of opset 20, an input that is -2 by default, into the attribute of opset 17."""
    if graph.opset < 20:
        return None
    axis = graph.value(node, 2, "axis") or [-2]
    return _replaced(node, list(node.input[:2]), (), axis=axis[0])


def _gelu(node: Any, graph: _Graph) -> list[Any] | None:
    """Give the approximation by tanh the name under which TVM 0.17 reads it."""
    from onnx import helper

    if _attribute(node, "approximate", "none") != "tanh":
        return None
    return [helper.make_node("FastGelu", node.input[:1], node.output, name=node.name, domain="com.microsoft")]


def _resize(node: Any, graph: _Graph) -> None:
    """Refuse what TVM 0.17 does not read: it has sizes alone, of all axes, and no filter against aliasing."""
    from onnx import numpy_helper

    other = "export it with another mode, or as sizes instead of scales"
    if _attribute(node, "antialias", 0):
        raise graph.refused(node, "it reads no antialias", "export it with antialias=0")
    if _attribute(node, "axes", None) is not None:
        raise graph.refused(node, "it reads no axes", "export it with an opset below 18")
    policy = _attribute(node, "keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        raise graph.refused(node, f"it reads no keep_aspect_ratio_policy '{policy}'", "export it with the final sizes")
    scales = node.input[1] if len(node.input) == 2 else node.input[2] if len(node.input) > 2 else ""
    shape = graph.known[node.input[0]].shape if node.input[0] in graph.known else None
    if scales not in graph.constants or shape is None:
        return
    for extent, scale in zip(shape, numpy_helper.to_array(graph.constants[scales]).reshape(-1), strict=False):
        if extent is not None and abs(extent * float(scale) - round(extent * float(scale))) > 1e-3:
            raise graph.refused(node, f"{extent} times its scale {float(scale):g} is no integer", other)


def _roi_align(node: Any, graph: _Graph) -> None:
    """Refuse what TVM 0.17 does not read of RoiAlign: the mode 'max', and half pixels (opset 16's default)."""
    if _attribute(node, "mode", "avg") != "avg":
        raise graph.refused(node, "its mode is 'max'", "export it with mode='avg'")
    default = "half_pixel" if graph.opset >= 16 else "output_half_pixel"
    if _attribute(node, "coordinate_transformation_mode", default) != "output_half_pixel":
        remedy = "export it with 'output_half_pixel' (aligned=False)"
        raise graph.refused(node, "its coordinates are 'half_pixel'", remedy)


def _max_unpool(node: Any, graph: _Graph) -> None:
    """Refuse an output shape: the indices count in the unpadded one."""
    if len(node.input) > 2 and node.input[2]:
        raise graph.refused(node, "it has an output_shape", "export it without")


_HANDLERS: dict[str, Callable[[Any, _Graph], list[Any] | None]] = {
    **dict.fromkeys(UNREDUCED, _reduce),
    "Clip": _clip,
    "DFT": _dft,
    "Gelu": _gelu,
    "MaxUnpool": _max_unpool,
    "Resize": _resize,
    "RoiAlign": _roi_align,
}
