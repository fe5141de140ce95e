"""Commands ended at random points: kill -9 and Ctrl-C of compile, tune, explore and the writing of caches.

    python -m roller_check ended --points 200 --out ended.json     # goes on where an earlier run stopped

After a kill the command must run to its end, with whole files and nothing left over. After Ctrl-C it must end within a
second with exit code 130, in one line, leave no process and no half-written file, and run to its end afterwards.
Each command is a fork of a process that has imported TVM, with caches and temporary files of its own.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roller_tvm.tvm_env import line

#: Seconds of processor time within which Ctrl-C ends a command; those of a busy machine pass more slowly.
PROMPT_S = 1.0
#: Seconds that an undisturbed command may take.
LIMIT_S = 300.0
#: Age of what a killed command left, when it is run again.
MINUTES_S = 300.0
Hook = Callable[[Path], None]
SIGNALS = {"kill": signal.SIGKILL, "ctrl-c": signal.SIGINT}


@dataclass(frozen=True)
class Command:
    """A command to end: its words, and what must hold of its folder afterwards.

    Parameters
    ----------
    words : sequence of str
        Of ``roller-tvm``; FOLDER stands for a folder of its own.
    whole : function of the folder
        Returns what is wrong with what it wrote, or ''.
    """

    words: Sequence[str]
    whole: Callable[[Path], str]


def commands() -> dict[str, Command]:
    """Return the commands of the line that is here."""
    relay = line() == "relay"
    model, suffix = "FOLDER/m.onnx", "tar" if relay else "so"
    records = "FOLDER/out/records.json" if relay else "FOLDER/out/records"
    return {
        "compile": Command(["compile", model, "--output", f"FOLDER/out/m.{suffix}"], _whole_package),
        "tune": Command(["tune", model, "--output", records, "--trials", "1"], _whole_records),
        "cache": Command(["plan", "matmul", "m=64", "n=64", "k=SIZE", "--device", "v100"], lambda _: ""),
        "explore": Command(["explore", model, "-o", records, "--budget", "2"], _whole_records),
    }


def _whole_package(folder: Path) -> str:
    from roller_tvm.errors import RollerError
    from roller_tvm.package_members import check_seal

    for path in (folder / "out").iterdir():
        if path.name not in ("m.so", "m.tar"):
            return f"left over: {path.name}"
        try:
            check_seal(path)
        except RollerError as error:
            return error.one_line()
    return ""


def _whole_records(folder: Path) -> str:
    """Return the lines of records left out by their readers; a half last line may be left out."""
    place = folder / "out" / ("records.json" if line() == "relay" else "records")
    if not place.exists():
        return ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with contextlib.suppress(Exception):  # no records yet; what matters is said in warnings
            if line() == "relay":
                from roller_tvm.relay.records import read_records

                read_records(place, strict=False)
            else:
                from roller_tvm.relax.record_files import opened

                opened(place)
    told = [str(one.message) for one in caught]
    return "; ".join(text for text in told if "half there" not in text and "cut" not in text)[:300]


def _nothing(folder: Path) -> None:
    """Do nothing before or after a command."""


class Ended:
    """A command in a folder of its own: started as a fork, with what it said.

    Parameters
    ----------
    before, after : function of the folder, optional
        Called in the fork around the command.
    """

    def __init__(self, folder: Path, words: Sequence[str], before: Hook = _nothing, after: Hook = _nothing) -> None:
        self.folder, self.log, self.before, self.after = folder, folder / "log", before, after
        with contextlib.suppress(OSError):
            self.log.unlink()
        said = [word.replace("FOLDER", str(folder)) for word in words]
        self.pid = os.fork()
        if not self.pid:
            self._run(said)

    def _run(self, words: list[str]) -> None:
        code = 70
        try:
            os.setsid()
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for stream in (1, 2):
                os.dup2(log, stream)
            os.environ.update(
                XDG_CACHE_HOME=str(self.folder / "cache"), TMPDIR=str(self.folder / "tmp"))
            os.environ.pop("ROLLER_PLAN_CACHE", None)
            tempfile.tempdir = None
            signal.signal(signal.SIGINT, signal.default_int_handler)
            from roller_tvm import cli

            self.before(self.folder)
            code = cli.main(words)
            sys.stdout.flush()
            sys.stderr.flush()
            self.after(self.folder)
            sys.stderr.flush()
        except BaseException:  # what the command lets through is a fault of its own
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
        finally:
            atexit._run_exitfuncs()
            os._exit(code)

    def wait(self, seconds: float) -> int | None:
        """Return the exit status, negative for a signal; None if there is none in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        return None

    def cpu_s(self) -> float:
        """Return the processor's seconds of the process, all threads."""
        return sum(map(int, _stat(self.pid)[11:13])) / os.sysconf("SC_CLK_TCK")

    def said(self) -> str:
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    def left(self) -> list[int]:
        """Return the processes of its session that are still there after two seconds, and end them."""
        for _ in range(20):
            found = [pid for pid in _processes() if _session(pid) == self.pid]
            if not found:
                return []
            time.sleep(0.1)
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return found


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _session(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[3]) if fields and fields[0] != "Z" else -1


def _stat(pid: int) -> list[str]:
    """Return the fields of a process's /proc/PID/stat from its state on; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def point(name: str, how: str, seed: int, whole_s: float) -> str:
    """End a command at a random point of its time and run it again; return what was wrong, or ''."""
    rng, command = random.Random(seed), commands()[name]
    words = [word.replace("SIZE", str(16 + seed % 997)) for word in command.words]
    with place_of() as place:
        folder = prepared(place)
        one = Ended(folder, words)
        status = one.wait(rng.uniform(0, whole_s))
        if status is None:
            before = one.cpu_s()
            os.kill(one.pid, SIGNALS[how])
            start = time.monotonic()
            late = _after(one, how, before, start)
            if isinstance(late, str):
                return late
            status = late
            if how == "ctrl-c" and status not in (130, 0):
                return f"exit status {status} after Ctrl-C: {one.said()[-300:]}"
        if "Traceback" in one.said():
            return f"a traceback: {one.said()[-400:]}"
        if left := one.left():
            return f"{len(left)} processes are left"
        if how == "ctrl-c" and (wrong := command.whole(folder)):
            return f"after Ctrl-C: {wrong}"
        return repeated(folder, words, command)


def repeated(folder: Path, words: Sequence[str], command: Command) -> str:
    """Run a command again, undisturbed and minutes later; return what was wrong, or ''."""
    for name in ("out", "tmp"):
        for entry in os.scandir(folder / name):  # a folder that its process had not locked yet is removed by its age
            if entry.is_dir():
                os.utime(entry, (time.time() - MINUTES_S,) * 2)
    again = Ended(folder, words)
    if (status := again.wait(LIMIT_S)) != 0:
        again.left()
        return f"the next run ends with {status}: {again.said()[-400:]}"
    if "Traceback" in again.said():
        return f"a traceback in the next run: {again.said()[-400:]}"
    if wrong := command.whole(folder):
        return f"after the next run: {wrong}"
    left_over = [p.name for p in (folder / "tmp").iterdir()] if (folder / "tmp").is_dir() else []
    return f"left over in the temporary folder: {left_over}" if left_over else ""


def _after(one: Ended, how: str, before: float, start: float) -> int | str:
    """Return the exit status after the signal; words if it comes too late."""
    spent = 0.0
    while time.monotonic() - start < LIMIT_S:
        status = one.wait(0.02)
        if status is not None:
            late = how == "ctrl-c" and spent > PROMPT_S
            return f"{spent:.1f} s of the processor's until Ctrl-C ended it" if late else status
        spent = one.cpu_s() - before
        idle = time.monotonic() - start > 30 and spent < PROMPT_S
        if idle or spent > 30:
            os.kill(one.pid, signal.SIGKILL)
            one.left()
            return "no end after the signal"
    return "no end after the signal"


@contextlib.contextmanager
def place_of() -> Iterator[Path]:
    """Make a folder, removed at the end; a fork that ends does not remove it, as it would a ``TemporaryDirectory``."""
    place = Path(tempfile.mkdtemp())
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def prepared(place: Path) -> Path:
    """Make the folders and the model of a command."""
    from .tvm_readers import small_onnx

    for name in ("out", "cache", "tmp"):
        (place / name).mkdir()
    (place / "m.onnx").write_bytes(small_onnx())
    return place


def seconds_of(name: str) -> float:
    """Return how long a command takes undisturbed.

    Raises
    ------
    RuntimeError
        It fails.
    """
    with place_of() as place:
        start = time.monotonic()
        one = Ended(prepared(place), [w.replace("SIZE", "16") for w in commands()[name].words])
        status = one.wait(LIMIT_S)
        if status != 0:
            raise RuntimeError(f"{name} ends with {status}: {one.said()[-500:]}")
        return time.monotonic() - start


def points_parser(prog: str, told: str, points: int) -> argparse.ArgumentParser:
    """Return the parser of a command that looks at so many points by default."""
    parser = argparse.ArgumentParser(prog=prog, description=told)
    parser.add_argument("--points", type=int, default=points, metavar="N", help=f"points in all; default {points}")
    parser.add_argument("--only", choices=sorted(commands()), help="one command; default all, in turn")
    parser.add_argument("--seed", type=int, default=0, help="first seed; default 0")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no point after so long; default 600")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON lines; points that it has are not run again")
    return parser


def run_points(
    args: argparse.Namespace, key: str, kinds: Sequence[str], point: Callable[[str, str, int], str]
) -> list[dict[str, Any]]:
    """Look at the points that the file of an earlier run lacks; return the rows of both, with each fault printed.

    Parameters
    ----------
    args : Namespace
        Of `points_parser`.
    key : str
        Name of what differs from point to point, in a row.
    kinds : sequence of str
        Its values, in turn.
    point : function of command, kind and seed
        Returns what is wrong, or ''.
    """
    rows: list[dict[str, Any]] = []
    if args.out and args.out.exists():
        rows = [json.loads(text) for text in args.out.read_text(encoding="utf-8").splitlines()]
    known = {(row["line"], row["seed"], row["command"], row[key]) for row in rows}
    names, until = [args.only] if args.only else sorted(commands()), time.monotonic() + 60 * args.minutes
    for row in rows:
        _tell(row, key)
    warm()
    for seed in range(args.seed, args.seed + args.points):
        name, kind = names[seed % len(names)], kinds[seed // len(names) % len(kinds)]
        if (line(), seed, name, kind) in known or time.monotonic() > until:
            continue
        row = {"line": line(), "command": name, key: kind, "seed": seed, "wrong": point(name, kind, seed)}
        rows.append(row)
        if args.out:
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        _tell(row, key)
    return rows


def main(words: list[str] | None = None) -> int:
    parser = points_parser("roller_check ended", __doc__.splitlines()[0], 8)
    parser.add_argument("--how", choices=sorted(SIGNALS), help="default both, in turn")
    args, whole_s = parser.parse_args(words), functools.cache(seconds_of)
    hows = [args.how] if args.how else sorted(SIGNALS)
    done = run_points(args, "how", hows, lambda name, how, seed: point(name, how, seed, whole_s(name)))
    for how in sorted(SIGNALS):
        rows = [row for row in done if row["how"] == how]
        print(f"{how}: {len(rows)} points, {sum(bool(row['wrong']) for row in rows)} faults")
    return 1 if any(row["wrong"] for row in done) else 0


def _tell(row: dict[str, Any], key: str) -> None:
    """Print a fault, of this run or of the file that it goes on from."""
    if row["wrong"]:
        print(f"{row['line']}: {row['command']}, {row[key]}, seed {row['seed']}: {row['wrong']}", flush=True)


def warm() -> None:
    """Import what the forks need, without starting threads."""
    import importlib

    for name in ("tvm", "onnx", "onnxruntime", "roller_tvm.cli", "roller_tvm.session", "roller_tvm.api",
                 f"roller_tvm.{line()}.model_line", f"roller_tvm.{line()}.importers"):  # fmt: skip
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


if __name__ == "__main__":
    sys.exit(main())
