"""Relay from a torch module or an ExportedProgram, by TorchScript and TVM's importer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roller_tvm.errors import UnsupportedOperator, last_line
from roller_tvm.models.onnx_file import words_of
from roller_tvm.models.sources import evaluating, example_arguments, quiet

#: Endings of files that hold an ExportedProgram.
TORCH = (".pt2",)


def from_torch(model: Any, example_inputs: Sequence[Any] | None, where: str) -> tuple[Any, dict[str, Any]]:
    """Return the Relay module and weights of a torch module, traced with example inputs.

    Parameters
    ----------
    model : torch.nn.Module or torch.export.ExportedProgram
    example_inputs : sequence of tensors, optional
        An ExportedProgram has its own.
    where : str
        The model's name in messages.

    Raises
    ------
    UsageError
        No example inputs.
    UnsupportedOperator
        torch cannot trace the module, or TVM cannot import an operator.
    """
    import torch
    import tvm
    from tvm import relay

    if hasattr(model, "graph_signature"):  # an ExportedProgram, whose own module checks what it is given
        arguments, module = model.example_inputs[0], model.module(check_guards=False)
    else:
        arguments, module = example_arguments(model, example_inputs), model
    with evaluating(module, "torch.jit.trace"):
        traced = torch.jit.trace(module, arguments, check_trace=False, strict=False)
    names = [value.debugName() for value in traced.graph.inputs()][1:]
    inputs = [(n, (tuple(a.shape), str(a.dtype).removeprefix("torch."))) for n, a in zip(names, arguments, strict=True)]
    try:
        with quiet():
            mod, params = relay.frontend.from_pytorch(traced, inputs)
    except NotImplementedError as error:
        found = words_of(str(error))
        what = f"unsupported operators: {', '.join(found)}" if found else last_line(error)
        raise UnsupportedOperator(what, where, "replace them in the model, or export it to ONNX") from error
    except Exception as error:  # the importer raises whatever its helpers raise
        what = f"TVM {tvm.__version__} cannot import it: {last_line(error)}"
        raise UnsupportedOperator(what, where, "export it to ONNX instead") from error
    return mod, dict(params)
