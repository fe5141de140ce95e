"""Folders of this user alone: the cache, and a temporary folder a process that the next run removes if it was killed.

Nothing is loaded from a folder that somebody else can write: its owner, its mode and every folder above it are checked.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from .errors import BadInput, DiskFull, RollerError, cannot_write

#: Begins the name of a process's temporary folder.
PREFIX = "roller-tvm-"
#: Begins the name of the folder in which a file is made, beside its place.
BESIDE = ".roller-tvm-"
#: File in a temporary folder that its process keeps locked.
OWNER = ".owner"
#: Seconds after which a temporary folder without a locked file belongs to nobody.
_UNOWNED_S = 60.0
#: Least free space, in bytes, with which a compiler can work: the object file of a large kernel.
LEAST_FREE = 4 * 1024 * 1024

_lock = threading.RLock()
_made: tuple[int, str, Path, int] | None = None


def cache_folder() -> Path:
    """Return $XDG_CACHE_HOME/roller_tvm, by default ~/.cache/roller_tvm; it may not be there yet."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base, "roller_tvm")
    try:
        return Path.home() / ".cache" / "roller_tvm"
    except RuntimeError:  # no $HOME, and no entry in the list of users
        return Path(tempfile.gettempdir(), f"roller_tvm-{os.getuid()}")


def private_folder(path: Path) -> Path:
    """Make a folder that this user alone can write, with those above it, or check one that is there.

    Raises
    ------
    BadInput
        It cannot be made, or somebody else can write to it or put another in its place.
    DiskFull

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     oct(private_folder(Path(folder, "kept")).stat().st_mode & 0o777)
    '0o700'
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        if why := written_by_others(path):
            raise BadInput(why, str(path), f"chmod 700 {path}, or set XDG_CACHE_HOME to a folder of your own")
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise cannot_write(error, path, other="set XDG_CACHE_HOME to a folder of your own") from error
    return path


def written_by_others(path: Path) -> str:
    """Return the reason why somebody else can write a file or folder or put another in its place; '' if nobody can.

    A folder above it may be root's or this user's; others may write to it only if it is sticky, as /tmp is.

    Examples
    --------
    >>> written_by_others(Path("/proc/self"))
    'is a symbolic link'
    """
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return "is a symbolic link"
    if found.st_uid != os.getuid():
        return "belongs to somebody else"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write to it"
    for above in path.resolve().parents:
        found = above.stat()
        if found.st_uid not in (0, os.getuid()):
            return f"{above} above it belongs to somebody else"
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            return f"others may write to {above} above it"
    return ""


def temporary_folder() -> Path:
    """Return this process's own temporary folder, which goes with it.

    If the process is killed, the next one that asks for such a folder removes it.

    Raises
    ------
    DiskFull, BadInput
        The temporary folder of the system is full, or cannot be written.

    Examples
    --------
    >>> temporary_folder() == temporary_folder()
    True
    """
    global _made
    with _lock:
        try:
            place = tempfile.gettempdir()
        except FileNotFoundError as error:  # it tries to write to each
            remedy = "free some space in /tmp, or set TMPDIR to a folder of your own"
            raise DiskFull("no temporary folder can be written", "/tmp", remedy) from error
        if _made is not None and _made[0] == os.getpid() and place in (_made[1], str(_made[2])) and _made[2].is_dir():
            return _made[2]
        sweep(Path(place))
        try:
            folder, handle = owned_folder(Path(place), PREFIX)
        except OSError as error:
            raise full_place(error, Path(place)) from error
        _made = (os.getpid(), place, folder, handle)
        atexit.register(_remove, os.getpid(), folder)
        return folder


def work_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a new folder within `temporary_folder`; use it in a ``with`` statement.

    Raises
    ------
    DiskFull, BadInput
        The temporary folder is full, or cannot be written.

    Examples
    --------
    >>> with work_folder() as folder:
    ...     Path(folder).parent == temporary_folder()
    True
    """
    place = temporary_folder()
    try:
        return tempfile.TemporaryDirectory(dir=place)
    except OSError as error:
        raise full_place(error, place) from error


def owned_folder(place: Path, prefix: str) -> tuple[Path, int]:
    """Make a folder with a file that is locked as long as the handle is open; return both."""
    import fcntl

    while True:
        try:
            folder = Path(tempfile.mkdtemp(dir=place, prefix=prefix))
            handle = os.open(folder / OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            if not place.is_dir():
                raise
            continue  # swept in the moment between the two
        with contextlib.suppress(OSError):  # a file system without locks: it is removed at the end, and not before
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if (folder / OWNER).exists():
            return folder, handle
        os.close(handle)


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Give a file of the same name in a folder beside `path`, which takes its place at the end, whole or not at all.

    What processes that were killed have left there is removed.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with beside(Path(folder, "model.so")) as made:
    ...         written = made.write_text("whole")
    ...     Path(folder, "model.so").read_text(), os.listdir(folder)
    ('whole', ['model.so'])
    """
    sweep(path.parent, BESIDE)
    folder, handle = owned_folder(path.parent, BESIDE)
    try:
        yield folder / path.name
        with open(folder / path.name, "rb") as file:
            os.fsync(file)
        os.replace(folder / path.name, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def full_place(error: OSError, place: Path) -> RollerError:
    """Return the error of a temporary folder that cannot be written."""
    other = "set TMPDIR to another folder"
    return cannot_write(error, place, "no space left in the temporary folder", f"free some space, or {other}", other)


def sweep(place: Path, prefix: str = PREFIX) -> None:
    """Remove the temporary folders of processes of this user that are no more."""
    import fcntl

    with contextlib.suppress(OSError):
        for folder in place.glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                found = folder.lstat()
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                    continue
                try:
                    handle = os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                except FileNotFoundError:
                    if time.time() - found.st_mtime > _UNOWNED_S:
                        shutil.rmtree(folder, ignore_errors=True)
                    continue
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(handle)


@contextlib.contextmanager
def use_temporary_folder() -> Iterator[None]:
    """Let all that this process and its children write for a while be in its own temporary folder.

    For a process that is ours alone: the command.
    """
    place, folder = tempfile.tempdir, str(temporary_folder())
    tempfile.tempdir = folder
    try:
        with variable("TMPDIR", folder):
            yield
    finally:
        tempfile.tempdir = place


@contextlib.contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment for a while.

    Examples
    --------
    >>> with variable("PYTHONSAFEPATH", "1"):
    ...     os.environ["PYTHONSAFEPATH"]
    '1'
    """
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def check_space(*more: Path) -> None:
    """Raise ``DiskFull`` if the temporary folder or another one has no space left.

    Called where a compiler or TVM failed with words of its own, and before LLVM writes, which ends the process then.
    """
    for folder in (Path(tempfile.gettempdir()), *more):
        with contextlib.suppress(OSError):
            if shutil.disk_usage(folder).free < LEAST_FREE:
                what = "no space left in the temporary folder" if folder not in more else "no space left in the folder"
                remedy = "free some space" if folder in more else "free some space, or set TMPDIR to another folder"
                raise DiskFull(what, str(folder), remedy)


def leave_temporary_folder() -> None:
    """Remove this process's temporary folder: of a fork, which ends without another word."""
    if _made is not None:
        _remove(_made[0], _made[2])


def _remove(process: int, folder: Path) -> None:
    if process == os.getpid():  # a forked child has its own
        shutil.rmtree(folder, ignore_errors=True)
