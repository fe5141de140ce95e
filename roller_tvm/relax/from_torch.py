"""Relax from a PyTorch ExportedProgram by TVM's importer."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from ..errors import UnsupportedOperator
from ..models.sources import depending, importing_torch

#: Normalises by the statistics of its batch while it trains, its sixth argument, and updates those of all batches.
TRAINED = "aten._native_batch_norm_legit_functional.default"


def from_program(program: Any, where: str) -> tuple[Any, tuple[str, ...]]:
    """Return the Relax module of an ExportedProgram, its weights as constants, and the rewrites that it needed.

    `where` is the program's name in messages.

    Raises
    ------
    UnsupportedOperator
        TVM cannot import an operator; the message names it.
    """
    import tvm
    from tvm.relax.frontend.torch import from_exported_program

    from . import half_torch, recurrent_torch
    from .torch_rewrites import rewritten

    def names(text: str) -> list[str]:
        return re.findall(r"'([^']+)'", text)

    importing = partial(importing_torch, where, f"TVM {tvm.__version__}", AssertionError, names)
    with importing():
        program, needed = rewritten(program)
    if wide := [name for name, value in program.state_dict.items() if str(value.dtype) == "torch.bfloat16"]:
        raise UnsupportedOperator(f"{wide[0]} is of bfloat16, which TVM's importer cannot read", where,
                                  "give the module as module.half() or module.float()")  # fmt: skip
    inputs, buffers = changes(program)
    if inputs:
        raise UnsupportedOperator(f"changes its input {inputs[0]} in place", where, "return it as a new tensor")
    if read := [name for name, later in buffers.items() if later]:
        what = f"changes its buffer {read[0]} in place, on which its next answer depends"
        remedy = "make it an input and a result, or use torch.compile(module, backend='roller'), which copies it back"
        raise UnsupportedOperator(what, where, remedy)
    converters = recurrent_torch.converters(program) | half_torch.converters(program)
    with importing():
        mod = from_exported_program(
            program, keep_params_as_input=False, run_ep_decomposition=False, custom_convert_map=converters
        )
    notes = [f"rewritten for TVM's importer: {name} ({count})" for name, count in sorted(needed.items())]
    return mod, (*notes, *(f"its buffer {name} stays as it is, where torch changes it" for name in buffers))


def changes(program: Any) -> tuple[list[str], dict[str, bool]]:
    """Return the inputs that a decomposed program changes in place, and its changed buffers: name -> is it read.

    A buffer is read if a result depends on it; statistics that a BatchNorm keeps for later are not.
    """
    signature = program.graph_signature
    results = {spec.arg.name for spec in signature.output_specs if spec.kind.name == "USER_OUTPUT"}
    nodes = {node.name: node for node in program.graph.nodes}
    buffers = {}
    for spec in signature.input_specs:
        if spec.kind.name == "BUFFER" and spec.target in signature.buffers_to_mutate.values():
            node = nodes[spec.arg.name]
            read = not all(str(user.target) == TRAINED and user.args[5] for user in node.users)
            buffers[spec.target] = read and not results.isdisjoint(n.name for n in depending([node]))
    return list(signature.user_inputs_to_mutate.values()), buffers
