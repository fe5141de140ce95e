"""ONNX files: read, their inputs' shapes, and what an importer's refusal means. Needs the onnx package alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..errors import BadInput
from .shapes import Shapes, example


def read_onnx(path: Path, install: str, others: str) -> Any:
    """The model in an ONNX file.

    Parameters
    ----------
    path : Path
    install : str
        What installs the onnx package that the TVM here works with.
    others : str
        What other files are read, for the one that meant to give such a file.

    Raises
    ------
    BadInput
        The file cannot be read, or is no ONNX model.
    """
    try:
        import onnx
    except ImportError as error:
        raise BadInput("reading ONNX needs the 'onnx' package", str(path), install) from error
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]

    not_onnx = BadInput("is not an ONNX model", str(path), f"export it to ONNX; {others}")
    try:
        model = onnx.load(str(path))
    except (DecodeError, ValueError, UnicodeDecodeError) as error:
        raise not_onnx from error
    except OSError as error:
        raise BadInput(
            f"cannot be read: {error}", str(path), "keep the files with its weights beside it"
        ) from error
    if not model.graph.node or not model.opset_import:
        raise not_onnx
    return model


def opsets(model: Any) -> str:
    """The operator sets that a model asks for, as words."""
    return ", ".join(f"{o.domain or 'onnx'} {o.version}" for o in model.opset_import)


def unsupported(names: list[str], model: Any) -> str:
    """The operators that were refused, with where each is used first."""
    told = []
    for name in dict.fromkeys(names):
        nodes = [n for n in model.graph.node if n.op_type == name]
        where = nodes[0].name or nodes[0].output[0] if nodes else ""
        told.append(f"{name} ({len(nodes)}x, first at '{where}')" if nodes else name)
    return f"unsupported operators: {', '.join(told)}"


def node_of(model: Any, value: str) -> str:
    """Return operator and name of the node that makes a value; empty if none does."""
    node = next((n for n in model.graph.node if value and value in n.output), None)
    return f"{node.op_type} '{node.name or node.output[0]}'" if node is not None else ""


def input_shapes(
    model: Any, given: Shapes, path: Path, keep_open: bool = False
) -> dict[str, tuple[int | str, ...]]:
    """The shape of every real input (one that is not a weight).

    Parameters
    ----------
    model : onnx.ModelProto
    given : mapping of input name to shape
        For inputs whose shape the file leaves open, or to change them.
    path : Path
        For messages.
    keep_open : bool
        Extents that stay open are given by their names, instead of being refused all at once.

    Raises
    ------
    BadInput
        A shape is open or unknown, or a given one is of the wrong rank or of no input.
    """
    weights = {i.name for i in model.graph.initializer}
    result: dict[str, tuple[int | str, ...]] = {}
    names = [i.name for i in model.graph.input if i.name not in weights]
    for name in given:
        if name not in names:
            raise BadInput(f"no input is called '{name}'", str(path), f"its inputs are {', '.join(names)}")
    still_open: dict[str, str] = {}
    bound = _bound(model, given)
    for value in model.graph.input:
        if value.name in weights:
            continue
        kind = value.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else 0 for d in kind.shape.dim]
        words = [n if n > 0 else d.dim_param or "?" for n, d in zip(dims, kind.shape.dim, strict=True)]
        if value.name in given:
            shape = given[value.name]
            if kind.HasField("shape") and len(dims) != len(shape):
                raise BadInput(
                    f"input '{value.name}' has {len(dims)} dimensions, {list(shape)} has {len(shape)}",
                    str(path),
                    "give a shape of the same rank",
                )
            result[value.name] = shape
            continue
        words = [bound.get(str(word), word) for word in words]
        if not kind.HasField("shape") or (any(isinstance(w, str) for w in words) and not keep_open):
            still_open[value.name] = f"[{', '.join(map(str, words))}]" if words else "of unknown rank"
        else:
            result[value.name] = tuple(words)
    if still_open:
        told = ", ".join(f"'{name}' {shape}" for name, shape in still_open.items())
        written = " ".join(f"{name}:{example(shape)}" for name, shape in still_open.items())
        raise BadInput(
            f"has inputs of dynamic shape: {told}", str(path), f'fix them: --input-shapes "{written}"'
        )
    return result


def _bound(model: Any, given: Shapes) -> dict[str, int]:
    """What given shapes make of the open extents that have a name, which other inputs may have too."""
    found: dict[str, int] = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim, extent in zip(dims, given.get(value.name, ()), strict=False):  # another rank is refused
            if dim.dim_param:
                found.setdefault(dim.dim_param, extent)
    return found


def words_of(text: str) -> list[str]:
    """Names in the part of a message behind its last colon."""
    return re.findall(r"\w[\w.]*", text.split(":")[-1])
