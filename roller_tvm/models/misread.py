"""Forms of ONNX nodes that the importers of both of TVM's lines misread in silence: refused by name."""

from __future__ import annotations

from typing import Any

from .rewriting import Graph, Handler, attribute


def resize(node: Any, graph: Graph) -> None:
    """Refuse what TVM does not read: it has sizes of all axes, and no filter against aliasing."""
    from onnx import numpy_helper

    other = "export it with another mode, or as sizes instead of scales"
    if attribute(node, "antialias", 0):
        raise graph.refused(node, "it reads no antialias", "export it with antialias=0")
    if attribute(node, "axes", None) is not None:
        raise graph.refused(node, "it reads no axes", "export it with an opset below 18")
    policy = attribute(node, "keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        raise graph.refused(node, f"it reads no keep_aspect_ratio_policy '{policy}'", "export it with the final sizes")
    scales = node.input[1] if len(node.input) == 2 else node.input[2] if len(node.input) > 2 else ""
    shape = graph.known[node.input[0]].shape if node.input[0] in graph.known else None
    if scales not in graph.constants or shape is None:
        return
    for extent, scale in zip(shape, numpy_helper.to_array(graph.constants[scales]).reshape(-1), strict=False):
        if extent is not None and abs(extent * float(scale) - round(extent * float(scale))) > 1e-3:
            raise graph.refused(node, f"{extent} times its scale {float(scale):g} is no integer", other)


def roi_align(node: Any, graph: Graph) -> None:
    """Refuse the mode 'max', for which TVM takes the largest sample before it interpolates."""
    if attribute(node, "mode", "avg") != "avg":
        raise graph.refused(node, "its mode is 'max'", "export it with mode='avg'")


#: Handlers for ``rewrite``.
MISREAD: dict[str, Handler] = {"Resize": resize, "RoiAlign": roi_align}
