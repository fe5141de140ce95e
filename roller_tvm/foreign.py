"""The one reader of files that others wrote: size, UTF-8, length of lines, depth of brackets, before anything else.

Every limit is told in the error that it causes, and raised by the variable ROLLER_LIMIT_MIB.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .errors import BadInput

#: Largest text, packed or not, and longest line, in MiB, unless `VARIABLE` says otherwise.
TEXT_MIB, LINE_MIB = 1024, 64
#: Raises both limits, in MiB.
VARIABLE = "ROLLER_LIMIT_MIB"
#: Bytes that a line counts for at least: what is long in lines alone takes time, too.
LINE_BYTES = 1024
#: Deepest brackets of JSON: TVM's own reader takes a stack frame each.
DEPTH = 200
PACKED = b"\x1f\x8b"
_CHUNK = 1 << 20


def limit_bytes(mib: int) -> int:
    """Return a limit in bytes: the given one, or that of ROLLER_LIMIT_MIB if it is higher.

    Examples
    --------
    >>> limit_bytes(64) >= 64 * 2**20
    True
    """
    word = os.environ.get(VARIABLE, "")
    if word and not word.isdigit():
        raise BadInput(f"must be a whole number of MiB (got {word!r})", VARIABLE, f"export {VARIABLE}=4096")
    return max(mib, int(word or 0)) << 20


def beyond(what: str, limit: int, where: str) -> BadInput:
    """Return the error for something larger than its limit in bytes."""
    remedy = f"if it is meant to be so large, set {VARIABLE}={2 * (limit >> 20) or 1} or more"
    return BadInput(f"{what} is longer than {limit / 2**20:g} MiB", where, remedy)


def read_bytes(path: Path, mib: int = TEXT_MIB) -> bytes:
    """Return the content of a regular file that is no larger than a limit, in MiB.

    Raises
    ------
    BadInput
        The file cannot be read, is no regular file, or is larger.
    """
    limit = limit_bytes(mib)
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise unreadable(error, path) from error
    if len(data) > limit:
        raise beyond("the file", limit, str(path))
    return data


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe without a writer, or a device, must not be waited for."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def unreadable(error: OSError, path: Path) -> BadInput:
    """Return the system's error for a file that cannot be read."""
    return BadInput(f"cannot be read: {error.strerror or error}", str(path), "give another file")


def read_text(path: Path, form: str = "text", remedy: str = "give another file", mib: int = TEXT_MIB) -> str:
    """Return the text of a file; `form` and `remedy` are for the error if it is not UTF-8."""
    data = read_bytes(path, mib)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"is not {form}: byte {error.start} (0x{data[error.start]:02x}) is not UTF-8"
        raise BadInput(what, str(path), remedy) from error


def check_depth(text: str, deepest: int = DEPTH) -> None:
    """Raise ``ValueError`` for brackets deeper than a limit: readers of JSON take a stack frame each.

    Examples
    --------
    >>> check_depth("[" * 300 + "]" * 300)
    Traceback (most recent call last):
    ValueError: brackets deeper than 200
    >>> check_depth('["[[[[[["]', 2)
    """
    if text.count("[") + text.count("{") <= deepest:
        return
    depth = 0
    for number, part in enumerate(text.replace("\\\\", "").replace('\\"', "").split('"')):
        if number % 2 == 0:  # between two strings
            for mark in part:
                if mark in "[{":
                    depth += 1
                    if depth > deepest:
                        raise ValueError(f"brackets deeper than {deepest}")
                elif mark in "]}":
                    depth -= 1


def loads(text: str, deepest: int = DEPTH) -> Any:
    """Return the value of a JSON text; raise ``ValueError`` with the reason if it is none, or nested too deep.

    Examples
    --------
    >>> loads('{"a": 1}')
    {'a': 1}
    """
    check_depth(text, deepest)
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"brackets deeper than {deepest}") from None


def parsed(text: str, where: str, form: str, remedy: str) -> Any:
    """Return the value of a JSON text that must be an object.

    Raises
    ------
    BadInput
    """
    try:
        value = loads(text)
    except ValueError as error:
        raise BadInput(f"is not {form}: {error}", where, remedy) from error
    if not isinstance(value, dict):
        raise BadInput(f"is not {form}: it is no object", where, remedy)
    return value


def lines(path: Path, mib: int = TEXT_MIB, line_mib: int = LINE_MIB) -> Iterator[bytes]:
    """Yield the lines of a file, plain or gzipped, without their ends, within both limits.

    Raises
    ------
    BadInput
        The file cannot be read; a line, or all of them unpacked, are longer than their limits.
    EOFError, zlib.error, gzip.BadGzipFile
        A gzipped file is cut off or damaged from here on.
    """
    most, longest = limit_bytes(mib), limit_bytes(line_mib)
    with ExitStack() as stack:
        try:
            file: Any = stack.enter_context(open(path, "rb", opener=_without_waiting))
            if file.read(2) == PACKED:
                file = stack.enter_context(gzip.open(path, "rb"))
            else:
                file.seek(0)
            taken = number = 0
            while line := file.readline(longest + 1):
                number, taken = number + 1, taken + len(line)
                if len(line) > longest:
                    raise beyond("the line", longest, f"{path}:{number}")
                if taken > most:
                    raise beyond("what it holds", most, str(path))
                if number > most // LINE_BYTES:
                    remedy = f"if it is meant to be so long, set {VARIABLE}={2 * (most >> 20) or 1} or more"
                    raise BadInput(f"it has more than {most // LINE_BYTES} lines", str(path), remedy)
                yield line.rstrip(b"\r\n")
        except (gzip.BadGzipFile, EOFError):
            raise
        except OSError as error:
            raise unreadable(error, path) from error


def decompressed(data: bytes, limit: int) -> bytes:
    """Return zlib's content, at most `limit` bytes.

    Raises
    ------
    ValueError
        It is damaged or cut off, or longer than the limit.

    Examples
    --------
    >>> decompressed(zlib.compress(b"0" * 1000), 100)
    Traceback (most recent call last):
    ValueError: more than 100 bytes unpacked
    """
    worker = zlib.decompressobj()
    try:
        text = worker.decompress(data, limit + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(text) > limit:
        raise ValueError(f"more than {limit} bytes unpacked")
    if not worker.eof:
        raise ValueError("cut off")
    return text


def checksum(data: bytes | str) -> str:
    """Return sixteen hexadecimal digits of a text's SHA-256.

    Examples
    --------
    >>> checksum("a line")
    '31b9ee4a830b7558'
    """
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:16]
