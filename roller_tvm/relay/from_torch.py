"""Relay from a torch module or an ExportedProgram, by TorchScript and TVM's importer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roller_tvm.models.onnx_file import words_of
from roller_tvm.models.sources import evaluating, example_arguments, importing_torch


def from_torch(model: Any, example_inputs: Sequence[Any] | None, where: str) -> tuple[Any, dict[str, Any]]:
    """Return the Relay module and weights of a torch module or an ExportedProgram, traced with example inputs.

    An ExportedProgram has its own. `where` is the model's name in messages.

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
    with importing_torch(where, f"TVM {tvm.__version__}", NotImplementedError, words_of):
        mod, params = relay.frontend.from_pytorch(traced, inputs)
    return mod, dict(params)
