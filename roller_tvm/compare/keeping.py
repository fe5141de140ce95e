"""Kernels and references that are kept: under their names only when they are whole, for a job may be killed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def keep_kernel(path: Path, export: Callable[[str], object], told: dict[str, Any]) -> Path:
    """Write a kernel and, beside it, what is told of it; the kernel's file comes last.

    Parameters
    ----------
    path : Path
        Of the kernel; what is told goes to the same name with ``.json``.
    export : function of a file's name
    told : dict

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> kernel = keep_kernel(Path(folder.name, "a.so"), lambda name: Path(name).touch(), {"wrong": ""})
    >>> sorted(p.name for p in kernel.parent.iterdir())
    ['a.json', 'a.so']
    """
    part = path.with_name(f"{path.stem}.part{path.suffix}")  # compilers go by the suffix
    export(str(part))
    path.with_suffix(".json").write_text(json.dumps(told))
    os.replace(part, path)
    return path


def keep_folder(path: Path, fill: Callable[[str], object]) -> Path:
    """A folder that a function fills, unless it is there."""
    if not path.exists():
        part = path.with_name(f"{path.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        fill(str(part))
        part.rename(path)
    return path
