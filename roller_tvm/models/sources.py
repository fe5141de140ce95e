"""Models in memory: their kinds, told without importing onnx, torch or TVM, and their way into a file or a program."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import BadInput, RollerError, UnsupportedOperator, Untrusted, UsageError, last_line, must_be
from ..folders import work_folder

#: Class of a model in memory -> its kind.
_CLASSES = {
    ("onnx", "ModelProto"): "onnx",
    ("torch", "ExportedProgram"): "exported",
    ("torch", "Module"): "torch",
    ("tvm", "IRModule"): "tvm",
    ("tvm", "Function"): "tvm",
}
KINDS = "a path, an onnx.ModelProto, a torch module or ExportedProgram, or a TVM module"


def kind_of(model: Any) -> str:
    """Return 'file', 'onnx', 'torch', 'exported' or 'tvm'.

    Raises
    ------
    BadInput
        The value is none of these.

    Examples
    --------
    >>> kind_of("model.onnx")
    'file'
    """
    if isinstance(model, (str, os.PathLike)):
        return "file"
    for one in type(model).__mro__:
        if found := _CLASSES.get((one.__module__.partition(".")[0], one.__name__)):
            return found
    raise BadInput(must_be("model", KINDS, model), "compile", "give one of these")


@contextlib.contextmanager
def onnx_file(model: Any) -> Iterator[Path]:
    """Keep an onnx.ModelProto in a file for a while; errors name the model instead of the file."""
    import onnx

    with work_folder() as folder:
        path = Path(folder, "model.onnx")
        try:
            onnx.save(model, str(path), save_as_external_data=model.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF)
            yield path
        except RollerError as error:
            error.where = error.where.replace(str(path), "model")
            raise


def check_trust(path: Path, form: str, trusted: bool) -> None:
    """Refuse a file that is a program, unless somebody said that it is trusted."""
    if not trusted:
        what = f"is {form}, a program that can do whatever you can do"
        raise Untrusted(what, str(path), "if you trust who made it, add --trust-model (Python: trusted=True)")


def read_program(path: Path, trusted: bool) -> Any:
    """Return the ExportedProgram in a file (.pt2), if it is trusted: PyTorch reads it with pickle.

    Raises
    ------
    Untrusted
        Nobody said that it is.
    BadInput
        The file is no ExportedProgram, or PyTorch is missing.
    """
    if not zipfile.is_zipfile(path):
        raise BadInput("is not an ExportedProgram", str(path), "write it with torch.export.save(program, path)")
    check_trust(path, "an ExportedProgram", trusted)
    try:
        import torch
    except ImportError as error:
        raise BadInput("reading an ExportedProgram needs PyTorch", str(path), "pip install torch") from error
    try:
        with quiet():
            return torch.export.load(str(path))
    except Exception as error:  # zip, pickle, schema: torch raises whatever is wrong with the file
        raise BadInput(
            f"is not an ExportedProgram that torch {torch.__version__} reads: {last_line(error)}",
            str(path),
            "write it with torch.export.save(program, path), by the same version of torch",
        ) from error


def exported(module: Any, example_inputs: Sequence[Any] | None, dynamic_shapes: Any = None) -> Any:
    """Return the ExportedProgram of a torch module in evaluation mode; the module keeps its mode.

    `dynamic_shapes` are torch.export's: the dimensions that stay open.

    Raises
    ------
    UsageError
        No example inputs.
    UnsupportedOperator
        torch.export cannot take the module.
    """
    import torch

    arguments = example_arguments(module, example_inputs)
    with evaluating(module, "torch.export"):
        return torch.export.export(module, arguments, dynamic_shapes=dynamic_shapes)


def example_arguments(module: Any, example_inputs: Sequence[Any] | None) -> tuple[Any, ...]:
    """Return example inputs as the arguments of a call; raise ``UsageError`` if there are none."""
    if example_inputs is None:
        remedy = "give compile(module, example_inputs=(x,))"
        raise UsageError("a torch module needs example inputs", type(module).__name__, remedy)
    return tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)


@contextlib.contextmanager
def evaluating(module: Any, tool: str) -> Iterator[None]:
    """Keep a torch module in evaluation mode, without gradients; what `tool` raises becomes ``UnsupportedOperator``."""
    import torch

    training = {part: part.training for part in module.modules()}
    try:
        with torch.no_grad(), quiet():
            for part in training:  # an exported module has no train()
                part.training = False
            yield
    except Exception as error:  # tracing raises whatever the module's code meets
        what, remedy = f"{tool} cannot take it: {last_line(error)}", "check that it runs on the example inputs"
        raise UnsupportedOperator(what, type(module).__name__, remedy) from error
    finally:
        for part, mode in training.items():
            part.training = mode


@contextlib.contextmanager
def importing_torch(
    where: str, importer: str, lacking: type[Exception], names: Callable[[str], list[str]]
) -> Iterator[None]:
    """Silence TVM's importer of torch models; its errors become ``UnsupportedOperator``.

    Parameters
    ----------
    where, importer : str
        The model's name and the importer's, for messages.
    lacking : type
        The importer's exception for operators that it does not know.
    names : function of str
        From its message to the operators' names.
    """
    try:
        with quiet():
            yield
    except UnsupportedOperator as error:
        raise UnsupportedOperator(error.what, where, error.remedy) from error
    except Exception as error:  # the importer raises whatever its helpers raise
        what, remedy = f"{importer} cannot import it: {last_line(error)}", "export it to ONNX instead"
        if isinstance(error, lacking):
            found = names(str(error))
            what = f"unsupported operators: {', '.join(found)}" if found else last_line(error)
            remedy = "replace them in the model, or export it to ONNX"
        raise UnsupportedOperator(what, where, remedy) from error


def depending(nodes: Sequence[Any]) -> set[Any]:
    """Return the nodes of a graph of torch.fx that depend on some, and these."""
    found, todo = set(nodes), list(nodes)
    while todo:
        fresh = [user for user in todo.pop().users if user not in found]
        found.update(fresh)
        todo += fresh
    return found


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the importers: they warn of things that are no fault of the model, and their errors say the rest."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
