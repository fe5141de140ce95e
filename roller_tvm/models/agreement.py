"""An imported module's types held against ONNX's: the first node that an importer reads otherwise is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import BadInput, UnsupportedOperator
from .onnx_file import Onnx
from .types import TensorType

REMEDY = "export the model with another opset, or replace this node"
Types = Mapping[str, TensorType]


def check_types(onnx: Onnx, imported: Types) -> None:
    """Refuse a module whose types, by name of value, contradict ONNX's own inference.

    A value between two nodes may be held in another form that its readers know (a scalar as one element, another
    integer type), so it is refused only if its number of elements differs. An output must agree in dtype and shape.
    A value that no output needs is not compared, nor one whose type is not known on both sides.

    Raises
    ------
    BadInput
        Naming the first node whose output has an extent below 0 (pads of -20).
    UnsupportedOperator
        Naming the first node whose output differs, with both types.
    """
    known, outputs = onnx.known, set(onnx.outputs)
    needed = _needed(onnx.model, outputs)
    for node in onnx.model.graph.node:
        for name in node.output:
            if name in imported and any(e is not None and e < 0 for e in imported[name].shape or ()):
                subject = f"{node.op_type} '{node.name or node.output[0]}'"
                what = f"{subject} has an output of negative size: {imported[name]}"
                raise BadInput(what, str(onnx.path), "correct its pads, window or shapes")
            if name not in needed or name not in known or name not in imported:
                continue
            sizes = {known[name].elements, imported[name].elements} - {None}
            if len(sizes) > 1:
                raise _differs(onnx, node, name, imported)
            if name in outputs and known[name].contradicts(imported[name]):
                raise _differs(onnx, *_first(onnx, name, imported), imported)


def _differs(onnx: Onnx, node: Any, name: str, imported: Types) -> UnsupportedOperator:
    what = f"{onnx.importer} reads {node.op_type} '{node.name or node.output[0]}' otherwise than ONNX"
    return onnx.wrong(f"{what}: its output '{name}' is {imported[name]}, and ONNX infers {onnx.known[name]}", REMEDY)


def check_outputs(onnx: Onnx, expected: Types, got: list[TensorType | None], judge: str = "ONNX") -> None:
    """Refuse outputs of another number, dtype or shape than expected.

    Parameters
    ----------
    expected : mapping of output name to TensorType
    got : list of (TensorType or None)
        Outputs of the module in its order; None for one that is no tensor.
    judge : str
        Source of ``expected``.

    Raises
    ------
    UnsupportedOperator
        Naming the first output that differs, with both types.
    """
    names = onnx.outputs
    if len(names) != len(got):
        what = f"{onnx.importer} gives {len(got)} outputs, and the file has {len(names)}: {', '.join(names)}"
        raise onnx.wrong(what, "export the model again, each output once")
    for name, kind in zip(names, got, strict=True):
        if kind is not None and name in expected and kind.contradicts(expected[name]):
            what = f"output '{name}' is {kind} by {onnx.importer}, and {expected[name]} by {judge}"
            raise onnx.wrong(what, "export the model with another opset, or cut it before the node that differs")


def _needed(model: Any, values: Iterable[str]) -> set[str]:
    """Return the values that these values are computed from, with themselves."""
    makers = {output: node for node in model.graph.node for output in node.output if output}
    needed, left = set(), list(values)
    while left:
        value = left.pop()
        if value not in needed:
            needed.add(value)
            left += makers[value].input if value in makers else []
    return needed


def _first(onnx: Onnx, name: str, imported: Types) -> tuple[Any, str]:
    """Return the first node on the way to a value whose output differs, and that output's name."""
    needed, known = _needed(onnx.model, [name]), onnx.known
    return next(
        (node, output)
        for node in onnx.model.graph.node
        for output in node.output
        if output in needed and output in known and output in imported and known[output].contradicts(imported[output])
    )
