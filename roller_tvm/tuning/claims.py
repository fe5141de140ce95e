"""Claims on the tasks of a record file, so that two tuners of one file share the work instead of doing it twice.

A claim is a lock on one byte of a file in the user's cache; it ends with its process, however that ends. Claims are
advisory: without such locks (another machine, not POSIX) tasks are tuned twice, and the better record wins.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

from ..errors import RollerError
from ..folders import cache_folder, private_folder

#: Longest wait in seconds for another process's task: longer than all of a task's limits together.
WAIT_S = 300.0
_POLL_S = 0.2
#: Seconds after which a file of claims that nobody opened is removed.
_OLD_S = 7 * 24 * 3600.0


class Claims:
    """Claims on the tasks of a record file; without a path, every claim succeeds.

    Examples
    --------
    >>> claims = Claims(None)
    >>> claims.take("conv2d"), claims.release("conv2d")
    (True, None)
    """

    def __init__(self, path: Path | None) -> None:
        self._handle, self._path = -1, Path()
        if path is None:
            return
        with contextlib.suppress(OSError, ImportError, RollerError):
            import fcntl  # noqa: F401  (POSIX alone has it)

            private_folder(cache_folder())
            folder = private_folder(cache_folder() / "claims")
            _remove_old(folder)
            self._path = folder / hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            os.utime(self._handle)

    def take(self, key: str, wait_s: float = 0.0) -> bool:
        """Claim a task; return False if another process still has it after `wait_s` seconds."""
        if self._handle < 0:
            return True
        import fcntl

        end = time.monotonic() + wait_s
        while True:
            try:
                fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(key))
                return True
            except (BlockingIOError, PermissionError):
                if time.monotonic() >= end:
                    return False
                time.sleep(_POLL_S)
            except OSError:  # a file system without locks
                return True

    def release(self, key: str) -> None:
        """Release a claim."""
        if self._handle >= 0:
            import fcntl

            with contextlib.suppress(OSError):
                fcntl.lockf(self._handle, fcntl.LOCK_UN, 1, _place(key))

    def close(self) -> None:
        """Release all claims; the last tuner of the file removes them."""
        if self._handle >= 0:
            with contextlib.suppress(OSError):
                import fcntl

                fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # all of it: nobody else has a claim
                self._path.unlink()
            os.close(self._handle)
            self._handle = -1


def _remove_old(folder: Path) -> None:
    """Remove files that no tuner has opened for long; one that is open keeps its locks."""
    with contextlib.suppress(OSError):
        for place in folder.iterdir():
            if time.time() - place.stat().st_mtime > _OLD_S:
                place.unlink()


def _place(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:6], "big")
