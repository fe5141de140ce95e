"""Packages of tools beside the product (`roller_check`, `roller_bench`), found by name when they are asked for."""

from __future__ import annotations

import importlib
from types import ModuleType

from roller_tvm.errors import BadInput


def tool(module: str) -> ModuleType:
    """Import a module of a tool package.

    Raises
    ------
    BadInput
        The package is not installed.

    Examples
    --------
    >>> tool("roller_check.build").RUNTIME.name
    'runtime'
    """
    package = module.split(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != package:
            raise
        remedy = "install roller-tvm again (pip install .), or put python/ of its source on PYTHONPATH"
        raise BadInput(f"the package {package} is not installed", module, remedy) from None
