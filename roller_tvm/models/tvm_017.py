"""Forms of ONNX nodes that TVM 0.17's importer alone misreads in silence: rewritten, or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import misread
from .rewriting import SIMPLIFY, Graph, Handler, attribute, replaced


def _reduce(node: Any, graph: Graph) -> list[Any] | None:
    """Turn the axes from an input into the attribute that they were before opset 18 (ReduceSum: 13).

    TVM 0.17 reads the first axis alone, or none; it gives a scalar's reduction a dimension.
    """
    x = node.input[0]
    axes = graph.value(node, 1, "axes") if len(node.input) > 1 else None
    if x in graph.known and graph.known[x].shape == ():
        return misread.unreduced(node)
    if (made := misread.reduce(node, graph)) is not None or len(node.input) == 1:
        return made
    return replaced(node, [x], ("noop_with_empty_axes",), **({"axes": axes} if axes else {}))


def _constant(node: Any, graph: Graph) -> list[Any] | None:
    """Turn a constant's Python numbers into the tensor that TVM 0.17 reads alone."""
    from onnx import numpy_helper

    for name in ("value_int", "value_ints", "value_float", "value_floats"):
        numbers, dtype = attribute(node, name, None), "int64" if "int" in name else "float32"
        if numbers is not None:
            return replaced(node, [], (name,), value=numpy_helper.from_array(np.array(numbers, dtype)))
    return None


def _clip(node: Any, graph: Graph) -> list[Any] | None:
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


def _cum_sum(node: Any, graph: Graph) -> list[Any] | None:
    """Leave sums of no elements out: TVM 0.17 writes the first sum in any case, behind the tensor's memory."""
    from onnx import helper

    if 0 not in (graph.shape(node) or ()):
        return None
    return [helper.make_node("Identity", node.input[:1], node.output, name=node.name)]


def _dft(node: Any, graph: Graph) -> list[Any] | None:
    """Turn the axis of opset 20, an input that is -2 by default, into the attribute of opset 17."""
    if graph.opset < 20:
        return None
    axis = graph.value(node, 2, "axis") or [-2]
    return replaced(node, list(node.input[:2]), (), axis=axis[0])


def _gelu(node: Any, graph: Graph) -> list[Any] | None:
    """Give the approximation by tanh the name under which TVM 0.17 reads it."""
    from onnx import helper

    if attribute(node, "approximate", "none") != "tanh":
        return None
    return [helper.make_node("FastGelu", node.input[:1], node.output, name=node.name, domain="com.microsoft")]


def _dropout(node: Any, graph: Graph) -> list[Any] | None:
    """Leave the ratio and the training mode out, which TVM 0.17 takes for other arguments; refuse training."""
    if any(graph.value(node, 2, "training mode") or ()):
        raise graph.refused(node, "it is in training mode", "export the model for inference")
    return replaced(node, list(node.input[:1]), ("seed",)) if len(node.input) > 1 else None


def _split(node: Any, graph: Graph) -> list[Any] | None:
    """Write out the sizes of num_outputs parts, the last of which may be smaller."""
    parts, axis = attribute(node, "num_outputs", 0), attribute(node, "axis", 0)
    shape = graph.shape(node)
    extent = shape[axis] if shape is not None else None
    if not parts or extent is None or (len(node.input) > 1 and node.input[1]):
        return None
    size = -(-extent // parts)
    return _with_integers(node, 1, [min(size, extent - size * at) for at in range(parts)], ("num_outputs",))


def _pad(node: Any, graph: Graph) -> list[Any] | None:
    """Write out the pads of all axes, of which opset 18 may name some."""
    if len(node.input) < 4 or not node.input[3]:
        return None
    axes, pads = graph.value(node, 3, "axes") or [], graph.value(node, 1, "pads") or []
    rank = _rank(node, graph)
    everywhere = [0] * (2 * rank)
    for at, axis in enumerate(axes):
        everywhere[axis % rank], everywhere[rank + axis % rank] = pads[at], pads[len(axes) + at]
    made = _with_integers(node, 1, everywhere, ())
    del made[-1].input[3:]
    return made


def _unsqueeze(node: Any, graph: Graph) -> list[Any] | None:
    """Count axes from the front and sort them: TVM 0.17 inserts one after the other."""
    if len(node.input) < 2 or node.input[1] not in graph.constants:
        return None
    axes = graph.value(node, 1, "axes") or []
    if len(axes) == 1 or (min(axes) >= 0 and axes == sorted(axes)):
        return None
    rank = _rank(node, graph) + len(axes)
    return _with_integers(node, 1, sorted(axis % rank for axis in axes), ())


def _rank(node: Any, graph: Graph) -> int:
    if (shape := graph.shape(node)) is None:
        raise graph.refused(node, "the rank of its input is unknown", SIMPLIFY)
    return len(shape)


def _with_integers(node: Any, index: int, numbers: list[int], without: tuple[str, ...]) -> list[Any]:
    """Return a constant and the node that reads it as this input."""
    from onnx import helper, numpy_helper

    name = f"{node.output[0]}_integers"
    tensor = numpy_helper.from_array(np.array(numbers, "int64"), name)
    inputs = [*node.input, ""][: max(len(node.input), index + 1)]
    inputs[index] = name
    return [helper.make_node("Constant", [], [name], value=tensor), *replaced(node, inputs, without)]


def _lp_pool(node: Any, graph: Graph) -> list[Any]:
    """Take the absolute value first, which TVM 0.17 leaves out: an odd power of a negative number is negative."""
    from onnx import helper

    absolute = f"{node.output[0]}_absolute"
    return [helper.make_node("Abs", node.input, [absolute]), *replaced(node, [absolute], ())]


def _eye_like(node: Any, graph: Graph) -> None:
    """Refuse another diagonal than the main one."""
    if attribute(node, "k", 0):
        raise graph.refused(node, f"its diagonal is k={attribute(node, 'k', 0)}", "replace it by a constant")


def _resize(node: Any, graph: Graph) -> None:
    """Refuse to round coordinates upwards: TVM 0.17 takes another element at whole and half ones."""
    misread.resize(node, graph)
    rounding = attribute(node, "nearest_mode", "round_prefer_floor")
    if attribute(node, "mode", "nearest") == "nearest" and rounding in ("ceil", "round_prefer_ceil"):
        raise graph.refused(node, f"its nearest_mode is '{rounding}'", "export it with 'floor' or 'round_prefer_floor'")


def _roi_align(node: Any, graph: Graph) -> None:
    """Refuse half pixels, which are opset 16's default."""
    misread.roi_align(node, graph)
    default = "half_pixel" if graph.opset >= 16 else "output_half_pixel"
    if attribute(node, "coordinate_transformation_mode", default) != "output_half_pixel":
        remedy = "export it with 'output_half_pixel' (aligned=False)"
        raise graph.refused(node, "its coordinates are 'half_pixel'", remedy)


#: Handlers for ``rewrite``.
TVM_017: dict[str, Handler] = {
    **dict.fromkeys(misread.UNREDUCED, _reduce),
    "Clip": _clip,
    "Constant": _constant,
    "CumSum": _cum_sum,
    "DFT": _dft,
    "Dropout": _dropout,
    "EyeLike": _eye_like,
    "Gelu": _gelu,
    "GlobalLpPool": _lp_pool,
    "LpPool": _lp_pool,
    "Pad": _pad,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "Split": _split,
    "Unsqueeze": _unsqueeze,
    "Upsample": misread.upsample,
}
