"""Relay from an ONNX model by TVM 0.17's importer, with the types of the values between its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from roller_tvm.models.importing import Imported
from roller_tvm.models.onnx_file import NotImported, first_missing
from roller_tvm.models.sources import quiet
from roller_tvm.models.types import TensorType, opset_of
from roller_tvm.relay.folding import shared_constant_kernels
from roller_tvm.relay.shape_arithmetic import shapes_by_numpy


def from_onnx(model: Any, shapes: Mapping[str, tuple[int | str, ...]]) -> Imported:
    """Import a model with its weights as constants; `shapes` are of its inputs, by name.

    The importer's graph is used itself, because ``relay.frontend.from_onnx`` drops the values between the nodes.

    Raises
    ------
    NotImported
        The importer failed; with the node it was at.
    """
    from tvm import relay
    from tvm.relay.frontend.onnx import GraphProto

    from roller_tvm.relay.own_operators import own_operators

    graph = GraphProto(dict(shapes), "float32", True, op_type_dict={})
    with quiet(), shared_constant_kernels(), shapes_by_numpy(), own_operators():
        try:
            with graph:
                mod, _ = graph.from_onnx(model.graph, opset_of(model))
        except Exception as error:  # the importer raises whatever its helpers raise
            raise NotImported(error, first_missing(model, graph._nodes)) from error
        made = {name: graph._nodes.get(name) for node in model.graph.node for name in node.output if name}
        values = {name: value for name, value in made.items() if isinstance(value, relay.Expr)}
        try:
            return _with_values(model, mod, values)
        except Exception:  # type errors, and whatever constant folding meets after one
            return _until_ill_typed(model, mod, values)


def _with_values(model: Any, mod: Any, values: dict[str, Any]) -> Imported:
    """Make shapes static with every value as an output, read the values' types, and drop them again."""
    from tvm import relay

    typed = relay.transform.InferType()(relay.transform.DynamicToStatic()(_module(mod["main"], values)))
    fields = typed["main"].body.fields
    result = _module(typed["main"], {}, fields[0])
    return Imported(result, model, _types(values, fields[1:]))


def _until_ill_typed(model: Any, mod: Any, values: dict[str, Any]) -> Imported:
    """Bisect for the first value that does not type-check; read the types before it."""
    from tvm import relay

    def fields(count: int) -> Any:
        typed = relay.transform.InferType()(_module(mod["main"], dict(list(values.items())[:count]), relay.Tuple([])))
        return typed["main"].body.fields[1:]

    good, bad = 0, len(values) + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            fields(middle)
            good = middle
        except Exception:  # type errors, as above
            bad = middle
    names = list(values)
    types, ill_typed = _types(values, fields(good)), names[good] if good < len(names) else ""
    try:
        return Imported(relay.transform.DynamicToStatic()(mod), model, types, ill_typed)
    except Exception as error:  # of the same value
        if not ill_typed:
            raise NotImported(error, "") from error
    return Imported(mod, model, types, ill_typed)  # its type check fails at that value


def _module(main: Any, values: dict[str, Any], body: Any = None) -> Any:
    """Return a module that computes a body (by default that of `main`) and these values."""
    import tvm
    from tvm import relay

    body = main.body if body is None else body
    result = relay.Tuple([body, *values.values()]) if values else body
    return tvm.IRModule.from_expr(relay.Function(main.params, result))


def _types(names: Iterable[str], fields: Iterable[Any]) -> dict[str, TensorType]:
    kinds = {name: tensor_type(value.checked_type) for name, value in zip(names, fields, strict=False)}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def output_types(mod: Any) -> list[TensorType | None]:
    """Return the type of each output of a typed module's 'main'; None for one that is no tensor."""
    from tvm import relay

    kind = mod["main"].checked_type.ret_type
    return [tensor_type(k) for k in (kind.fields if isinstance(kind, relay.TupleType) else [kind])]


def tensor_type(kind: Any) -> TensorType | None:
    """Return a Relay type in the words that ONNX's are told in; None if it is no tensor."""
    import tvm
    from tvm import relay

    if not isinstance(kind, relay.TensorType):
        return None
    return TensorType(tuple(int(e) if isinstance(e, tvm.tir.IntImm) else None for e in kind.shape), str(kind.dtype))
