"""Models from files: ONNX, PyTorch (.pt2), Relax as JSON; an operator that cannot be imported is refused by name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import BadInput, UnsupportedOperator, UsageError
from ..models import Shapes, existing, input_shapes, last_line, opsets, read_onnx, unsupported
from ..models.agreement import check_outputs, check_types
from ..models.misread import RELAX
from ..models.onnx_file import NotImported, words_of
from ..models.reference import check_against_onnxruntime
from ..models.rewriting import rewrite
from ..models.sources import exported, kind_of, onnx_file, quiet, read_program
from ..models.types import inferred_types
from ..tvm_env import import_relax_tvm
from .from_onnx import Imported, from_onnx, output_types
from .from_torch import from_program
from .params import bindable

RELAX_JSON, TORCH, PICKLED = (".json",), (".pt2",), (".pt", ".pth", ".ckpt", ".bin")
#: Layout of data and weights, by the name that the command line knows.
LAYOUTS = {"NCHW": ["NCHW", "OIHW"], "NHWC": ["NHWC", "OHWI"]}
FILES = "an ONNX model, a PyTorch ExportedProgram (.pt2) or a Relax module (.json)"
OTHERS = "an ExportedProgram must end in .pt2, a Relax module in .json"

__all__ = ["LAYOUTS", "Model", "import_model", "load_model"]


@dataclass(frozen=True)
class Model:
    """A Relax module with its weights as constants, and the inputs of its function ``main``.

    Parameters
    ----------
    mod : tvm.IRModule
    params : dict
        Empty: weights are constants, so that they are folded and laid out at build time.
    inputs : dict
        Name in the file -> (shape, dtype), in the order of the parameters of ``main``; an extent that stays open
        is the name of its variable.
    notes : tuple of str
        Checks that were left out, each with the reason.
    """

    mod: Any
    params: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, tuple[tuple[int | str, ...], str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def symbols(self) -> tuple[str, ...]:
        """Variables of open extents, which ``buckets`` may name."""
        return tuple(dict.fromkeys(e for shape, _ in self.inputs.values() for e in shape if isinstance(e, str)))


def load_model(
    path: str | os.PathLike[str],
    shapes: Shapes | None = None,
    layout: str | None = None,
    params: str | os.PathLike[str] | None = None,
    simplify: bool | None = None,
    verify: bool = True,
) -> Model:
    """Import a model file.

    Parameters
    ----------
    path : path
        ONNX; PyTorch's ExportedProgram as ``torch.export.save`` wrote it (.pt2); Relax as ``tvm.ir.save_json``
        wrote it (.json).
    shapes : mapping of input name to shape, optional
        For inputs whose shape the file leaves open, or (ONNX) to change them. Extents that are still open
        afterwards stay symbolic.
    layout : {'NCHW', 'NHWC'}, optional
        Convert convolutions to this layout.
    params : path, optional
        Of a Relax file: weights as ``tvm.runtime.save_param_dict_to_file`` wrote them, by name of parameter; by
        default the file of the same name that ends in .params, if there is one.
    simplify : bool, optional
        Simplify ONNX with onnxslim before the import. By default only if the importer refuses the file or does not
        know every shape: exporters compute shapes in the graph, and simplified they are constants.
    verify : bool
        Run an ONNX model with fixed shapes once by onnxruntime, if it is installed, and compare the dtypes and
        shapes of the outputs. They are compared with ONNX's own shape inference in any case.

    Raises
    ------
    BadInput
        The file is missing, empty, broken or of another kind; a shape is unknown or of the wrong rank.
    UnsupportedOperator
        Relax cannot import an operator, or reads a node otherwise than ONNX does; the message names it.

    Examples
    --------
    >>> model = load_model("model.onnx", {"x": (1, 3, 320, 320)})  # doctest: +SKIP
    >>> model.inputs  # doctest: +SKIP
    {'x': ((1, 3, 320, 320), 'float32')}
    """
    file, given = existing(path, FILES), dict(shapes or {})
    if file.suffix in PICKLED:
        raise BadInput(
            "is pickled Python, which is not read (it could run anything)",
            str(file),
            'export it: torch.export.save(torch.export.export(model.eval(), (example,)), "model.pt2")',
        )
    tvm = import_relax_tvm("importing a model")
    if file.suffix in RELAX_JSON:
        return _finished(tvm, _relax_json(tvm, file, params), given, layout, file)
    if file.suffix in TORCH:
        return _finished(tvm, from_program(read_program(file), str(file)), given, layout, file)
    mod, inputs, notes = _onnx(tvm, file, given, simplify, verify)
    return _laid_out(tvm, Model(mod, {}, inputs, notes), layout)


def import_model(
    model: Any, shapes: Shapes | None = None, layout: str | None = None, params: Any = None,
    example_inputs: Sequence[Any] | None = None,
) -> tuple[str, Model]:  # fmt: skip
    """Import a model from a file or from memory.

    Parameters
    ----------
    model : path, onnx.ModelProto, torch.nn.Module, torch.export.ExportedProgram or tvm.IRModule
    shapes, layout
        See `load_model`.
    params : mapping of name to array, or path, optional
        Weights of a Relax module.
    example_inputs : sequence of tensors
        Arguments to export a torch module with.

    Returns
    -------
    (str, Model)
        The model's name in messages, and the model.
    """
    kind = kind_of(model)
    if params is not None and kind not in ("file", "tvm"):
        raise UsageError("its weights are in it", "params", "leave it out, or give a module of TVM")
    if kind == "file":
        return os.fspath(model), load_model(model, shapes, layout, params)
    if kind == "onnx":
        with onnx_file(model) as path:
            return model.graph.name or "model", load_model(path, shapes, layout)
    tvm, name = import_relax_tvm("importing a model"), type(model).__name__
    if kind == "tvm":
        mod = _with_main(tvm, model, name)
        if params is not None:
            mod = tvm.relax.transform.BindParams("main", bindable(mod, params))(mod)
    else:
        mod = from_program(exported(model, example_inputs) if kind == "torch" else model, name)
    return name, _finished(tvm, mod, dict(shapes or {}), layout, Path(name))


def _finished(tvm: Any, mod: Any, given: dict[str, tuple[int, ...]], layout: str | None, where: Path) -> Model:
    """Return a module, its shapes fixed and inferred, as a model."""
    mod = _inferred(tvm, _fixed(tvm, mod, given, where), where)
    return _laid_out(tvm, Model(mod, {}, _inputs(mod, None)), layout)


def _laid_out(tvm: Any, model: Model, layout: str | None) -> Model:
    """Return a model with its convolutions in a layout, and its functions plainly named."""
    from .names import plain_names

    return replace(model, mod=plain_names(model.mod if layout is None else _converted(tvm, model.mod, layout)))


# ONNX ------------------------------------------------------------------------------------------------------


def _onnx(
    tvm: Any, path: Path, given: dict[str, tuple[int, ...]], simplify: bool | None, verify: bool
) -> tuple[Any, dict[str, tuple[tuple[int | str, ...], str]], tuple[str, ...]]:
    """Return an ONNX file's module, its inputs, and notes on checks left out."""
    model = read_onnx(path, "pip install onnx onnxslim", OTHERS)
    wanted = input_shapes(model, given, path, keep_open=True)
    importer, known = f"TVM {tvm.__version__}", inferred_types(model, wanted)
    rewrite(model, RELAX, known, path, importer)
    imported = _imported(tvm, model, wanted, path, simplify)
    own = known if imported.model is model else {**inferred_types(imported.model, wanted), **known}
    check_types(imported.model, own, imported.types, path, importer)
    mod = _inferred(tvm, imported.mod, path)
    inputs, outputs = _inputs(mod, list(wanted)), output_types(mod)
    check_outputs([value.name for value in model.graph.output], known, outputs, path, (importer, "ONNX"))
    note = check_against_onnxruntime(model, path, inputs, outputs, importer) if verify else ""
    return mod, inputs, (note,) if note else ()


def _imported(
    tvm: Any, model: Any, wanted: Mapping[str, tuple[int | str, ...]], path: Path, simplify: bool | None
) -> Imported:
    """Import a model, simplified if it is asked for or needed."""
    fixed = {name: shape for name, shape in wanted.items() if all(isinstance(e, int) for e in shape)}
    plain: Imported | None = None
    refusal: NotImported | None = None
    if not simplify:
        try:
            plain = _converted_onnx(model, fixed)
        except NotImported as failure:
            refusal = failure
        if simplify is False or (plain is not None and (len(fixed) < len(wanted) or _shapes_known(tvm, plain.mod))):
            if refusal is not None:
                remedy = "let it be simplified: leave simplify=False out"
                raise _refused(tvm, refusal, model, path, remedy) from refusal
            assert plain is not None
            return plain
    slim, why = _slimmed(model, fixed)
    if slim is None and simplify:
        raise BadInput(f"cannot be simplified: {why}", str(path), "pip install onnxslim, or leave simplify out")
    if slim is not None:
        try:
            return _converted_onnx(slim, fixed)
        except NotImported as failure:
            refusal = refusal or failure
    if plain is not None:
        return plain
    assert refusal is not None
    remedy = "export it with an older opset"
    if slim is None:
        remedy = f"simplify it first: {why}"
    elif len(fixed) < len(wanted):
        remedy = f"fix its open shapes with --input-shapes, or {remedy}"
    raise _refused(tvm, refusal, model, path, remedy) from refusal


def _converted_onnx(model: Any, shapes: Mapping[str, Any]) -> Imported:
    with quiet():
        return from_onnx(model, shapes)


def _refused(tvm: Any, failure: NotImported, model: Any, path: Path, remedy: str) -> UnsupportedOperator:
    """Return the importer's error in our words."""
    if isinstance(failure.error, tvm.error.OpNotImplemented):
        names = words_of(str(failure.error))
        what = unsupported(names, model) if names else last_line(failure.error)
        return UnsupportedOperator(what, str(path), "replace them in the model, or cut it before them")
    subject = f"TVM {tvm.__version__} cannot import {failure.node or 'it'} (opset {opsets(model)})"
    return UnsupportedOperator(f"{subject}: {last_line(failure.error)}", str(path), remedy)


def _shapes_known(tvm: Any, mod: Any) -> bool:
    """Return True if every tensor that main computes has a static shape."""
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            kinds = [binding.var.ty]
            while kinds:
                kind = kinds.pop()
                kinds += list(getattr(kind, "fields", ()))
                shape = getattr(kind, "shape", ())
                extents = getattr(shape, "values", shape)  # a shape may be a variable, which has none
                if not isinstance(extents, Iterable) or any(not isinstance(e, tvm.tirx.IntImm) for e in extents):
                    return False
    return True


def _slimmed(model: Any, fixed: dict[str, Any]) -> tuple[Any | None, str]:
    """Return the model simplified, or None with the reason."""
    try:
        import onnxslim
    except ImportError:
        return None, "pip install onnxslim"
    told = [f"{name}:{','.join(map(str, shape))}" for name, shape in fixed.items()]
    names = {value.name for value in model.graph.input}
    try:
        import onnx

        copied = onnx.ModelProto()
        copied.CopyFrom(model)  # onnxslim changes what it is given
        with quiet():
            result = onnxslim.slim(copied, input_shapes=told or None)
    except Exception as error:  # it raises whatever its helpers raise
        return None, f"onnxslim failed with it ({last_line(error)})"
    # An input that nothing reads is dropped by it; callers give every input of the file.
    kept = names == {value.name for value in result.graph.input} | {i.name for i in model.graph.initializer} & names
    return (result, "") if kept else (None, "onnxslim changes its inputs")


# Relax -----------------------------------------------------------------------------------------------------


def _relax_json(tvm: Any, path: Path, params: str | os.PathLike[str] | None) -> Any:
    try:
        mod = tvm.ir.load_json(path.read_text(encoding="utf-8"))
    except Exception as error:  # whatever the reader stumbles over
        raise BadInput(
            f"is not a Relax module as JSON: {last_line(error)}", str(path), "write it with tvm.ir.save_json(mod)"
        ) from error
    from tvm import relax

    mod = _with_main(tvm, mod, str(path))
    file = Path(params) if params is not None else path.with_suffix(".params")
    if params is None and not file.is_file():
        return mod
    try:
        weights = dict(tvm.runtime.load_param_dict_from_file(str(file)))
        return relax.transform.BindParams("main", weights)(mod)
    except Exception as error:  # the reader's and the binder's
        raise BadInput(
            f"is not a file of parameters for it: {last_line(error)}",
            str(file),
            "write it with tvm.runtime.save_param_dict_to_file(params, path)",
        ) from error


def _with_main(tvm: Any, mod: Any, where: str) -> Any:
    """Return a Relax function or module as a module with a function 'main'."""
    from tvm import relax

    if isinstance(mod, relax.Function):
        mod = tvm.IRModule({"main": mod})
    if not isinstance(mod, tvm.IRModule) or "main" not in [v.name_hint for v in mod.get_global_vars()]:
        raise BadInput("holds no Relax module with a function 'main'", where, "save the whole module")
    if not isinstance(mod["main"], relax.Function):
        raise BadInput("'main' is not a Relax function", where, "give the model before it was lowered")
    return mod


# What all of them share ------------------------------------------------------------------------------------


def _fixed(tvm: Any, mod: Any, given: dict[str, tuple[int, ...]], path: Path) -> Any:
    """Return the module with its open extents fixed by the given shapes."""
    from tvm import relax

    if not given:
        return mod
    own = {str(var.name): tuple(getattr(var.ty, "shape", None) or ()) for var in mod["main"].params}
    bound: dict[str, int] = {}
    for name, shape in given.items():
        if name not in own:
            raise BadInput(f"no input is called '{name}'", str(path), f"its inputs are {', '.join(own)}")
        here = f"[{', '.join(str(_extent(e)) for e in own[name])}]"
        if len(own[name]) != len(shape):
            raise BadInput(
                f"input '{name}' has {len(own[name])} dimensions, {list(shape)} has {len(shape)}",
                str(path),
                "give a shape of the same rank",
            )
        for extent, wanted in zip(own[name], shape, strict=True):
            if isinstance(extent, tvm.tirx.Var):
                if bound.setdefault(str(extent), wanted) != wanted:
                    told = f"{extent} is {bound[str(extent)]} and {wanted}"
                    raise BadInput(f"input '{name}' is {here}: {told}", str(path), "give it one extent")
            elif not (isinstance(extent, tvm.tirx.IntImm) and int(extent) == wanted):
                raise BadInput(
                    f"input '{name}' is {here}, not {list(shape)}", str(path), "export it again with that shape"
                )
    return relax.transform.BindSymbolicVars(bound)(mod) if bound else mod


def _inferred(tvm: Any, mod: Any, path: Path) -> Any:
    """Return the module with all shapes that follow from the inputs'."""
    from tvm import relax

    try:
        return relax.transform.CanonicalizeBindings()(relax.transform.Normalize()(mod))
    except (tvm.error.InternalError, ValueError, TypeError, RuntimeError) as error:
        raise UnsupportedOperator(
            f"its types do not fit together: {last_line(error)}",
            str(path),
            "check the model, or give the shapes with --input-shapes",
        ) from error


def _converted(tvm: Any, mod: Any, layout: str) -> Any:
    from tvm import relax

    if layout not in LAYOUTS:
        raise UsageError(f"unknown layout {layout!r}", "--desired-layout", f"one of {', '.join(LAYOUTS)}")
    from .sums import SumsAsAdditions

    steps = [SumsAsAdditions(), relax.transform.ConvertLayout({"relax.nn.conv2d": LAYOUTS[layout]})]
    try:  # a stack, which ONNX's Sum becomes, is of a rank that no layout is known for
        return tvm.transform.Sequential(steps)(mod)
    except Exception as error:  # the pass raises whatever an operator's rule raises
        raise UnsupportedOperator(
            f"cannot be converted to {layout}: {last_line(error)}", "model", "leave --desired-layout out"
        ) from error


def _inputs(mod: Any, names: list[str] | None) -> dict[str, tuple[tuple[int | str, ...], str]]:
    from tvm import relax

    params = list(mod["main"].params)
    found: dict[str, tuple[tuple[int | str, ...], str]] = {}
    for number, var in enumerate(params):
        name = names[number] if names is not None and len(names) == len(params) else str(var.name)
        if not isinstance(var.ty, relax.TensorType):
            told = f"input '{name}' is no tensor but {var.ty}"
            raise UnsupportedOperator(told, remedy="give a module whose 'main' takes tensors alone")
        if var.ty.shape is None and var.ty.ndim != 0:
            told = f"input '{name}' has {'a rank' if var.ty.ndim < 0 else 'extents'} that nothing tells"
            raise UnsupportedOperator(told, remedy="give its parameter a shape; of extents that change, names: (n, 64)")
        shape = var.ty.shape if var.ty.shape is not None else ()
        found[name] = (tuple(map(_extent, shape)), str(var.ty.dtype))
    return found


def _extent(extent: Any) -> int | str:
    return int(extent) if hasattr(extent, "value") else str(extent)
