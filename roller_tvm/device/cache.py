"""The user's cache folder for profiles; files are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def cache_folder() -> Path:
    """Return $XDG_CACHE_HOME/roller_tvm, by default ~/.cache/roller_tvm."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "roller_tvm"


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Hold a lock shared by this user's processes, because two that measure at once would disturb each other."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ImportError):  # nowhere to write, or not POSIX
            import fcntl

            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path.parent / ".profiling", "w", encoding="ascii"))
            fcntl.flock(file, fcntl.LOCK_EX)  # goes with the file, and with the process
        yield


def write_whole(path: Path, text: str) -> OSError | None:
    """Write a file atomically, creating its folder; return the system's error, or None."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as err:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return err
    return None
