"""A built model for several nodes in one file: the program, each node's pieces, the device file. Imports no TVM."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput, cannot_write
from ..folders import beside
from .program import Program

SUFFIX = ".nodes"
PROGRAM, DEVICE, BUILD = "program.json", "device.toml", "build.json"
#: Bytes of one member, at most: a damaged file may say anything.
LARGEST = 1 << 36


def member(node: int, piece: int) -> str:
    """Return the name of a node's piece in the file."""
    return f"node{node}/piece{piece}.so"


@dataclass(frozen=True)
class Package:
    """A file that `write` wrote.

    Attributes
    ----------
    path : Path
    program : Program
    device : str
        The device file that it was planned for.
    line : str
        The TVM line that built it.
    """

    path: Path
    program: Program
    device: str
    line: str

    @classmethod
    def open(cls, path: Path) -> Package:
        """Read a package, without its pieces.

        Raises
        ------
        BadInput
            There is no such file, or it is no package.
        """
        if not path.is_file():
            raise BadInput("is a folder" if path.is_dir() else "no such file", str(path), f"give a {SUFFIX} file")
        remedy = "give what 'roller-tvm compile --nodes' wrote"
        try:
            with zipfile.ZipFile(path) as file:
                texts = [_read(file, name).decode() for name in (PROGRAM, DEVICE, BUILD)]
            line = str(json.loads(texts[2])["line"])
        except (zipfile.BadZipFile, KeyError, ValueError, OSError, NotImplementedError, RuntimeError, TypeError,
                EOFError) as error:  # fmt: skip
            raise BadInput(f"is no model for several nodes: {error}", str(path), remedy) from error
        return cls(path, Program.from_json(texts[0], str(path)), texts[1], line)

    def take(self, node: int, folder: Path) -> list[Path]:
        """Write the pieces of a node to a folder; return their paths."""
        found = []
        try:
            with zipfile.ZipFile(self.path) as file:
                for number in range(len(self.program.pieces)):
                    found.append(folder / f"piece{number}.so")
                    found[-1].write_bytes(_read(file, member(node, number)))
        except (zipfile.BadZipFile, KeyError, ValueError, OSError, NotImplementedError, EOFError) as error:
            raise BadInput(f"is damaged: {error}", str(self.path), "compile the model again") from error
        return found

    def digest(self) -> str:
        """Return sixteen hexadecimal digits that depend on every byte of the file."""
        made = hashlib.sha256()
        with self.path.open("rb") as file:
            while block := file.read(1 << 20):
                made.update(block)
        return made.hexdigest()[:16]

    def device_digest(self) -> str:
        """Return sixteen hexadecimal digits of the device file."""
        return hashlib.sha256(self.device.encode()).hexdigest()[:16]


def _read(file: zipfile.ZipFile, name: str) -> bytes:
    if file.getinfo(name).file_size > LARGEST:
        raise ValueError(f"{name} is too large")
    return file.read(name)


def write(path: Path, program: Program, device: str, line: str, pieces: Iterable[tuple[int, int, Path]]) -> None:
    """Write a package, whole or not at all; `pieces` are (node, piece, library)."""
    try:
        with beside(path) as made, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
            for name, text in ((PROGRAM, program.to_json()), (DEVICE, device), (BUILD, json.dumps({"line": line}))):
                file.writestr(name, text)
            for node, piece, library in pieces:
                file.write(library, member(node, piece))
    except OSError as error:
        raise cannot_write(error, path) from error
