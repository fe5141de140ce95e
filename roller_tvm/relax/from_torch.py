"""Relax from a PyTorch ExportedProgram by TVM's importer."""

from __future__ import annotations

import re
from typing import Any

from ..errors import UnsupportedOperator
from ..models import last_line
from ..models.sources import quiet


def from_program(program: Any, where: str) -> Any:
    """Return the Relax module of an ExportedProgram, its weights as constants.

    Parameters
    ----------
    program : torch.export.ExportedProgram
    where : str
        Its name in messages.

    Raises
    ------
    UnsupportedOperator
        TVM cannot import an operator; the message names it.
    """
    import tvm
    from tvm.relax.frontend.torch import from_exported_program

    try:
        with quiet():
            return from_exported_program(program, keep_params_as_input=False)
    except AssertionError as error:
        names = re.findall(r"'([^']+)'", str(error))
        what = f"unsupported operators: {', '.join(names)}" if names else last_line(error)
        raise UnsupportedOperator(what, where, "replace them in the model, or cut it before them") from error
    except Exception as error:  # the importer raises whatever its helpers raise
        what = f"TVM {tvm.__version__} cannot import it: {last_line(error)}"
        raise UnsupportedOperator(what, where, "export it to ONNX instead") from error
