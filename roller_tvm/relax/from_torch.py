"""Relax from a PyTorch ExportedProgram by TVM's importer."""

from __future__ import annotations

import re
from typing import Any

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

    with importing_torch(where, f"TVM {tvm.__version__}", AssertionError, names):
        program, needed = rewritten(program)
        mod = from_exported_program(program, keep_params_as_input=False, run_ep_decomposition=False)
    return mod, tuple(f"rewritten for TVM's importer: {name} ({count})" for name, count in sorted(needed.items()))
