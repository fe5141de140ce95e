"""ONNX files: reading, the shapes of their inputs, and the words for an importer's refusal. Needs onnx alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadInput, UnsupportedOperator, last_line
from .shapes import Shapes, example
from .types import TensorType, opset_of
from .wellformed import check_graph

REPLACE = "replace them in the model, or cut it before them"


def read_onnx(path: Path, install: str, others: str) -> Any:
    """Return the model in an ONNX file, its graph checked.

    Parameters
    ----------
    install : str
        Command that installs the onnx package for the TVM here.
    others : str
        Names of the other kinds of files that are read, for the remedy.

    Raises
    ------
    BadInput
        The file or its weights cannot be read, it is no ONNX model, or its graph is broken.
    UnsupportedOperator
        An operator is of a domain that TVM does not know.
    """
    try:
        import onnx
    except ImportError as error:
        raise BadInput("reading ONNX needs the 'onnx' package", str(path), install) from error
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]

    not_onnx = BadInput("is not an ONNX model", str(path), f"export it to ONNX; {others}")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, ValueError, UnicodeDecodeError) as error:
        raise not_onnx from error
    except OSError as error:
        raise BadInput(f"cannot be read: {last_line(error)}", str(path), "make the file readable") from error
    if not model.graph.node or not model.opset_import:
        raise not_onnx
    check_places(model, path)
    try:
        onnx.load_external_data_for_model(model, str(path.parent))
    except Exception as error:  # missing files, and the checker's own errors for a wrong size or place
        remedy = "keep the files with its weights beside it, unchanged"
        raise BadInput(f"its weights cannot be read: {last_line(error)}", str(path), remedy) from error
    check_graph(model, path)
    return model


def check_places(model: Any, path: Path) -> None:
    """Refuse weights in files outside of the model's folder, by their name or through a link."""
    from onnx.external_data_helper import ExternalDataInfo, _get_all_tensors, uses_external_data

    folder = path.parent.resolve()
    for tensor in _get_all_tensors(model):
        if uses_external_data(tensor):
            place = folder / str(ExternalDataInfo(tensor).location)
            try:
                inside = folder in place.resolve().parents
            except (OSError, ValueError, RuntimeError):  # a name that no file can have, a circle of links
                inside = False
            if not inside:
                what = f"its weight '{tensor.name}' lies outside of its folder, in {place}"
                raise BadInput(what, str(path), "keep the files with its weights beside it, not behind a link")


class NotImported(Exception):
    """An importer's error, with the node that it was at.

    Parameters
    ----------
    error : Exception
    node : str
        Operator and name of the node; empty if it is unknown.
    """

    def __init__(self, error: Exception, node: str) -> None:
        super().__init__(str(error))
        self.error = error
        self.node = node


@dataclass(frozen=True)
class Onnx:
    """An ONNX model on its way into a module of TVM.

    Parameters
    ----------
    model : onnx.ModelProto
    path : Path
        Its file, for messages.
    importer : str
        Name and version of TVM's importer, for messages.
    shapes : mapping of input name to shape
        As `input_shapes` gives them.
    known : mapping of value name to TensorType
        As `types.inferred_types` gives them.
    """

    model: Any
    path: Path
    importer: str
    shapes: Mapping[str, tuple[int | str, ...]]
    known: Mapping[str, TensorType]

    @property
    def opset(self) -> int:
        """Version of ONNX's own operators."""
        return opset_of(self.model)

    @property
    def outputs(self) -> list[str]:
        """Names of the model's outputs, in order."""
        return [value.name for value in self.model.graph.output]

    def wrong(self, what: str, remedy: str) -> UnsupportedOperator:
        """Return the error for a model that would be computed otherwise than ONNX says."""
        return UnsupportedOperator(what, str(self.path), remedy)

    def refused(self, failure: NotImported, lacking: type[Exception], remedy: str) -> UnsupportedOperator:
        """Return an importer's error in our words; `lacking` is TVM's class for unknown operators."""
        if isinstance(failure.error, lacking):
            names = words_of(str(failure.error))
            return self.wrong(unsupported(names, self.model) if names else last_line(failure.error), REPLACE)
        if isinstance(failure.error, UnsupportedOperator):  # of our own converters
            return self.wrong(f"{failure.node}: {failure.error.what}" if failure.node else failure.error.what,
                              failure.error.remedy)  # fmt: skip
        subject = f"{self.importer} cannot import {failure.node or 'it'} (opset {opsets(self.model)})"
        return self.wrong(f"{subject}: {last_line(failure.error)}", remedy)


def first_missing(model: Any, made: Mapping[str, Any]) -> str:
    """Return operator and name of the first node whose outputs an importer has not made; empty if none."""
    node = next((n for n in model.graph.node if not any(name in made for name in n.output)), None)
    return node_of(model, next(iter(node.output), "")) if node is not None else ""


def opsets(model: Any) -> str:
    """Return the operator sets of a model, as words."""
    return ", ".join(f"{o.domain or 'onnx'} {o.version}" for o in model.opset_import)


def unsupported(names: list[str], model: Any) -> str:
    """Return a message that names the refused operators, each with its first node."""
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


def input_shapes(model: Any, given: Shapes, path: Path, keep_open: bool = False) -> dict[str, tuple[int | str, ...]]:
    """Return the shape of every input that is not a weight, by name.

    Parameters
    ----------
    given : mapping of input name to shape
        Shapes for inputs that the file leaves open, or to change them; () is a scalar's.
    keep_open : bool
        Give open extents by their names; by default they are refused, all in one message.

    Raises
    ------
    BadInput
        A shape is open or unknown, or a given one has the wrong rank or names no input.
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
        dims = [d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim]
        words = [n if n >= 0 else d.dim_param or "?" for n, d in zip(dims, kind.shape.dim, strict=True)]
        if value.name in given:
            shape = given[value.name]
            if kind.HasField("shape") and len(dims) != len(shape):
                what = f"input '{value.name}' has {len(dims)} dimensions, {list(shape)} has {len(shape)}"
                raise BadInput(what, str(path), "give a shape of the same rank")
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
        raise BadInput(f"has inputs of dynamic shape: {told}", str(path), f'fix them: --input-shapes "{written}"')
    return result


def _bound(model: Any, given: Shapes) -> dict[str, int]:
    """Return the extents that given shapes fix by name; other inputs may have the same names."""
    found: dict[str, int] = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim, extent in zip(dims, given.get(value.name, ()), strict=False):  # another rank is refused
            if dim.dim_param:
                found.setdefault(dim.dim_param, extent)
    return found


def words_of(text: str) -> list[str]:
    """Return the names behind the last colon of a message."""
    return re.findall(r"\w[\w.]*", text.split(":")[-1])
