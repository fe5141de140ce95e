"""Models from files: ONNX, PyTorch (.pt2), Relay as JSON or text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roller_tvm.errors import BadInput, UnsupportedOperator, UsageError, last_line
from roller_tvm.models.arguments import Signature
from roller_tvm.models.importing import JSON, MISFIT, Imported, Importer, Model
from roller_tvm.models.onnx_file import NotImported, Onnx
from roller_tvm.models.rewriting import SIMPLIFY
from roller_tvm.models.shapes import Shapes, parse_shapes
from roller_tvm.models.tvm_017 import TVM_017
from roller_tvm.models.types import TensorType
from roller_tvm.relay.folding import shared_constant_kernels
from roller_tvm.relay.from_onnx import from_onnx, output_types
from roller_tvm.relay.from_torch import from_torch
from roller_tvm.relay.index_range import check_index_range
from roller_tvm.tvm_env import import_relay_tvm

__all__ = ["IMPORTER", "LAYOUTS", "Model", "Shapes", "converted", "folded", "load_model", "parse_shapes"]

RELAY_TEXT = (".relay", ".txt", ".ir")
LAYOUTS = {"NCHW": ["NCHW", "default"], "NHWC": ["NHWC", "default"]}
LAYOUT_OPERATORS = (
    "nn.conv2d",
    "nn.conv2d_transpose",
    "qnn.conv2d",
    "nn.max_pool2d",
    "nn.avg_pool2d",
    "nn.global_avg_pool2d",
)


def converted(model: Model, layout: str) -> Model:
    """Return the model with its convolutions in another layout."""
    return IMPORTER.laid_out(model, layout)


def arranged(model: Model, layout: str) -> Model:
    """Return the model with its convolutions in another layout, its weights constants that are laid out already."""
    tvm = import_relay_tvm("converting a layout")
    from tvm import relay

    params = {name: tvm.nd.array(value) if not hasattr(value, "device") else value
              for name, value in (model.params or {}).items()}  # fmt: skip
    bound = tvm.IRModule.from_expr(relay.build_module.bind_params_by_name(model.mod["main"], params))
    made = converted(Model(bound, {}, model.inputs, model.notes), layout)
    return Model(folded(made.mod), {}, model.inputs, model.notes)


def folded(mod: Any) -> Any:
    """Return the module with its batch normalisations and other constants folded, once.

    ``relay.build`` and the extraction of tasks fold each time again; after this they find nothing to fold. The keys
    of the tasks are the same with and without it.
    """
    tvm = import_relay_tvm("folding constants")
    from tvm import relay

    fold, passes = relay.transform.FoldConstant(), relay.transform
    steps = [passes.InferType(), passes.SimplifyInference(), fold, passes.FoldScaleAxis(), fold]
    with shared_constant_kernels(), tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(steps)(mod)


class RelayImporter(Importer):
    """Importer of TVM 0.13 to 0.19."""

    name, keeps_open, handlers, layouts = "Relay", False, TVM_017, LAYOUTS
    install = 'pip install "onnx==1.18.0"'
    files = "an ONNX model, or of a Relay module (.json, .relay)"
    others = "a Relay module must end in .json, .relay or .txt"

    def import_tvm(self) -> Any:
        return import_relay_tvm("importing a model")

    def read_own(self, tvm: Any, path: Path, params: Any, trusted: bool) -> tuple[Any, dict[str, Any]] | None:
        """Return a Relay module and the weights in the file beside it."""
        from tvm import relay

        if path.suffix == JSON:
            mod = self.read_json(tvm, path, trusted)
        elif path.suffix in RELAY_TEXT:
            remedy = "write it with mod.astext() (with its weights), or as JSON"
            mod = self.read_text(path, "Relay text", relay.fromtext, remedy, trusted)
        else:
            return None
        file, mod = path.with_suffix(".params"), self.with_main(tvm, mod, str(path))
        return mod, _read_params(tvm, Path(params or file)) if params is not None or file.is_file() else {}

    def with_weights(self, tvm: Any, mod: Any, params: Any) -> tuple[Any, dict[str, Any]]:
        """Return the module, and its weights from a mapping or a file."""
        if isinstance(params, (str, os.PathLike)):
            return mod, _read_params(tvm, Path(params))
        given = dict(params or {}).items()
        return mod, {name: p if isinstance(p, tvm.nd.NDArray) else tvm.nd.array(p) for name, p in given}

    def from_torch(
        self, model: Any, example_inputs: Sequence[Any] | None, where: str, dynamic_shapes: Any = None
    ) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
        if dynamic_shapes is not None:
            remedy = "leave it out and build each shape, or take the Relax line: pip install roller-tvm[relax]"
            raise UsageError("the Relay line builds one shape", "dynamic_shapes", remedy)
        return *from_torch(model, example_inputs, where), ()

    def from_onnx(self, tvm: Any, onnx: Onnx, simplify: bool | None) -> Imported:
        if simplify:
            raise UsageError("the Relay line imports models as they are", "simplify", SIMPLIFY)
        try:
            return from_onnx(onnx.model, onnx.shapes)
        except NotImported as failure:
            raise onnx.refused(failure, tvm.error.OpNotImplemented, SIMPLIFY) from failure

    def fixed(self, tvm: Any, mod: Any, weights: Mapping[str, Any], shapes: Shapes, where: Path) -> Any:
        """Return the module, whose shapes must be the given ones."""
        own = self.inputs(self.inferred(tvm, mod, where), weights, where) if shapes else {}
        for name, shape in shapes.items():
            if name not in own:
                raise BadInput(f"no input is called '{name}'", str(where), f"its inputs are {', '.join(own)}")
            if own[name][0] != tuple(shape):
                what = f"input '{name}' is {list(own[name][0])}, not {list(shape)}"
                raise BadInput(what, str(where), "a Relay module has its shapes: leave --input-shapes out")
        return mod

    def inferred(self, tvm: Any, mod: Any, where: Path, node: str = "") -> Any:
        """Return the type-checked module."""
        from tvm import relay

        try:
            typed = relay.transform.InferType()(mod)
        except tvm.TVMError as error:
            at = f" at {node}" if node else ""
            what = f"its types do not fit together{at}: {last_line(error)}"
            raise UnsupportedOperator(what, str(where), MISFIT) from error
        check_index_range(typed, str(where))
        relay.analysis.post_order_visit(typed["main"], lambda expr: _check_depths(tvm, expr, where))
        return typed

    def inputs(self, mod: Any, weights: Mapping[str, Any], where: Path, names: Sequence[str] = ()) -> Signature:
        """Return the inputs of 'main' without its weights; refuse open shapes."""
        from tvm import tir

        found = {}
        for var in mod["main"].params:
            if var.name_hint in weights:
                continue
            kind = var.checked_type
            shape = [int(e) if isinstance(e, tir.IntImm) else "?" for e in getattr(kind, "shape", ())]
            if "?" in shape:
                what = f"input '{var.name_hint}' has a dynamic shape [{', '.join(map(str, shape))}]"
                raise BadInput(what, str(where), "import the model with a fixed shape")
            found[str(var.name_hint)] = (tuple(shape), str(getattr(kind, "dtype", "")))
        return found

    def output_types(self, mod: Any) -> list[TensorType | None]:
        return output_types(mod)

    def converted(self, tvm: Any, mod: Any, layout: str) -> Any:
        """Return the module with convolutions, and the pools between them, in a layout."""
        from tvm import relay

        known = [n for n in LAYOUT_OPERATORS if relay.op.get(n).get_attr("FTVMConvertOpLayout") is not None]
        desired = {name: [layout] if "pool" in name else LAYOUTS[layout] for name in known}
        passes = relay.transform
        steps = [passes.RemoveUnusedFunctions(), passes.ConvertLayout(desired), passes.FoldConstant()]
        with tvm.transform.PassContext(opt_level=3):
            return tvm.transform.Sequential(steps)(mod)

    def folded(self, mod: Any) -> Any:
        return folded(mod)


def _read_params(tvm: Any, file: Path) -> dict[str, Any]:
    from tvm import relay

    try:
        return dict(relay.load_param_dict(file.read_bytes()))
    except (OSError, tvm.TVMError, ValueError) as error:
        remedy = "write it with relay.save_param_dict(params)"
        raise BadInput(f"is not a file of parameters: {last_line(error)}", str(file), remedy) from error


def _check_depths(tvm: Any, call: Any, where: Path) -> None:
    """Refuse a product of different depths: with constant weights Relay does not ask, and reads past them."""
    name = str(getattr(getattr(call, "op", None), "name", "")) if isinstance(call, tvm.relay.Call) else ""
    if name not in ("nn.dense", "nn.matmul"):
        return
    a, b = (list(argument.checked_type.shape) for argument in call.args)
    turned_a = name == "nn.matmul" and bool(call.attrs.transpose_a)
    turned_b = name == "nn.dense" or bool(call.attrs.transpose_b)
    depths = [a[-2] if turned_a else a[-1], b[-1] if turned_b else b[-2]]
    known = [int(e) for e in depths if isinstance(e, tvm.tir.IntImm)]
    if len(set(known)) > 1:
        what = f"its types do not fit together: a product over {known[0]} and {known[1]} elements"
        raise UnsupportedOperator(what, str(where), MISFIT)


IMPORTER = RelayImporter()
load_model = IMPORTER.load
