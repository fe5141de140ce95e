"""Plans kept on disk, so that the next process need not construct them again (no TVM).

One SQLite file in the user's cache folder. A plan is found by its operator, device, features, number of plans and the
planner's own code; what another version of the planner made is never read. Several processes may use the file at once,
and a process may be killed at any moment. A damaged file or entry is deleted, and its plans are constructed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
import time
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from .. import foreign
from ..device import DeviceSpec
from ..errors import RollerError, UnsupportedOperator
from ..folders import cache_folder, private_folder
from ..ir import TensorExpression
from ..roller.features import NO_FEATURES, Features
from .construct import construct
from .construction import Construction, RankedPlan

#: Set to "off", the variable keeps plans out of the cache, and the cache out of plans.
VARIABLE = "ROLLER_PLAN_CACHE"
#: Size of the file, bytes: some ten thousand operators. Beyond it, the half that was not used for longest goes.
LIMIT_BYTES = 64 * 2**20
#: Plans stored between two looks at the size, and seconds between two notes of an entry's use.
LOOK_EVERY, NOTE_EVERY_S = 64, 86_400
#: Seconds to wait for another process that writes.
PATIENCE_S = 2.0
#: Folders whose code decides what a plan is.
CODE = ("ir", "roller", "micro_perf", "recipes", "planner")


@dataclass(frozen=True)
class Contents:
    """Contents of a cache.

    Parameters
    ----------
    path : Path
    operators : int
        Entries of this version of the planner.
    others : int
        Entries of other versions, which are not read.
    size_bytes : int
    limit_bytes : int
    """

    path: Path
    operators: int
    others: int
    size_bytes: int
    limit_bytes: int

    def __str__(self) -> str:
        size, limit = self.size_bytes / 2**20, self.limit_bytes / 2**20
        others = f", {self.others} of other versions" if self.others else ""
        return f"{self.path}: plans of {self.operators} operators{others}, {size:.1f} MiB of at most {limit:g} MiB"


@dataclass
class PlanCache:
    """A file of plans.

    Parameters
    ----------
    folder : Path
        Made if it is absent; used only if it belongs to this user and nobody else may write to it.
    limit_bytes : int

    Examples
    --------
    >>> import tempfile
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import matmul
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = PlanCache(Path(folder))
    ...     first, again = (cache.construct(matmul(m=64, n=64, k=64), load_device("v100"), 1) for _ in range(2))
    >>> first.best == again.best
    True
    """

    folder: Path
    limit_bytes: int = LIMIT_BYTES
    _open: sqlite3.Connection | None = field(default=None, init=False, repr=False)
    _process: int = field(default=0, init=False, repr=False)
    _stored: int = field(default=0, init=False, repr=False)
    _refused: bool = field(default=False, init=False, repr=False)
    _lock: Any = field(default_factory=threading.RLock, init=False, repr=False)

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / "plans.sqlite"

    def construct(
        self, expression: TensorExpression, device: DeviceSpec, top: int = 10, features: Features = NO_FEATURES
    ) -> Construction:
        """Return `planner.construct`'s plans, from the file if they are there; rejections are not kept.

        Raises
        ------
        UnsupportedOperator
            As `planner.construct` does; kept too.
        """
        key = _key(expression, device, top, features)
        if (known := self._get(key)) is not None:
            with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):  # an entry that says no plan
                return _read(known, expression.name)
            self._forget(key)
        try:
            found = construct(expression, device, top, features)
        except UnsupportedOperator as error:
            self._put(key, {"unsupported": [error.what, error.where, error.remedy], "name": expression.name})
            raise
        self._put(key, {"plans": [p.to_json() for p in found.plans], "eps": found.eps, "considered": found.considered})
        return replace(found, rejections=())

    def contents(self) -> Contents:
        """Return the number of entries and the size."""
        operators = others = 0
        with self._connection() as db:
            if db is not None:
                ours = db.execute("SELECT count(*) FROM plans WHERE version = ?", (version(),)).fetchone()[0]
                operators, others = ours, db.execute("SELECT count(*) FROM plans").fetchone()[0] - ours
        size = self.path.stat().st_size if self.path.exists() else 0
        return Contents(self.path, operators, others, size, self.limit_bytes)

    def clear(self) -> None:
        """Delete the file."""
        with self._lock:
            self._close()
            self._delete()

    def _get(self, key: str) -> Any:
        """Return the value of a key, or None."""
        with self._connection() as db:
            if db is None:
                return None
            row = db.execute("SELECT value, used FROM plans WHERE key = ? AND version = ?", (key, version())).fetchone()
            if row is None:
                return None
            if time.time() - row[1] > NOTE_EVERY_S:
                with contextlib.suppress(sqlite3.OperationalError):  # another process writes: the next use is noted
                    db.execute("UPDATE plans SET used = ? WHERE key = ?", (time.time(), key))
            try:
                return foreign.loads(foreign.decompressed(row[0], LIMIT_BYTES).decode())
            except (ValueError, TypeError):
                self._forget(key)
        return None

    def _put(self, key: str, value: Any) -> None:
        packed = zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 1)
        with self._connection() as db:
            if db is None:
                return
            db.execute("INSERT OR REPLACE INTO plans VALUES (?, ?, ?, ?)", (key, version(), time.time(), packed))
            self._stored += 1
            if self._stored % LOOK_EVERY == 1:
                self._make_room(db)

    def _forget(self, key: str) -> None:
        with self._connection() as db:
            if db is not None:
                db.execute("DELETE FROM plans WHERE key = ?", (key,))

    def _make_room(self, db: sqlite3.Connection) -> None:
        """Delete the half that was not used for longest, if the file is too large."""
        pages, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        if pages * size > self.limit_bytes:
            db.execute("DELETE FROM plans WHERE key IN (SELECT key FROM plans ORDER BY used LIMIT "
                       "(SELECT (count(*) + 1) / 2 FROM plans))")  # fmt: skip
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
            self._close()
            self._delete()
            self._tell(f"was damaged ({error}) and is deleted; plans are constructed again")
        except OSError as error:
            self._give_up(error.strerror or str(error))

    def _opened(self) -> sqlite3.Connection | None:
        if self._refused:
            return None
        if self._open is not None and self._process == os.getpid():
            return self._open
        try:
            private_folder(self.folder)
        except RollerError as error:
            self._give_up(f"its folder: {error.what}")
            return None
        db = sqlite3.connect(self.path, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA synchronous = OFF")  # a killed process loses nothing; a lost page is found and deleted
            db.execute("CREATE TABLE IF NOT EXISTS plans (key TEXT PRIMARY KEY, version TEXT, used REAL, value BLOB)")
        except sqlite3.Error:
            db.close()
            raise
        self._open, self._process = db, os.getpid()  # a forked child opens its own
        return db

    def _close(self) -> None:
        if self._open is not None and self._process == os.getpid():
            self._open.close()
        self._open = None

    def _delete(self) -> None:
        for path in (self.path, self.path.with_name(self.path.name + "-journal")):
            path.unlink(missing_ok=True)

    def _give_up(self, reason: str) -> None:
        """Use the file no more in this process."""
        self._refused = True
        self._tell(f"cannot be used ({reason}); plans are constructed each time")

    def _tell(self, text: str) -> None:
        warnings.warn(f"the plan cache {self.path} {text}", RuntimeWarning, stacklevel=2)


class NoCache:
    """A cache that keeps nothing."""

    def construct(
        self, expression: TensorExpression, device: DeviceSpec, top: int = 10, features: Features = NO_FEATURES
    ) -> Construction:
        """Return `planner.construct`'s plans."""
        return construct(expression, device, top, features)


def plan_cache() -> PlanCache | NoCache:
    """Return this user's cache, or one that keeps nothing if $ROLLER_PLAN_CACHE says "off"."""
    if os.environ.get(VARIABLE, "").lower() in ("off", "0"):
        return NoCache()
    return _cache_in(cache_folder())


@lru_cache(maxsize=8)
def _cache_in(folder: Path) -> PlanCache:
    return PlanCache(folder)


@lru_cache(maxsize=1)
def version() -> str:
    """Return sixteen hexadecimal digits of the planner's code."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for name in CODE:
        for path in sorted((root / name).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _key(expression: TensorExpression, device: DeviceSpec, top: int, features: Features) -> str:
    """Return the digest of a question; the operator's name does not count."""
    asked = expression.to_json()
    del asked["name"]
    words = [asked, _digest(device), device.name, top, features.to_json()]
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:32]


@lru_cache(maxsize=64)
def _digest(device: DeviceSpec) -> str:
    return device.digest()


def _read(value: Any, name: str) -> Construction:
    """Return a kept construction, of an operator of this name."""
    if "unsupported" in value:
        what, where, remedy = value["unsupported"]
        raise UnsupportedOperator(what, where.replace(value["name"], name, 1), remedy)
    plans = tuple(_named(RankedPlan.from_json(data), name) for data in value["plans"])
    if not plans:
        raise ValueError("no plan")
    return Construction(plans, (), value["eps"], value["considered"])


def _named(ranked: RankedPlan, name: str) -> RankedPlan:
    if ranked.plan.expression.name == name:
        return ranked
    return replace(ranked, plan=replace(ranked.plan, expression=replace(ranked.plan.expression, name=name)))
