"""Models from files: ONNX, PyTorch (.pt2), Relax as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BadInput, UnsupportedOperator, last_line
from ..models.arguments import Signature
from ..models.importing import JSON, MISFIT, Imported, Importer, Model
from ..models.misread import RELAX
from ..models.onnx_file import NotImported, Onnx
from ..models.shapes import Shapes
from ..models.sources import exported, quiet
from ..models.types import TensorType
from ..tvm_env import import_relax_tvm
from .from_onnx import from_onnx, output_types
from .from_torch import from_program

#: Layout of data and weights, by the name that the command line knows.
LAYOUTS = {"NCHW": ["NCHW", "OIHW"], "NHWC": ["NHWC", "OHWI"]}

__all__ = ["IMPORTER", "LAYOUTS", "Model", "load_model"]


class RelaxImporter(Importer):
    """Importer of TVM 0.25 and later; weights become constants, so that they are folded and laid out at build time."""

    name, keeps_open, handlers, layouts = "Relax", True, RELAX, LAYOUTS
    install = "pip install onnx onnxslim"
    files = "an ONNX model, a PyTorch ExportedProgram (.pt2) or a Relax module (.json)"
    others = "an ExportedProgram must end in .pt2, a Relax module in .json"

    def import_tvm(self) -> Any:
        return import_relax_tvm("importing a model")

    def read_own(self, tvm: Any, path: Path, params: Any, trusted: bool) -> tuple[Any, dict[str, Any]] | None:
        """Return a Relax module with the weights in the file beside it bound."""
        if path.suffix != JSON:
            return None
        mod = self.with_main(tvm, self.read_json(tvm, path, trusted), str(path))
        file = Path(params) if params is not None else path.with_suffix(".params")
        if params is None and not file.is_file():
            return mod, {}
        try:
            weights = dict(tvm.runtime.load_param_dict_from_file(str(file)))
            return tvm.relax.transform.BindParams("main", weights)(mod), {}
        except Exception as error:  # the reader's and the binder's
            remedy = "write it with tvm.runtime.save_param_dict_to_file(params, path)"
            raise BadInput(f"is not a file of parameters for it: {last_line(error)}", str(file), remedy) from error

    def with_weights(self, tvm: Any, mod: Any, params: Any) -> tuple[Any, dict[str, Any]]:
        """Return the module with its weights bound."""
        return (mod if params is None else bound(mod, params)), {}

    def from_torch(
        self, model: Any, example_inputs: Sequence[Any] | None, where: str, dynamic_shapes: Any = None
    ) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
        program = model if hasattr(model, "graph_signature") else exported(model, example_inputs, dynamic_shapes)
        mod, notes = from_program(program, where)
        return mod, {}, notes

    def from_onnx(self, tvm: Any, onnx: Onnx, simplify: bool | None) -> Imported:
        """Import a model, simplified if it is asked for or needed."""
        fixed = {name: shape for name, shape in onnx.shapes.items() if all(isinstance(e, int) for e in shape)}
        lacking = tvm.error.OpNotImplemented
        plain: Imported | None = None
        refusal: NotImported | None = None
        if not simplify:
            try:
                plain = from_onnx(onnx.model, fixed)
            except NotImported as failure:
                refusal = failure
            if simplify is False and refusal is not None:
                remedy = "let it be simplified: leave simplify=False out"
                raise onnx.refused(refusal, lacking, remedy) from refusal
            if plain is not None and (
                simplify is False or len(fixed) < len(onnx.shapes) or _shapes_known(tvm, plain.mod)
            ):
                return plain
        slim, why = _slimmed(onnx.model, fixed)
        if slim is None and simplify:
            what = f"cannot be simplified: {why}"
            raise BadInput(what, str(onnx.path), "pip install onnxslim, or leave simplify out")
        if slim is not None:
            try:
                return from_onnx(slim, fixed)
            except NotImported as failure:
                refusal = refusal or failure
        if plain is not None:
            return plain
        assert refusal is not None
        remedy = "export it with an older opset"
        if slim is None:
            remedy = f"simplify it first: {why}"
        elif len(fixed) < len(onnx.shapes):
            remedy = f"fix its open shapes with --input-shapes, or {remedy}"
        raise onnx.refused(refusal, lacking, remedy) from refusal

    def fixed(self, tvm: Any, mod: Any, weights: Mapping[str, Any], shapes: Shapes, where: Path) -> Any:
        """Return the module with its open extents fixed by the given shapes."""
        own = {str(var.name): tuple(getattr(var.ty, "shape", None) or ()) for var in mod["main"].params}
        bound: dict[str, int] = {}
        for name, shape in shapes.items():
            if name not in own:
                raise BadInput(f"no input is called '{name}'", str(where), f"its inputs are {', '.join(own)}")
            here = f"[{', '.join(str(_extent(e)) for e in own[name])}]"
            if len(own[name]) != len(shape):
                what = f"input '{name}' has {len(own[name])} dimensions, {list(shape)} has {len(shape)}"
                raise BadInput(what, str(where), "give a shape of the same rank")
            for extent, wanted in zip(own[name], shape, strict=True):
                if isinstance(extent, tvm.tirx.Var):
                    if bound.setdefault(str(extent), wanted) != wanted:
                        told = f"{extent} is {bound[str(extent)]} and {wanted}"
                        raise BadInput(f"input '{name}' is {here}: {told}", str(where), "give it one extent")
                elif not (isinstance(extent, tvm.tirx.IntImm) and int(extent) == wanted):
                    what = f"input '{name}' is {here}, not {list(shape)}"
                    raise BadInput(what, str(where), "export it again with that shape")
        return tvm.relax.transform.BindSymbolicVars(bound)(mod) if bound else mod

    def inferred(self, tvm: Any, mod: Any, where: Path, node: str = "") -> Any:
        """Return the module with all shapes that follow from the inputs'."""
        passes = tvm.relax.transform
        try:
            return passes.CanonicalizeBindings()(passes.Normalize()(mod))
        except (tvm.error.InternalError, ValueError, TypeError, RuntimeError) as error:
            what = f"its types do not fit together: {last_line(error)}"
            raise UnsupportedOperator(what, str(where), MISFIT) from error

    def inputs(self, mod: Any, weights: Mapping[str, Any], where: Path, names: Sequence[str] = ()) -> Signature:
        """Return the inputs of 'main', open extents by name."""
        from tvm import relax

        params = list(mod["main"].params)
        found: dict[str, tuple[tuple[int | str, ...], str]] = {}
        for number, var in enumerate(params):
            name = names[number] if len(names) == len(params) else str(var.name)
            if not isinstance(var.ty, relax.TensorType):
                told = f"input '{name}' is no tensor but {var.ty}"
                raise UnsupportedOperator(told, remedy="give a module whose 'main' takes tensors alone")
            if var.ty.shape is None and var.ty.ndim != 0:
                told = f"input '{name}' has {'a rank' if var.ty.ndim < 0 else 'extents'} that nothing tells"
                remedy = "give its parameter a shape; of extents that change, names: (n, 64)"
                raise UnsupportedOperator(told, remedy=remedy)
            shape = var.ty.shape if var.ty.shape is not None else ()
            found[name] = (tuple(map(_extent, shape)), str(var.ty.dtype))
        return found

    def output_types(self, mod: Any) -> list[TensorType | None]:
        return output_types(mod)

    def converted(self, tvm: Any, mod: Any, layout: str) -> Any:
        from .sums import SumsAsAdditions  # a stack, which ONNX's Sum becomes, is of a rank without a known layout

        steps = [SumsAsAdditions(), tvm.relax.transform.ConvertLayout({"relax.nn.conv2d": LAYOUTS[layout]})]
        return tvm.transform.Sequential(steps)(mod)

    def laid_out(self, model: Model, layout: str | None) -> Model:
        """Return a model with its convolutions in a layout, and its functions plainly named."""
        from .names import plain_names

        model = super().laid_out(model, layout)
        return replace(model, mod=plain_names(model.mod))


def bound(mod: Any, params: Mapping[str, Any]) -> Any:
    """Return the module with weights bound to parameters of ``main``, which have to take them as they are.

    Raises
    ------
    BadInput
        Nothing takes one, or in another shape or type.
    """
    import tvm

    main = next((f for v, f in mod.functions_items() if v.name_hint == "main"), None)
    taken = {str(p.name): p.ty for p in getattr(main, "params", ())}
    tensors = {name: p if hasattr(p, "numpy") else tvm.runtime.tensor(p) for name, p in params.items()}
    for name, tensor in tensors.items():
        if name not in taken:
            what = f"'main' takes no parameter '{name}'" if main is not None else "the module has no 'main' to take it"
            raise BadInput(what, "params", f"it takes {', '.join(taken)}" if taken else "bind them in the module")
        shape = getattr(taken[name], "shape", None)
        wanted = None if shape is None else [int(e) if hasattr(e, "value") else None for e in shape]
        dtype = str(getattr(taken[name], "dtype", ""))
        fits = wanted is None or (
            len(wanted) == len(tensor.shape) and all(w in (None, g) for w, g in zip(wanted, tensor.shape, strict=True))
        )
        if not fits or dtype not in ("", str(tensor.dtype)):
            what = f"'{name}' is {list(map(int, tensor.shape))} of {tensor.dtype}, 'main' takes {taken[name]}"
            raise BadInput(what, "params", "give it in that shape and type")
    return tvm.relax.transform.BindParams("main", tensors)(mod)


def _shapes_known(tvm: Any, mod: Any) -> bool:
    """Return True if every tensor that main computes has a static shape."""
    kinds = [binding.var.ty for block in mod["main"].body.blocks for binding in block.bindings]
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
    copied = type(model)()
    copied.CopyFrom(model)  # onnxslim changes what it is given
    try:
        with quiet():
            result = onnxslim.slim(copied, input_shapes=told or None)
    except Exception as error:  # it raises whatever its helpers raise
        return None, f"onnxslim failed with it ({last_line(error)})"
    # An input that nothing reads is dropped by it; callers give every input of the file.
    kept = names == {value.name for value in result.graph.input} | {i.name for i in model.graph.initializer} & names
    return (result, "") if kept else (None, "onnxslim changes its inputs")


def _extent(extent: Any) -> int | str:
    return int(extent) if hasattr(extent, "value") else str(extent)


IMPORTER = RelaxImporter()
load_model = IMPORTER.load
