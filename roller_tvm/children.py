"""The one launcher of Python processes: a child imports what its parent imports, and nothing of the current folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from .folders import temporary_folder

#: Packages that a child finds even if its parent found them in the current folder.
NEEDED = ("roller_tvm", "roller_bench", "roller_check")
#: Python 3.11 and later: the folder of a script or the current one is not searched for modules.
SAFE_PATH = "PYTHONSAFEPATH"


def python(*words: str) -> list[str]:
    """Return the command of a Python process that takes no module from the current folder.

    Examples
    --------
    >>> python("-m", "roller_tvm.tuning.worker")[1:]
    ['-P', '-m', 'roller_tvm.tuning.worker']
    """
    return [sys.executable, *(["-P"] if sys.version_info >= (3, 11) else []), *words]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a Python process that finds the modules that this one finds.

    Entries of ``sys.path`` that mean the current folder are left out, unless PYTHONPATH names it. Temporary files go to
    this process's own folder.
    """
    asked = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    here = os.getcwd() if Path.cwd().is_dir() else ""
    found = [entry for entry in sys.path if entry and (entry in asked or os.path.abspath(entry) != here)]
    paths = [os.path.abspath(entry) for entry in [*found, *_roots()]]
    own = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), SAFE_PATH: "1", "TMPDIR": str(temporary_folder())}
    return {**os.environ, **own, **(more or {})}


def _roots() -> list[str]:
    """Return the folders of the packages that children need, wherever this process found them."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in NEEDED]
    return [str(Path(file).absolute().parents[1]) for file in files if file]
