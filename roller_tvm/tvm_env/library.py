"""Libraries on disk, looked at before they are loaded: half of one ends the process."""

from __future__ import annotations

import struct
from pathlib import Path

_ELF, _HEADER = b"\x7fELF\x02\x01", 64


def is_cut_off(path: Path) -> bool:
    """Return whether a file is a truncated shared library (ELF, 64 bits).

    Its header holds the offset of the table of sections, at the end of a whole library.

    Examples
    --------
    >>> is_cut_off(Path(__file__))
    False
    """
    with path.open("rb") as file:
        header = file.read(_HEADER)
    if not header.startswith(_ELF):
        return False
    if len(header) < _HEADER:
        return True
    (table,) = struct.unpack_from("<Q", header, 0x28)
    size, count = struct.unpack_from("<HH", header, 0x3A)
    return path.stat().st_size < table + size * count
