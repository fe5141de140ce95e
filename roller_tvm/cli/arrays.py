"""Arrays in .npz files: inputs and outputs of ``roller-tvm run``."""

from __future__ import annotations

import io
import lzma
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from roller_tvm.errors import BadInput, cannot_write

#: What numpy and zipfile raise for a file that is no .npz file, or a damaged one.
BROKEN = (
    ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError, TypeError, KeyError, NotImplementedError,
    RuntimeError, MemoryError, OverflowError, SyntaxError, struct.error, tokenize.TokenError, zlib.error,
    lzma.LZMAError,
)  # fmt: skip


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays of a file, by name.

    Raises
    ------
    BadInput
        There is none, or it is no .npz file.
    """
    if not path.is_file():
        raise BadInput("is a folder" if path.is_dir() else "no such file", str(path), "give an .npz file")
    try:
        with np.load(path) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except BROKEN as error:
        told = "it holds a single array" if isinstance(error, (AttributeError, TypeError)) else str(error)
        remedy = "write it with numpy.savez(file, input_name=array)"
        raise BadInput(f"is not an .npz file: {told}", str(path), remedy) from error


def check_writable(path: Path) -> None:
    """Check that outputs can be written to this path, before a model is run.

    Raises
    ------
    BadInput
    """
    if not path.resolve().parent.is_dir():
        raise BadInput("no such folder", str(path.parent), f"mkdir -p {path.parent}")
    if path.is_dir():
        raise BadInput("is a folder", str(path), f"name a file: {path / 'outputs.npz'}")


def write_arrays(path: Path, outputs: list[Any]) -> None:
    """Write outputs as output_0, output_1, ..."""
    check_writable(path)
    data = io.BytesIO()  # savez would append .npz to another ending, and write again after an error
    np.savez(data, **{f"output_{n}": o for n, o in enumerate(outputs)})  # type: ignore[arg-type]
    try:
        path.write_bytes(data.getbuffer())
    except OSError as error:
        raise cannot_write(error, path) from error
