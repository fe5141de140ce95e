"""Models from files: ONNX, and Relay as JSON or text; an operator that cannot be imported is refused by name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roller_tvm.errors import BadInput, UnsupportedOperator, UsageError
from roller_tvm.models import (
    Shapes,
    existing,
    input_shapes,
    last_line,
    opsets,
    parse_shapes,
    read_onnx,
    unsupported,
)
from roller_tvm.models.agreement import check_outputs, check_types
from roller_tvm.models.onnx_file import NotImported, node_of, words_of
from roller_tvm.models.reference import check_against_onnxruntime
from roller_tvm.models.rewriting import SIMPLIFY, rewrite
from roller_tvm.models.sources import kind_of, onnx_file, read_program
from roller_tvm.models.tvm_017 import TVM_017
from roller_tvm.models.types import inferred_types
from roller_tvm.relay.from_onnx import from_onnx, output_types
from roller_tvm.relay.from_torch import TORCH, from_torch
from roller_tvm.tvm_env import import_relay_tvm

__all__ = ["LAYOUTS", "Model", "Shapes", "converted", "folded", "import_model", "load_model", "parse_shapes"]

RELAY_JSON, RELAY_TEXT = (".json",), (".relay", ".txt", ".ir")
LAYOUTS = {"NCHW": ["NCHW", "default"], "NHWC": ["NHWC", "default"]}
LAYOUT_OPERATORS = (
    "nn.conv2d",
    "nn.conv2d_transpose",
    "qnn.conv2d",
    "nn.max_pool2d",
    "nn.avg_pool2d",
    "nn.global_avg_pool2d",
)


@dataclass(frozen=True)
class Model:
    """A Relay module with its parameters, and the shapes and dtypes of its real inputs.

    Parameters
    ----------
    mod : tvm.IRModule
    params : dict
    inputs : dict
        Name -> (shape, dtype).
    notes : tuple of str
        Checks that were left out, each with the reason.
    """

    mod: Any
    params: dict[str, Any]
    inputs: dict[str, tuple[tuple[int, ...], str]]
    notes: tuple[str, ...] = ()


def load_model(
    path: str | os.PathLike[str],
    shapes: Shapes | None = None,
    layout: str | None = None,
    params: str | os.PathLike[str] | None = None,
    verify: bool = True,
) -> Model:
    """Import a model file.

    Parameters
    ----------
    path : path
        ONNX; Relay as ``tvm.ir.save_json`` wrote it (.json) or as ``mod.astext()`` gave it (.relay, .txt).
    shapes : mapping of input name to shape, optional
        For inputs whose shape the file leaves open, or to change them.
    layout : {'NCHW', 'NHWC'}, optional
        Convert convolutions to this layout.
    params : path, optional
        Weights of a Relay file, as ``relay.save_param_dict`` wrote them; by default the file of the same name
        that ends in .params, if there is one.
    verify : bool
        Run an ONNX model once by onnxruntime, if it is installed, and compare the dtypes and shapes of the
        outputs. They are compared with ONNX's own shape inference in any case.

    Raises
    ------
    BadInput
        The file is missing, empty, broken or of another kind; a shape is open, unknown or of the wrong rank.
    UnsupportedOperator
        Relay cannot import an operator, or reads a node otherwise than ONNX does; the message names it.

    Examples
    --------
    >>> model = load_model("model.onnx", {"x": (1, 3, 320, 320)})  # doctest: +SKIP
    >>> model.inputs  # doctest: +SKIP
    {'x': ((1, 3, 320, 320), 'float32')}
    """
    path = existing(path, "an ONNX model, or of a Relay module (.json, .relay)")
    tvm = import_relay_tvm("importing a model")
    if path.suffix in RELAY_JSON:
        mod, weights = _relay_json(tvm, path), _params(tvm, path, params)
    elif path.suffix in RELAY_TEXT:
        mod, weights = _relay_text(tvm, path), _params(tvm, path, params)
    else:
        model = _onnx(tvm, path, dict(shapes or {}), verify)
        return converted(model, layout) if layout else model
    mod = _inferred(tvm, mod, path)
    model = Model(mod, weights, _inputs(tvm, mod, weights, path))
    if shapes:
        _same_shapes(model, shapes, path)
    return converted(model, layout) if layout else model


def import_model(
    model: Any, shapes: Shapes | None = None, layout: str | None = None, params: Any = None,
    example_inputs: Sequence[Any] | None = None,
) -> tuple[str, Model]:  # fmt: skip
    """Import a model from a file or from memory.

    Parameters
    ----------
    model : path, onnx.ModelProto, torch.nn.Module, torch.export.ExportedProgram or tvm.IRModule
        A path may name an ExportedProgram (.pt2) too.
    shapes, layout
        See `load_model`.
    params : mapping of name to array, or path, optional
        Weights of a Relay module.
    example_inputs : sequence of tensors
        Arguments to trace a torch module with.

    Returns
    -------
    (str, Model)
        The model's name in messages, and the model.
    """
    kind = kind_of(model)
    if params is not None and kind not in ("file", "tvm"):
        raise UsageError("its weights are in it", "params", "leave it out, or give a module of TVM")
    if kind == "file" and Path(model).suffix not in TORCH:
        return os.fspath(model), load_model(model, shapes, layout, params)
    if kind == "onnx":
        with onnx_file(model) as path:
            return model.graph.name or "model", load_model(path, shapes, layout)
    tvm, name = import_relay_tvm("importing a model"), type(model).__name__
    if kind == "tvm":
        mod, weights = _checked(tvm, model, Path(name)), _tensors(tvm, params)
    else:
        if kind == "file":
            name, model = os.fspath(model), read_program(existing(model, "an ExportedProgram (.pt2)"))
        mod, weights = from_torch(model, example_inputs, name)
    mod = _inferred(tvm, mod, Path(name))
    found = Model(mod, weights, _inputs(tvm, mod, weights, Path(name)))
    if shapes:
        _same_shapes(found, shapes, Path(name))
    return name, converted(found, layout) if layout else found


def _tensors(tvm: Any, params: Any) -> dict[str, Any]:
    """Return weights by name, from a mapping or a file."""
    if isinstance(params, (str, os.PathLike)):
        return _params(tvm, Path(params), params)
    return {name: p if isinstance(p, tvm.nd.NDArray) else tvm.nd.array(p) for name, p in dict(params or {}).items()}


def folded(mod: Any) -> Any:
    """Return the module with its batch normalisations and other constants folded, once.

    ``relay.build`` and the extraction of tasks fold each time again; after this they find nothing to fold. The keys
    of the tasks are the same with and without it.
    """
    tvm = import_relay_tvm("folding constants")
    from tvm import relay

    from roller_tvm.relay.folding import shared_constant_kernels

    fold, passes = relay.transform.FoldConstant(), relay.transform
    steps = [passes.InferType(), passes.SimplifyInference(), fold, passes.FoldScaleAxis(), fold]
    with shared_constant_kernels(), tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(steps)(mod)


def converted(model: Model, layout: str) -> Model:
    """Return the model with its convolutions in another layout."""
    tvm = import_relay_tvm("converting a layout")
    from tvm import relay

    if layout not in LAYOUTS:
        raise UsageError(f"unknown layout {layout!r}", "--desired-layout", f"one of {', '.join(LAYOUTS)}")
    desired: dict[str, list[str]] = {}
    for name in LAYOUT_OPERATORS:
        known = relay.op.get(name).get_attr("FTVMConvertOpLayout") is not None
        if known:
            desired[name] = LAYOUTS[layout] if "pool" not in name else [layout]
    passes = [
        relay.transform.RemoveUnusedFunctions(),
        relay.transform.ConvertLayout(desired),
        relay.transform.FoldConstant(),
    ]
    try:
        with tvm.transform.PassContext(opt_level=3):
            mod = tvm.transform.Sequential(passes)(model.mod)
    except (tvm.TVMError, ValueError, KeyError) as error:
        raise UnsupportedOperator(
            f"cannot be converted to {layout}: {last_line(error)}", "model", "leave --desired-layout out"
        ) from error
    return Model(mod, model.params, model.inputs, model.notes)


# ONNX ------------------------------------------------------------------------------------------------------


def _onnx(tvm: Any, path: Path, shapes: dict[str, tuple[int, ...]], verify: bool) -> Model:
    model = read_onnx(path, 'pip install "onnx==1.18.0"', "a Relay module must end in .json, .relay or .txt")
    wanted = input_shapes(model, shapes, path)
    importer, known = f"TVM {tvm.__version__}", inferred_types(model, wanted)
    rewrite(model, TVM_017, known, path, importer)
    try:
        imported = from_onnx(model, wanted)
    except NotImported as failure:
        if isinstance(failure.error, tvm.error.OpNotImplemented):
            names = words_of(str(failure.error))
            what = unsupported(names, model) if names else last_line(failure.error)
            raise UnsupportedOperator(what, str(path), "replace them in the model, or cut it before them") from failure
        what = f"{importer} cannot import {failure.node or 'it'} (opset {opsets(model)}): {last_line(failure.error)}"
        raise UnsupportedOperator(what, str(path), SIMPLIFY) from failure
    check_types(model, known, imported.types, path, importer)
    typed = _inferred(tvm, imported.mod, path, node_of(model, imported.ill_typed))
    inputs, outputs = _inputs(tvm, typed, {}, path), output_types(typed)
    check_outputs([value.name for value in model.graph.output], known, outputs, path, (importer, "ONNX"))
    note = check_against_onnxruntime(model, path, inputs, outputs, importer) if verify else ""
    return Model(folded(typed), {}, inputs, (note,) if note else ())


# Relay -----------------------------------------------------------------------------------------------------


def _relay_json(tvm: Any, path: Path) -> Any:
    try:
        mod = tvm.ir.load_json(path.read_text(encoding="utf-8"))
    except Exception as error:  # whatever the reader stumbles over
        raise BadInput(
            f"is not a Relay module as JSON: {last_line(error)}", str(path), "write it with tvm.ir.save_json(mod)"
        ) from error
    return _checked(tvm, mod, path)


def _relay_text(tvm: Any, path: Path) -> Any:
    from tvm import relay

    try:
        mod = relay.fromtext(path.read_text(encoding="utf-8"))
    except (tvm.TVMError, ValueError, UnicodeDecodeError, AttributeError) as error:
        raise BadInput(
            f"is not Relay text: {last_line(error)}",
            str(path),
            "write it with mod.astext() (with its weights), or as JSON",
        ) from error
    return _checked(tvm, mod, path)


def _checked(tvm: Any, mod: Any, path: Path) -> Any:
    from tvm import relay

    if isinstance(mod, relay.Function):
        mod = tvm.IRModule.from_expr(mod)
    if not isinstance(mod, tvm.IRModule) or "main" not in [v.name_hint for v in mod.get_global_vars()]:
        raise BadInput("holds no Relay module with a function 'main'", str(path), "save the whole module")
    if not isinstance(mod["main"], relay.Function):
        raise BadInput("'main' is not a Relay function", str(path), "give the model before it was lowered")
    return mod


def _params(tvm: Any, path: Path, params: str | os.PathLike[str] | None) -> dict[str, Any]:
    from tvm import relay

    file = Path(params) if params is not None else path.with_suffix(".params")
    if params is None and not file.is_file():
        return {}
    try:
        return dict(relay.load_param_dict(file.read_bytes()))
    except (OSError, tvm.TVMError, ValueError) as error:
        raise BadInput(
            f"is not a file of parameters: {last_line(error)}",
            str(file),
            "write it with relay.save_param_dict(params)",
        ) from error


def _inferred(tvm: Any, mod: Any, path: Path, node: str = "") -> Any:
    """Type-check a module; `node` is the one to name if it fails."""
    from tvm import relay

    remedy = "check the model, or give the shapes with --input-shapes"
    try:
        typed = relay.transform.InferType()(mod)
    except tvm.TVMError as error:
        at = f" at {node}" if node else ""
        what = f"its types do not fit together{at}: {last_line(error)}"
        raise UnsupportedOperator(what, str(path), remedy) from error

    def check(call: Any) -> None:  # Relay does not ask of a product with constant weights, and reads past them
        name = str(getattr(getattr(call, "op", None), "name", "")) if isinstance(call, relay.Call) else ""
        if name in ("nn.dense", "nn.matmul"):
            a, b = (list(argument.checked_type.shape) for argument in call.args)
            turned_a = name == "nn.matmul" and bool(call.attrs.transpose_a)
            turned_b = name == "nn.dense" or bool(call.attrs.transpose_b)
            depths = [a[-2] if turned_a else a[-1], b[-1] if turned_b else b[-2]]
            known = [int(e) for e in depths if isinstance(e, tvm.tir.IntImm)]
            if len(set(known)) > 1:
                what = f"its types do not fit together: a product over {known[0]} and {known[1]} elements"
                raise UnsupportedOperator(what, str(path), remedy)

    relay.analysis.post_order_visit(typed["main"], check)
    return typed


def _inputs(
    tvm: Any, mod: Any, params: Mapping[str, Any], path: Path
) -> dict[str, tuple[tuple[int, ...], str]]:
    found = {}
    for var in mod["main"].params:
        if var.name_hint in params:
            continue
        kind = var.checked_type
        shape = getattr(kind, "shape", ())
        if any(not isinstance(e, tvm.tir.IntImm) for e in shape):
            words = ", ".join(str(int(e)) if isinstance(e, tvm.tir.IntImm) else "?" for e in shape)
            raise BadInput(
                f"input '{var.name_hint}' has a dynamic shape [{words}]",
                str(path),
                "import the model with a fixed shape",
            )
        found[str(var.name_hint)] = (tuple(int(e) for e in shape), str(getattr(kind, "dtype", "")))
    return found


def _same_shapes(model: Model, shapes: Shapes, path: Path) -> None:
    for name, shape in shapes.items():
        own = model.inputs.get(name)
        if own is None:
            raise BadInput(
                f"no input is called '{name}'", str(path), f"its inputs are {', '.join(model.inputs)}"
            )
        if own[0] != tuple(shape):
            raise BadInput(
                f"input '{name}' is {list(own[0])}, not {list(shape)}",
                str(path),
                "a Relay module has its shapes: leave --input-shapes out",
            )
