"""Small files kept within a built model: members of a .tar, or an archive behind a library, where loaders do not look.

``tar`` and ``unzip`` read them.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from .errors import BadInput
from .foreign import limit_bytes

#: Errors of a file that is no archive, or a broken one.
BROKEN = (
    KeyError, zipfile.BadZipFile, tarfile.TarError, ValueError, OSError, EOFError, NotImplementedError, RuntimeError,
    zlib.error, lzma.LZMAError, struct.error,
)  # fmt: skip
#: Begins the last words of a file, and the version of our part of it.
SEAL, FORMAT = "roller-tvm seal ", 1
#: Largest member, in MiB: kernels' source, a report.
MEMBER_MIB = 256


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


def seal(path: Path) -> None:
    """End a built model with the version of its format and the checksum of all before; the last that is written to it.

    A tar reader stops before it; in a library it is the comment of the archive behind it.
    """
    words = f"{SEAL}{FORMAT} ".encode()
    if path.suffix == ".tar":
        with path.open("ab") as file:
            file.write(words + b"0" * 64)
    else:
        with zipfile.ZipFile(path, "a") as archive:
            archive.comment = words + b"0" * 64
    with path.open("r+b") as file:
        digest, _ = _digests(file)
        file.seek(-64, os.SEEK_END)
        file.write(digest.encode())


def check_seal(path: Path) -> None:
    """Refuse a built model that is not what was written.

    Raises
    ------
    BadInput
        Its checksum is another, or its format is that of a later version.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 128))
        found = re.search(rb"%s(\d{1,6}) (.{64})\Z" % re.escape(SEAL.encode()), file.read(), re.DOTALL)
        if found is None:  # of another program, or an older version
            return
        if int(found[1]) > FORMAT:
            what = f"has format {int(found[1])}; this version reads up to {FORMAT}"
            raise BadInput(what, str(path), "compile the model again, or update roller-tvm")
        digest, kept = _digests(file)
    if kept != digest.encode():
        raise BadInput("is damaged: its checksum is another", str(path), "compile the model again, or copy it again")


def _digests(file: BinaryIO) -> tuple[str, bytes]:
    """Return the checksum of a sealed file, and the one that it ends with."""
    left, digest = file.seek(0, os.SEEK_END) - 64, hashlib.sha256()
    file.seek(0)
    while left > 0 and (part := file.read(min(left, 1 << 20))):
        digest.update(part)
        left -= len(part)
    return digest.hexdigest(), file.read(64)


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
            return {name: _limited(file, name) for name, file in files.items() if file}
    with zipfile.ZipFile(path) as archive:
        return {name: _limited(archive.open(name), name) for name in names}


def _limited(file: Any, name: str) -> bytes:
    """Return the content of a member that is no larger than `MEMBER_MIB`."""
    limit = limit_bytes(MEMBER_MIB)
    with file:
        data = bytes(file.read(limit + 1))
    if len(data) > limit:
        raise ValueError(f"{name} is longer than {limit >> 20} MiB")
    return data
