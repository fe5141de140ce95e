"""Relax from an ONNX model by TVM's importer, with the types of the values between its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ..models.importing import Imported
from ..models.onnx_file import NotImported, first_missing
from ..models.sources import quiet
from ..models.types import TensorType, opset_of


def from_onnx(model: Any, shapes: Mapping[str, tuple[int | str, ...]]) -> Imported:
    """Import a model with its weights as constants; `shapes` are of its inputs without open extents, by name.

    The importer's class is used itself, because ``relax.frontend.onnx.from_onnx`` drops the names of the values.

    Raises
    ------
    NotImported
        The importer failed; with the node it was at.
    """
    from tvm import relax
    from tvm.error import InternalError

    from .open_shapes import OpenImporter
    from .own_operators import OwnImporter
    from .size_checks import with_checks

    inputs = {value.name for value in model.graph.input} - {value.name for value in model.graph.initializer}
    kind = OwnImporter if inputs <= set(shapes) else OpenImporter  # whose extents are not all known
    importer = kind({name: list(shape) for name, shape in shapes.items()}, "float32")
    try:
        with quiet():
            mod = importer.from_onnx(model.graph, opset_of(model))
    except Exception as error:  # the importer raises whatever its helpers raise
        with suppress(InternalError):  # no block was begun
            importer.bb._end_block()  # else TVM warns of it on the terminal, in the middle of our error
        raise NotImported(error, first_missing(model, importer._nodes)) from error
    mod = with_checks(mod, getattr(importer, "checks", ()))
    made = {name: importer._nodes.get(name) for node in model.graph.node for name in node.output if name}
    kinds = {name: tensor_type(value.ty) for name, value in made.items() if isinstance(value, relax.Expr)}
    return Imported(mod, model, {name: kind for name, kind in kinds.items() if kind is not None})


def output_types(mod: Any) -> list[TensorType | None]:
    """Return the type of each output of 'main'; None for one that is no tensor."""
    from tvm import relax

    kind = mod["main"].ret_ty
    return [tensor_type(k) for k in (kind.fields if isinstance(kind, relax.TupleType) else [kind])]


def tensor_type(kind: Any) -> TensorType | None:
    """Return a Relax type in the words that ONNX's are told in; None if it is no tensor."""
    import tvm
    from tvm import relax

    if not isinstance(kind, relax.TensorType):
        return None
    dtype = str(kind.dtype) if kind.dtype is not None else ""
    if kind.shape is not None and hasattr(kind.shape, "values"):
        return TensorType(tuple(int(e) if isinstance(e, tvm.tirx.IntImm) else None for e in kind.shape.values), dtype)
    return TensorType((None,) * kind.ndim if kind.ndim >= 0 else None, dtype)
