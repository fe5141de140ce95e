"""A table that is printed in its own place again and again, and a picture in a file."""

from __future__ import annotations

import sys
from pathlib import Path

from roller_tvm.errors import cannot_write


def redrawn(table: str, lines: int) -> int:
    """Print a table in the place of the one before, which had so many lines; return its number of lines."""
    print(f"\033[{lines}F\033[J" * bool(lines) + table, file=sys.stderr, flush=True)
    return table.count("\n") + 1


def write_picture(path: Path, picture: str) -> None:
    """Write a picture to a file."""
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise cannot_write(error, path) from error
