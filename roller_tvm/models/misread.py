"""Forms of ONNX nodes that Relax's importer, or both importers, misread in silence: rewritten, or refused by name."""

from __future__ import annotations

from typing import Any

from .rewriting import Graph, Handler, attribute

#: Reductions, each with the operator that is left if nothing is reduced; Mul takes the input twice.
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


def unreduced(node: Any) -> list[Any]:
    """Return the node that a reduction over no axis is."""
    from onnx import helper

    left, x = UNREDUCED[node.op_type], node.input[0]
    return [helper.make_node(left, [x, x] if left == "Mul" else [x], node.output, name=node.name)]


def reduce(node: Any, graph: Graph) -> list[Any] | None:
    """Put the elementwise operator in the place of a reduction with noop_with_empty_axes and no axes."""
    if not attribute(node, "noop_with_empty_axes", 0) or attribute(node, "axes", None):
        return None
    axes = graph.value(node, 1, "axes") if len(node.input) > 1 else None
    return None if axes else unreduced(node)


def resize(node: Any, graph: Graph) -> None:
    """Refuse what TVM does not read: it has sizes of all axes, and no filter against aliasing."""
    from onnx import numpy_helper

    if attribute(node, "antialias", 0):
        raise graph.refused(node, "it reads no antialias", "export it with antialias=0")
    if attribute(node, "axes", None) is not None:
        raise graph.refused(node, "it reads no axes", "export it with an opset below 18")
    policy = attribute(node, "keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        raise graph.refused(node, f"it reads no keep_aspect_ratio_policy '{policy}'", "export it with the final sizes")
    scales = node.input[1] if len(node.input) == 2 else node.input[2] if len(node.input) > 2 else ""
    if scales in graph.constants:
        _whole_sizes(node, graph, numpy_helper.to_array(graph.constants[scales]).reshape(-1).tolist())


def upsample(node: Any, graph: Graph) -> None:
    """Refuse fractional sizes, as of Resize."""
    from onnx import numpy_helper

    scales = attribute(node, "scales", None)
    if scales is None and len(node.input) > 1 and node.input[1] in graph.constants:
        scales = numpy_helper.to_array(graph.constants[node.input[1]]).reshape(-1).tolist()
    _whole_sizes(node, graph, scales or [])


def relax_upsample(node: Any, graph: Graph) -> None:
    """Refuse scales as an attribute (opset 7), which Relax does not read."""
    if attribute(node, "scales", None) is not None:
        raise graph.refused(node, "its scales are an attribute", "export it with opset 11 or later")
    upsample(node, graph)


def _whole_sizes(node: Any, graph: Graph, scales: list[float]) -> None:
    """Refuse scales that give no whole sizes: TVM takes the ratio of the sizes in their place."""
    shape = graph.shape(node)
    for extent, scale in zip(shape or (), scales, strict=False):
        if extent is not None and abs(extent * scale - round(extent * scale)) > 1e-3:
            remedy = "export it with sizes instead of scales"
            raise graph.refused(node, f"{extent} times its scale {scale:g} is no integer", remedy)


def roi_align(node: Any, graph: Graph) -> None:
    """Refuse the mode 'max', for which TVM takes the largest sample before it interpolates."""
    if attribute(node, "mode", "avg") != "avg":
        raise graph.refused(node, "its mode is 'max'", "export it with mode='avg'")


def is_inf(node: Any, graph: Graph) -> None:
    """Refuse to look for one sign alone, which Relax does not read."""
    for sign in ("negative", "positive"):
        if not attribute(node, f"detect_{sign}", 1):
            raise graph.refused(node, f"it reads no detect_{sign}=0", "leave the attribute out, and compare the sign")


def non_max_suppression(node: Any, graph: Graph) -> None:
    """Refuse computed bounds, and an absent IoU threshold: Relax takes defaults of its own for them."""
    for index, what in ((2, "number of boxes"), (3, "IoU threshold"), (4, "score threshold")):
        name = node.input[index] if index < len(node.input) else ""
        if name not in graph.constants and (name or index == 3):
            raise graph.refused(node, f"its {what} is no constant", "give it as a constant")


#: Handlers for ``rewrite`` on the Relax line.
RELAX: dict[str, Handler] = {
    **dict.fromkeys(UNREDUCED, reduce),
    "IsInf": is_inf,
    "NonMaxSuppression": non_max_suppression,
    "Resize": resize,
    "RoiAlign": roi_align,
    "Upsample": relax_upsample,
}
