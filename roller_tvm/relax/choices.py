"""The file of an exploration's choices in a folder of records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import cannot_write
from ..models.choices import Choices
from .record_files import RECORDS, WORKLOADS
from .targets import for_other_kernels

FILE = "roller_tvm_choices.json"


def read_choices(folder: Path, target: Any) -> Choices:
    """Return the choices of a folder of records, none if it has no such file."""
    return Choices.read(folder / FILE, str(target), for_other_kernels)


def write_choices(choices: Choices, folder: Path, target: Any) -> None:
    """Write choices; the folder is one of records then, even without any."""
    try:
        for name in (WORKLOADS, RECORDS):
            (folder / name).touch()
    except OSError as error:
        raise cannot_write(error, str(folder)) from error
    choices.write(folder / FILE, str(target))
