"""Relax from a PyTorch ExportedProgram by TVM's importer."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from ..errors import UnsupportedOperator
from ..models.sources import importing_torch
from .torch_rewrites import rewritten


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

    def names(text: str) -> list[str]:
        return re.findall(r"'([^']+)'", text)

    importing = partial(importing_torch, where, f"TVM {tvm.__version__}", AssertionError, names)
    with importing():
        program, needed = rewritten(program)
    changed, kept = signature_changes(program)
    if changed:
        raise UnsupportedOperator(f"changes its input {changed[0]} in place", where, "return it as a new tensor")
    with importing():
        mod = from_exported_program(program, keep_params_as_input=False, run_ep_decomposition=False)
    notes = [f"rewritten for TVM's importer: {name} ({count})" for name, count in sorted(needed.items())]
    return mod, (*notes, *(f"its buffer {name} stays as it is, where torch changes it" for name in kept))


def signature_changes(program: Any) -> tuple[list[str], list[str]]:
    """Return the names of the inputs and of the buffers that a decomposed program changes in place."""
    signature = program.graph_signature
    return list(signature.user_inputs_to_mutate.values()), list(signature.buffers_to_mutate.values())
