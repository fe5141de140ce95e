"""An imported module's types held against ONNX's: the first node that an importer reads otherwise is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import UnsupportedOperator
from .types import TensorType

REMEDY = "export the model with another opset, or replace this node"


def check_types(
    model: Any,
    known: Mapping[str, TensorType],
    imported: Mapping[str, TensorType],
    path: Path,
    importer: str,
) -> None:
    """Refuse a module whose types contradict ONNX's own inference.

    A value between two nodes may be held in another form that its readers know (a scalar as one element, another
    integer type), so it is refused only if its number of elements differs. An output must agree in dtype and shape.
    A value that no output needs is not compared.

    Parameters
    ----------
    model : onnx.ModelProto
    known, imported : mapping of value name to TensorType
        Of ONNX, and of the importer; names that only one of them has are not compared.
    path : Path
        For the message.
    importer : str
        Name and version of the importer, for the message.

    Raises
    ------
    UnsupportedOperator
        Naming the first node whose output differs, with both types.
    """
    outputs = {value.name for value in model.graph.output}
    needed = _needed(model, outputs)
    for node in model.graph.node:
        for name in node.output:
            if name not in needed or name not in known or name not in imported:
                continue
            sizes = {known[name].elements, imported[name].elements} - {None}
            if len(sizes) > 1:
                raise _differs(node, name, known, imported, path, importer)
            if name in outputs and known[name].contradicts(imported[name]):
                raise _differs(*_first(model, name, known, imported), known, imported, path, importer)


def _differs(
    node: Any,
    name: str,
    known: Mapping[str, TensorType],
    imported: Mapping[str, TensorType],
    path: Path,
    importer: str,
) -> UnsupportedOperator:
    called = node.name or node.output[0]
    what = f"{importer} reads {node.op_type} '{called}' otherwise than ONNX"
    types = f"its output '{name}' is {imported[name]}, and ONNX infers {known[name]}"
    return UnsupportedOperator(f"{what}: {types}", str(path), REMEDY)


def check_outputs(
    names: list[str],
    expected: Mapping[str, TensorType],
    got: list[TensorType | None],
    path: Path,
    words: tuple[str, str],
) -> None:
    """Refuse outputs of another number, dtype or shape than expected.

    Parameters
    ----------
    names : list of str
        Outputs in the order of the file.
    expected : mapping of output name to TensorType
    got : list of (TensorType or None)
        Outputs of the module in its order; None for one that is no tensor.
    path : Path
        For the message.
    words : tuple of str
        Source of ``got``, and source of ``expected``.

    Raises
    ------
    UnsupportedOperator
        Naming the first output that differs, with both types.
    """
    importer, judge = words
    if len(names) != len(got):
        what = f"{importer} gives {len(got)} outputs, and the file has {len(names)}: {', '.join(names)}"
        raise UnsupportedOperator(what, str(path), "export the model again, each output once")
    for name, kind in zip(names, got, strict=True):
        if kind is not None and name in expected and kind.contradicts(expected[name]):
            raise UnsupportedOperator(
                f"output '{name}' is {kind} by {importer}, and {expected[name]} by {judge}",
                str(path),
                "export the model with another opset, or cut it before the node that differs",
            )


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


def _first(
    model: Any, name: str, known: Mapping[str, TensorType], imported: Mapping[str, TensorType]
) -> tuple[Any, str]:
    """Return the first node on the way to a value whose output differs, and that output's name."""
    needed = _needed(model, [name])
    return next(
        (node, output)
        for node in model.graph.node
        for output in node.output
        if output in needed and output in known and output in imported and known[output].contradicts(imported[output])
    )
