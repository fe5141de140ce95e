"""Import of models, the same on both TVM lines: kinds of models, the way of an ONNX file, its checks. Imports no TVM.

An operator that cannot be imported, or is read otherwise than ONNX reads it, is refused by name.
"""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import foreign
from ..errors import BadInput, UnsupportedOperator, UsageError, last_line
from ..forks import deadly
from ..memory import check_memory
from .agreement import check_outputs, check_types
from .arguments import Signature
from .onnx_file import Onnx, input_shapes, node_of, read_onnx
from .reference import check_against_onnxruntime
from .rewriting import Handler, rewrite
from .shapes import Shapes, existing
from .sources import check_trust, kind_of, onnx_file, read_program
from .types import TensorType, inferred_types

#: Endings of files with an ExportedProgram of PyTorch, and with a module of TVM as JSON.
TORCH, JSON = ".pt2", ".json"
PICKLED = (".pt", ".pth", ".ckpt", ".bin")
EXPORT = 'export it: torch.export.save(torch.export.export(model.eval(), (example,)), "model.pt2")'
#: Some key of a module of either line as JSON.
MODULE_KEYS = ("nodes", "root", "root_index")
MISFIT = "check the model, or give the shapes with --input-shapes"


@dataclass(frozen=True)
class Model:
    """A module of TVM and its inputs.

    Parameters
    ----------
    mod : tvm.IRModule
    params : dict
        Weights that are inputs of ``main`` (Relay); elsewhere weights are constants.
    inputs : dict
        Name in the file -> (shape, dtype), in the order of the parameters of ``main``; an extent that stays open
        (Relax) is the name of its variable.
    notes : tuple of str
        Checks that were left out, each with the reason; rewrites that the importer needed.
    """

    mod: Any
    params: dict[str, Any] = field(default_factory=dict)
    inputs: Signature = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def symbols(self) -> tuple[str, ...]:
        """Variables of open extents, which ``buckets`` may name."""
        return tuple(dict.fromkeys(e for shape, _ in self.inputs.values() for e in shape if isinstance(e, str)))


@dataclass(frozen=True)
class Imported:
    """A module that TVM's importer made of an ONNX model.

    Parameters
    ----------
    mod : tvm.IRModule
    model : onnx.ModelProto
        The imported model, perhaps simplified.
    types : dict
        Name of a node's output -> TensorType, as far as they type-check.
    ill_typed : str
        Name of the first value that does not type-check; empty if all do.
    """

    mod: Any
    model: Any
    types: dict[str, TensorType]
    ill_typed: str = ""


class Importer(ABC):
    """The importer of one line: `load` and `import_model` are the same, what they call is the line's own."""

    #: Name of the line's modules in messages.
    name: str
    #: Command that installs what reads ONNX files; kinds of files that are read; how the others than ONNX must end.
    install: str
    files: str
    others: str
    #: Whether open extents stay open.
    keeps_open: bool
    #: Forms of ONNX nodes that TVM misreads.
    handlers: Mapping[str, Handler]
    #: Name of a layout on the command line -> TVM's words for it.
    layouts: Mapping[str, Sequence[str]]

    def load(
        self, path: str | os.PathLike[str], shapes: Shapes | None = None, layout: str | None = None,
        params: str | os.PathLike[str] | None = None, verify: bool = True, simplify: bool | None = None,
        trusted: bool = False,
    ) -> Model:  # fmt: skip
        """Import a model file.

        Parameters
        ----------
        path : path
            ONNX; PyTorch's ExportedProgram as ``torch.export.save`` wrote it (.pt2); a module as ``tvm.ir.save_json``
            wrote it (.json), or of Relay as ``mod.astext()`` gave it (.relay, .txt).
        shapes : mapping of input name to shape, optional
            For inputs whose shape the file leaves open, or (ONNX) to change them. Extents that are still open
            afterwards stay symbolic on the Relax line, and are refused on the Relay line.
        layout : {'NCHW', 'NHWC'}, optional
            Convert convolutions to this layout.
        params : path, optional
            Weights of a module, by name of parameter, as ``relay.save_param_dict`` or
            ``tvm.runtime.save_param_dict_to_file`` wrote them; by default the file of the same name that ends in
            .params, if there is one.
        verify : bool
            Run an ONNX model with fixed shapes once by onnxruntime, if it is installed, and compare the dtypes and
            shapes of the outputs. They are compared with ONNX's own shape inference in any case.
        simplify : bool, optional
            Relax: simplify ONNX with onnxslim before the import. By default only if the importer refuses the file or
            does not know every shape: exporters compute shapes in the graph, and simplified they are constants.
        trusted : bool
            Read files that are programs, too: an ExportedProgram, a module. They can do whatever this user can do.

        Raises
        ------
        BadInput
            The file is missing, empty, broken or of another kind; a shape is open, unknown or of the wrong rank.
        Untrusted
            The file is a program, and nobody said that it is trusted.
        UnsupportedOperator
            TVM cannot import an operator, or reads a node otherwise than ONNX does; the message names it.

        Examples
        --------
        >>> model = load_model("model.onnx", {"x": (1, 3, 32, 32)})
        >>> model.inputs
        {'x': ((1, 3, 32, 32), 'float32')}
        """
        file, given = existing(path, self.files), dict(shapes or {})
        if file.suffix in PICKLED:
            raise BadInput("is pickled Python, which is not read (it could run anything)", str(file), EXPORT)
        tvm = self.import_tvm()
        if file.suffix == TORCH:
            mod, weights, notes = self.from_torch(read_program(file, trusted), None, str(file))
            return self.laid_out(self.settled(mod, weights, given, file, notes), layout)
        if (found := self.read_own(tvm, file, params, trusted)) is not None:
            mod, weights = found
        else:
            return self.laid_out(self._onnx(tvm, file, given, verify, simplify), layout)
        return self.laid_out(self.settled(mod, weights, given, file), layout)

    def import_model(
        self, model: Any, shapes: Shapes | None = None, layout: str | None = None, params: Any = None,
        example_inputs: Sequence[Any] | None = None, trusted: bool = False, dynamic_shapes: Any = None,
    ) -> tuple[str, Model]:  # fmt: skip
        """Import a model from a file or from memory.

        Parameters
        ----------
        model : path, onnx.ModelProto, torch.nn.Module, torch.export.ExportedProgram or tvm.IRModule
        shapes, layout
            See `load`.
        params : mapping of name to array, or path, optional
            Weights of a module of TVM.
        example_inputs : sequence of tensors
            Arguments to trace or export a torch module with.
        dynamic_shapes : optional
            Relax: the open dimensions of a torch module, as ``torch.export.export`` takes them.
        trusted : bool
            See `load`; a model in memory is trusted.

        Returns
        -------
        (str, Model)
            The model's name in messages, and the model.
        """
        kind = kind_of(model)
        if dynamic_shapes is not None and kind != "torch":
            raise UsageError("only a torch module takes dynamic_shapes", "dynamic_shapes", "leave it out")
        if params is not None and kind not in ("file", "tvm"):
            raise UsageError("its weights are in it", "params", "leave it out, or give a module of TVM")
        if kind == "file":
            return os.fspath(model), self.load(model, shapes, layout, params, trusted=trusted)
        if kind == "onnx":
            with onnx_file(model) as path:
                return model.graph.name or "model", self.load(path, shapes, layout)
        tvm, name = self.import_tvm(), type(model).__name__
        notes: tuple[str, ...] = ()
        if kind == "tvm":
            mod, weights = self.with_weights(tvm, self.with_main(tvm, model, name), params)
        else:
            mod, weights, notes = self.from_torch(model, example_inputs, name, dynamic_shapes)
        return name, self.laid_out(self.settled(mod, weights, dict(shapes or {}), Path(name), notes), layout)

    def _onnx(self, tvm: Any, path: Path, shapes: Shapes, verify: bool, simplify: bool | None) -> Model:
        """Return an ONNX file as a model, its types held against ONNX's own and onnxruntime's."""
        model = read_onnx(path, self.install, self.others)
        wanted = input_shapes(model, shapes, path, self.keeps_open)
        onnx = Onnx(model, path, f"TVM {tvm.__version__}", wanted, inferred_types(model, wanted))
        rewrite(onnx, self.handlers)
        imported = self.from_onnx(tvm, onnx, simplify)
        slim = imported.model
        own = onnx.known if slim is model else {**inferred_types(slim, wanted), **onnx.known}
        check_types(replace(onnx, model=slim, known=own), imported.types)
        mod = self.inferred(tvm, imported.mod, path, node_of(model, imported.ill_typed))
        inputs, outputs = self.inputs(mod, {}, path, list(wanted)), self.output_types(mod)
        check_outputs(onnx, onnx.known, outputs)
        note = check_against_onnxruntime(onnx, inputs, outputs) if verify else ""
        check_memory()
        return Model(self.folded(mod), {}, inputs, (note,) if note else ())

    def settled(
        self, mod: Any, weights: dict[str, Any], shapes: Shapes, where: Path, notes: tuple[str, ...] = ()
    ) -> Model:
        """Return a module with the given shapes, its types inferred, as a model."""
        tvm = self.import_tvm()
        mod = self.inferred(tvm, self.fixed(tvm, mod, weights, shapes, where), where)
        return Model(mod, weights, self.inputs(mod, weights, where), notes)

    def laid_out(self, model: Model, layout: str | None) -> Model:
        """Return a model with its convolutions in a layout.

        Raises
        ------
        UsageError, UnsupportedOperator
            There is no such layout; an operator cannot be converted to it.
        """
        if layout is None:
            return model
        if layout not in self.layouts:
            raise UsageError(f"unknown layout {layout!r}", "--desired-layout", f"one of {', '.join(self.layouts)}")
        tvm = self.import_tvm()
        try:
            mod = self.converted(tvm, model.mod, layout)
        except Exception as error:  # the pass raises whatever an operator's rule raises
            what, remedy = f"cannot be converted to {layout}: {last_line(error)}", "leave --desired-layout out"
            raise UnsupportedOperator(what, "model", remedy) from error
        return Model(mod, model.params, model.inputs, model.notes)

    def with_main(self, tvm: Any, mod: Any, where: str) -> Any:
        """Return a function or a module of this line as a module with a function 'main'."""
        function = importlib.import_module(f"tvm.{self.name.lower()}").Function
        if isinstance(mod, function):
            mod = tvm.IRModule({"main": mod})
        if not isinstance(mod, tvm.IRModule) or "main" not in [v.name_hint for v in mod.get_global_vars()]:
            raise BadInput(f"holds no {self.name} module with a function 'main'", where, "save the whole module")
        if not isinstance(mod["main"], function):
            raise BadInput(f"'main' is not a {self.name} function", where, "give the model before it was lowered")
        return mod

    def read_text(self, path: Path, form: str, read: Callable[[str], Any], remedy: str, trusted: bool) -> Any:
        """Return what `read` makes of a file's text, if it is trusted: it is a program."""
        text = foreign.read_text(path, form, remedy)
        if path.suffix == JSON and not set(MODULE_KEYS) & set(foreign.parsed(text, str(path), form, remedy)):
            raise BadInput(f"is not {form}", str(path), remedy)
        check_trust(path, form, trusted)
        if ended := deadly(lambda: read(text)):
            raise BadInput(f"is not {form}: TVM's reader of it ends by {ended}", str(path), remedy)
        try:
            return read(text)
        except Exception as error:  # whatever the reader stumbles over
            raise BadInput(f"is not {form}: {last_line(error)}", str(path), remedy) from error

    def read_json(self, tvm: Any, path: Path, trusted: bool) -> Any:
        """Return the module that ``tvm.ir.save_json`` wrote."""
        remedy = "write it with tvm.ir.save_json(mod)"
        return self.read_text(path, f"a {self.name} module as JSON", tvm.ir.load_json, remedy, trusted)

    # The line's own ----------------------------------------------------------------------------------------

    @abstractmethod
    def import_tvm(self) -> Any:
        """Import TVM, or say that the other line is here."""

    @abstractmethod
    def read_own(self, tvm: Any, path: Path, params: Any, trusted: bool) -> tuple[Any, dict[str, Any]] | None:
        """Return module and weights of a file of this line; None for another kind."""

    @abstractmethod
    def with_weights(self, tvm: Any, mod: Any, params: Any) -> tuple[Any, dict[str, Any]]:
        """Return a module with given weights bound, or beside it."""

    @abstractmethod
    def from_torch(
        self, model: Any, example_inputs: Sequence[Any] | None, where: str, dynamic_shapes: Any = None
    ) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
        """Return module and weights of a torch module or an ExportedProgram, and the rewrites that it needed."""

    @abstractmethod
    def from_onnx(self, tvm: Any, onnx: Onnx, simplify: bool | None) -> Imported:
        """Import a rewritten ONNX model by TVM's importer."""

    @abstractmethod
    def fixed(self, tvm: Any, mod: Any, weights: Mapping[str, Any], shapes: Shapes, where: Path) -> Any:
        """Return a module whose inputs have the given shapes; refuse others."""

    @abstractmethod
    def inferred(self, tvm: Any, mod: Any, where: Path, node: str = "") -> Any:
        """Return a module with its types inferred; `node` is named if they contradict."""

    @abstractmethod
    def inputs(self, mod: Any, weights: Mapping[str, Any], where: Path, names: Sequence[str] = ()) -> Signature:
        """Return the inputs of 'main' by their names in the file."""

    @abstractmethod
    def output_types(self, mod: Any) -> list[TensorType | None]:
        """Return the type of each output of 'main'; None for one that is no tensor."""

    @abstractmethod
    def converted(self, tvm: Any, mod: Any, layout: str) -> Any:
        """Return a module with its convolutions in a layout."""

    def folded(self, mod: Any) -> Any:
        """Return an imported module with its constants folded, if the line folds at import."""
        return mod
