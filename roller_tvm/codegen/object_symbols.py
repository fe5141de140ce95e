"""Symbols of object files renamed, so that a kernel compiled under one name serves under another (no TVM).

Networks number their kernels: in another form of a model, and among an exploration's variants, the same kernel has
another name. LLVM writes ELF on Linux; of other files nothing is known here.
"""

from __future__ import annotations

import struct

#: ELF's first bytes for 64 bits, little-endian.
_MAGIC = b"\x7fELF\x02\x01"
#: The file's header: place of the section headers, their size and number.
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
#: A section: name, type, flags, address, place, size, link, info, alignment, size of an entry.
_SECTION = struct.Struct("<IIQQQQIIQQ")
#: A symbol: name, kind, visibility, section, value, size.
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOLS = 2


def renamed(content: bytes, old: str, new: str) -> bytes | None:
    """Return an object file whose symbol `old` is called `new`; None where it has none, or is no such file.

    Examples
    --------
    >>> renamed(b"no object file", "one", "other") is None
    True
    """
    if not content.startswith(_MAGIC) or len(content) < _HEADER.size:
        return None
    try:
        return _renamed(bytearray(content), old.encode(), new.encode())
    except (struct.error, IndexError, ValueError):  # cut off
        return None


def _renamed(content: bytearray, old: bytes, new: bytes) -> bytes | None:
    header = _HEADER.unpack_from(content)
    places = [header[6] + n * header[11] for n in range(header[12])]
    sections = [_SECTION.unpack_from(content, place) for place in places]
    found = False
    for section in sections:
        if section[1] != _SYMBOLS:
            continue
        names = sections[section[6]]
        table = bytes(content[names[4] : names[4] + names[5]])
        name = len(table)
        for at in range(section[4], section[4] + section[5], _SYMBOL.size):
            symbol = _SYMBOL.unpack_from(content, at)
            if table[symbol[0] : table.index(b"\0", symbol[0])] == old:
                _SYMBOL.pack_into(content, at, name, *symbol[1:])
                found = True
        if found:  # a longer table of names, behind all that is there
            place = len(content)
            content += table + new + b"\0"
            _SECTION.pack_into(content, places[section[6]], *names[:4], place, len(table) + len(new) + 1, *names[6:])
            return bytes(content)
    return None
