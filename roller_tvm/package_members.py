"""Small files kept within a built model: members of a .tar, or an archive behind a library, where loaders do not look.

``tar`` and ``unzip`` read them.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

#: Errors of a file that is no archive, or a broken one.
BROKEN = (KeyError, zipfile.BadZipFile, tarfile.TarError, ValueError, OSError)


def add_members(path: Path, members: Mapping[str, bytes]) -> None:
    """Add files, name -> content, to a built model: a .tar, or a library."""
    if path.suffix == ".tar":
        with tarfile.open(path, "a") as tar:
            for name, data in members.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        return
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def read_members(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the content of some files of a built model, by name.

    Raises
    ------
    KeyError, zipfile.BadZipFile, tarfile.TarError
        One of them is not there, or the model holds no such files at all (see `BROKEN`).
    """
    if tarfile.is_tarfile(path):
        with tarfile.open(path) as tar:
            files = {name: tar.extractfile(name) for name in names}
            return {name: file.read() for name, file in files.items() if file}
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in names}
