"""Bytes kept on disk, so that the next process need not make them again: one SQLite file in the user's cache folder.

An entry is found by its key and by the version of the code that made it; what another version made is never read.
Several processes may use the file at once, and a process may be killed at any moment. Each entry is held against its
checksum. A damaged file or entry is deleted and told, and what it held is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import foreign
from .errors import RollerError
from .folders import private_folder

#: Set to "off", the variable keeps everything out of the caches, and the caches out of everything.
VARIABLE = "ROLLER_PLAN_CACHE"
#: Entries stored between two looks at the size, and seconds between two notes of an entry's use.
LOOK_EVERY, NOTE_EVERY_S = 64, 86_400
#: Seconds to wait for another process that writes.
PATIENCE_S = 2.0
_CHECKSUM = 16


@dataclass(frozen=True)
class Contents:
    """Contents of a cache.

    Parameters
    ----------
    path : Path
    kind : str
        What an entry is.
    entries : int
        Entries of this version of the code.
    others : int
        Entries of other versions, which are not read.
    size_bytes : int
    limit_bytes : int
    """

    path: Path
    kind: str
    entries: int
    others: int
    size_bytes: int
    limit_bytes: int

    def __str__(self) -> str:
        size, limit = self.size_bytes / 2**20, self.limit_bytes / 2**20
        others = f", {self.others} of other versions" if self.others else ""
        return f"{self.path}: {self.entries} {self.kind}{others}, {size:.1f} MiB of at most {limit:g} MiB"


@dataclass
class DiskCache:
    """A file of entries.

    Parameters
    ----------
    path : Path
        Its folder is made if it is absent; used only if it belongs to this user and nobody else may write to it.
    kind : str
        What an entry is, for messages.
    remade : str
        What happens without an entry, for messages.
    limit_bytes : int
        Size of the file. Beyond it, the half that was not used for longest goes.
    version : function
        Returns the version of the code that makes entries.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = DiskCache(Path(folder, "words.sqlite"), "words", "words are made again", 2**20, lambda: "1")
    ...     cache.put("key", b"value")
    ...     cache.get("key"), cache.get("other")
    (b'value', None)
    """

    path: Path
    kind: str
    remade: str
    limit_bytes: int
    version: Callable[[], str]
    _open: sqlite3.Connection | None = field(default=None, init=False, repr=False)
    _process: int = field(default=0, init=False, repr=False)
    _stored: int = field(default=0, init=False, repr=False)
    _refused: bool = field(default=False, init=False, repr=False)
    _lock: Any = field(default_factory=threading.RLock, init=False, repr=False)

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, or None."""
        row: Any = None
        with self._connection() as db:
            if db is None:
                return None
            row = db.execute(
                "SELECT CAST(value AS BLOB), used FROM kept WHERE key = ? AND version = ?", (key, self.version())
            ).fetchone()
            if row is not None and time.time() - row[1] > NOTE_EVERY_S:
                with contextlib.suppress(sqlite3.OperationalError):  # another process writes: the next use is noted
                    db.execute("UPDATE kept SET used = ? WHERE key = ?", (time.time(), key))
        if row is None:
            return None
        try:
            value = foreign.decompressed(row[0][_CHECKSUM:], self.limit_bytes)
            if row[0][:_CHECKSUM] == _checksum(key, value):
                return value
        except (ValueError, TypeError):
            pass
        self.forget(key)
        self._tell(f"held a damaged entry, which is deleted; {self.remade}")
        return None

    def put(self, key: str, value: bytes) -> None:
        """Keep a value; one that cannot be kept is not."""
        packed = _checksum(key, value) + zlib.compress(value, 1)
        with self._connection() as db:
            if db is None:
                return
            db.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)", (key, self.version(), time.time(), packed))
            self._stored += 1
            if self._stored % LOOK_EVERY == 1:
                self._make_room(db)

    def forget(self, key: str) -> None:
        """Delete an entry."""
        with self._connection() as db:
            if db is not None:
                db.execute("DELETE FROM kept WHERE key = ?", (key,))

    @property
    def works(self) -> bool:
        """Return whether the file can be used, as far as is known."""
        with self._connection() as db:
            return db is not None

    def contents(self) -> Contents:
        """Return the number of entries and the size."""
        entries = others = 0
        with self._connection() as db:
            if db is not None:
                entries = db.execute("SELECT count(*) FROM kept WHERE version = ?", (self.version(),)).fetchone()[0]
                others = db.execute("SELECT count(*) FROM kept").fetchone()[0] - entries
        size = self.path.stat().st_size if self.path.exists() else 0
        return Contents(self.path, self.kind, entries, others, size, self.limit_bytes)

    def clear(self) -> None:
        """Delete the file."""
        with self._lock:
            self.close()
            self._delete()

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        if self._open is not None and self._process == os.getpid():
            self._open.close()
        self._open = None

    def _make_room(self, db: sqlite3.Connection) -> None:
        """Delete the half that was not used for longest, if the file is too large."""
        pages, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        if pages * size > self.limit_bytes:
            db.execute("DELETE FROM kept WHERE key IN (SELECT key FROM kept ORDER BY used LIMIT "
                       "(SELECT (count(*) + 1) / 2 FROM kept))")  # fmt: skip
            db.execute("VACUUM")

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection | None]:
        """Give the open file, or None if it cannot be used; a damaged one is deleted."""
        with self._lock:
            db = None
            with self._mended():
                db = self._opened()
            with self._mended():
                yield db

    @contextlib.contextmanager
    def _mended(self) -> Iterator[None]:
        """Delete a damaged file; use one that cannot be used no more."""
        try:
            yield
        except sqlite3.OperationalError as error:  # locked for long, a full or read-only disk
            self._give_up(str(error))
        except sqlite3.DatabaseError as error:
            self.close()
            self._delete()
            self._tell(f"was damaged ({error}) and is deleted; {self.remade}")
        except OSError as error:
            self._give_up(error.strerror or str(error))

    def _opened(self) -> sqlite3.Connection | None:
        if self._refused:
            return None
        if self._open is not None and self._process == os.getpid():
            return self._open
        try:
            private_folder(self.path.parent)
        except RollerError as error:
            self._give_up(f"its folder: {error.what}")
            return None
        db = sqlite3.connect(self.path, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA synchronous = OFF")  # a killed process loses nothing; a lost page is found and deleted
            db.execute("CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, version TEXT, used REAL, value BLOB)")
        except sqlite3.Error:
            db.close()
            raise
        self._open, self._process = db, os.getpid()  # a forked child opens its own
        return db

    def _delete(self) -> None:
        for path in (self.path, self.path.with_name(self.path.name + "-journal")):
            path.unlink(missing_ok=True)

    def _give_up(self, reason: str) -> None:
        """Use the file no more in this process."""
        self._refused = True
        self._tell(f"cannot be used ({reason}); {self.remade} each time")

    def _tell(self, text: str) -> None:
        warnings.warn(f"the cache {self.path} {text}", RuntimeWarning, stacklevel=2)


def is_off() -> bool:
    """Return whether $ROLLER_PLAN_CACHE says "off"."""
    return os.environ.get(VARIABLE, "").lower() in ("off", "0")


@lru_cache(maxsize=8)
def code_version(*folders: str) -> str:
    """Return sixteen hexadecimal digits of the code in folders of this package; '' is all of it.

    Examples
    --------
    >>> code_version("planner") == code_version("recipes")
    False
    """
    root, digest = Path(__file__).parent, hashlib.sha256()
    for name in folders:
        for path in sorted((root / name).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _checksum(key: str, value: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + value).digest()[:_CHECKSUM]
