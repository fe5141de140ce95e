"""Commands on a machine that lacks something: disk space, memory, a compiler, a home that can be written.

    python -m roller_check poor --points 200 --out poor.json     # goes on where an earlier run stopped

Each command must end by itself, with success or in one line of error that is not an internal one, and leave no
half-written file; on a machine that has everything it must then run to its end. Disks are file systems in memory of
their own size, which no other process sees (Linux, user namespaces).
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .ended import LIMIT_S, Command, Ended, commands, place_of, points_parser, prepared, repeated, run_points

#: Sizes of a full disk in KiB, and of the memory that a command may take beyond what its process has in MiB.
DISK_KIB = (4, 16, 64, 256, 1024)
MEMORY_MIB = (4, 16, 64, 256, 512)
#: Begin of the line that a command says of the files it left on a disk that its parent does not see.
FOUND = "FOUND: "
_NEW_NAMESPACES, _NEW_USER, _READ_ONLY, _PRIVATE = 0x00020000, 0x10000000, 1, 0x44000


def _namespace() -> None:
    """Give this process file systems of its own.

    Raises
    ------
    OSError
        The system does not allow it.
    """
    user, group = os.getuid(), os.getgid()
    _call("unshare", _NEW_NAMESPACES if user == 0 else _NEW_NAMESPACES | _NEW_USER)
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _call("mount", b"none", b"/", None, _PRIVATE, None)


def _call(name: str, *args: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def _disk(place: Path, kib: int, flags: int = 0) -> None:
    _call("mount", b"tmpfs", os.fsencode(place), b"tmpfs", flags, f"size={kib}k,mode=700".encode())


def full(name: str, rng: random.Random, folder: Path) -> None:
    """Have a folder's disk hold a few KiB."""
    _namespace()
    _disk(folder / name, rng.choice(DISK_KIB))


def locked(_: random.Random, folder: Path) -> None:
    """Have a home and caches that cannot be written."""
    _namespace()
    for place in (folder / "cache", folder / "home"):
        place.mkdir(exist_ok=True)
        _disk(place, 4, _READ_ONLY)
    os.environ["HOME"] = str(folder / "home")


def bare(_: random.Random, folder: Path) -> None:
    """Have no compiler: no program at all is found by its name."""
    for name in ("CC", "CXX"):
        os.environ.pop(name, None)
    os.environ["PATH"] = str(folder / "home")


def small(rng: random.Random, _: Path) -> None:
    """Have little memory beyond what the process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + (rng.choice(MEMORY_MIB) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


#: What is lacking -> the function that takes it away, in the command's process.
LACKS: dict[str, Callable[[random.Random, Path], None]] = {
    "room for the output": partial(full, "out"),
    "room for temporary files": partial(full, "tmp"),
    "room for caches": partial(full, "cache"),
    "a home to write to": locked,
    "a compiler": bare,
    "memory": small,
}


def point(name: str, lack: str, seed: int) -> str:
    """Run a command without something, then with everything; return what was wrong, or ''."""
    command, rng = commands()[name], random.Random(seed)
    words = [word.replace("SIZE", str(16 + seed % 997)) for word in command.words]
    with place_of() as place:
        folder = prepared(place)
        one = Ended(folder, words, lambda at: LACKS[lack](rng, at), partial(_tell_whole, command))
        status = one.wait(LIMIT_S)
        if status is None:
            one.left()
            return "no end"
        if wrong := _judged(status, one.said(), lack):
            return wrong
        if one.left():
            return "processes are left"
        return command.whole(folder) or repeated(folder, words, command)


def _tell_whole(command: Command, folder: Path) -> None:
    if wrong := command.whole(folder):
        print(f"{FOUND}{wrong}", flush=True)


def _judged(status: int, said: str, lack: str) -> str:
    """Return what is wrong with a command's end, or ''."""
    lines = [text for text in said.strip().splitlines() if text]
    if status < 0:
        return f"signal {-status}: {said[-300:]}"
    if "Traceback" in said:
        return f"a traceback: {said[-400:]}"
    if found := [text for text in lines if text.startswith(FOUND)]:
        return found[0]
    if status and not any(text.startswith("roller-tvm: error: ") for text in lines):
        return f"exit status {status}: {said[-400:]}"
    if "crash" in said and lack != "memory":  # a worker that ended, and nobody said why
        return f"a crash: {said[-400:]}"
    return ""


def main(words: list[str] | None = None) -> int:
    parser = points_parser("roller_check poor", __doc__.splitlines()[0], 24)
    parser.add_argument("--lack", choices=sorted(LACKS), help="one thing that lacks; default all, in turn")
    args = parser.parse_args(words)
    rows = run_points(args, "lack", [args.lack] if args.lack else list(LACKS), point)
    print(f"{len(rows)} points, {sum(bool(row['wrong']) for row in rows)} faults")
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
