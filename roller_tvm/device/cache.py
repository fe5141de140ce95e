"""The user's cache folder for profiles; files are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import BadInput, DiskFull
from ..folders import cache_folder, private_folder

__all__ = ["cache_folder", "one_at_a_time", "write_whole"]


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Hold a lock shared by this user's processes, because two that measure at once would disturb each other."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ImportError, BadInput, DiskFull):  # nowhere to write, or not POSIX
            import fcntl

            folder = private_folder(path.parent)
            handle = os.open(folder / ".profiling", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            file = stack.enter_context(os.fdopen(handle, "w", encoding="ascii"))
            fcntl.flock(file, fcntl.LOCK_EX)  # goes with the file, and with the process
        yield


def write_whole(path: Path, text: str) -> Exception | None:
    """Write a file atomically, creating its folder for this user alone; return the error, or None."""
    temporary = ""
    try:
        private_folder(path.parent)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except (OSError, BadInput, DiskFull) as err:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return err
    return None
