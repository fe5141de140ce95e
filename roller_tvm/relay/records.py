"""Record files: Ansor's own format, one line a record, with a comment line of ours before each.

A plain TVM reads them (``auto_scheduler.ApplyHistoryBest``) and skips the comments. A record is written as a comment,
synced, and then made a record by its first byte. So a tuning that is killed at any point leaves only whole records, and
any TVM can read the file. If another program left half a last line, the next write mends the file.

ApplyHistoryBest takes the record with the lowest cost. The time of an unmeasured plan is written in *nanoseconds*,
although the format has seconds. A measured record of the same task, ours or Ansor's, then always wins.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roller_tvm import foreign
from roller_tvm.errors import BadInput, RecordError, RecordWarning, cannot_write, last_line
from roller_tvm.tuning.record_rules import check_steps
from roller_tvm.tuning.results import UNMEASURED, Note

MARK = "# roller-tvm "
#: Begins the comment of a task without a record because TVM's own kernel measured faster.
KEPT = "# roller-tvm-kept "
#: How a record begins, blanks aside.
RECORD = b'{"i":[["'


@dataclass(frozen=True)
class Record:
    """One record of a file: its line and line number, its task and target, and its cost as written (seconds)."""

    line: str
    number: int
    workload_key: str
    target: str
    cost: float
    error_no: int
    note: Note | None = None

    @property
    def measured(self) -> bool:
        return self.note is None or self.note.measured_s is not None


def note_line(note: Note, checksum: str = "") -> str:
    """Return the comment before a record, with the record's checksum."""
    summed = {**json.loads(note.json()), "sum": checksum}
    return MARK + (json.dumps(summed, sort_keys=True) if checksum else note.json())


def _note(line: str) -> tuple[Note | None, str]:
    """Return the note in a comment, and the checksum of the record behind it; None and '' if there is none."""
    try:
        data = foreign.loads(line[len(MARK) :])
        return Note.of(data), str(data.get("sum", ""))
    except (ValueError, TypeError, AttributeError, KeyError):
        return None, ""


def parse(line: str) -> tuple[str, str, float, int]:
    """Return workload key, target, mean cost and error number of a record line; raise ``ValueError`` if it is none."""
    data = foreign.loads(line)
    try:
        key, target = data["i"][0][:2]
        steps, costs, error_no = data["i"][1][1], data["r"][0], data["r"][1]
        version = data["v"]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"not a record of auto_scheduler ({type(error).__name__}: {error})") from None
    types = ((key, str), (target, str), (steps, list), (version, str), (error_no, int), (costs, list))
    good = all(isinstance(value, kind) for value, kind in types) and len(costs) > 0
    if not good or not all(isinstance(c, (int, float)) for c in costs):
        raise ValueError("not a record of auto_scheduler (a field is of a wrong type)")
    try:
        return key, target, math.fsum(costs) / len(costs), error_no
    except OverflowError as error:
        raise ValueError(f"not a record of auto_scheduler (its cost: {error})") from None


def read_records(path: str | os.PathLike[str], strict: bool = True) -> list[Record]:
    """Return every record of a file, in order; [] if there is no file.

    A half-written last line is left out with a ``RecordWarning``. Any other line that is no record raises, or is left
    out with a warning if `strict` is False.

    Raises
    ------
    RecordError
        A line is no record; names file, line and remedy.

    Examples
    --------
    >>> read_records("no_such_file.json")
    []
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", str(path), "give another file") from error
    return list(_records(path, data, strict))


def kept_line(workload_key: str, target: str, reason: str, trials: int) -> str:
    """Return the comment line that keeps a task with TVM's own schedule; resumed tunings read it."""
    return KEPT + json.dumps({"key": workload_key, "target": target, "reason": reason, "trials": trials}) + "\n"


def read_kept(path: str | os.PathLike[str]) -> dict[tuple[str, str], tuple[str, int]]:
    """Return (workload key, target) -> (reason, trials) of tasks that stay with TVM's own schedule."""
    kept: dict[tuple[str, str], tuple[str, int]] = {}
    with contextlib.suppress(FileNotFoundError):
        for raw in Path(path).read_bytes().split(b"\n"):
            if raw.startswith(KEPT.encode()):
                with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):  # damaged: it is tuned again
                    data = foreign.loads(raw[len(KEPT) :].decode())
                    kept[data["key"], data["target"]] = (str(data["reason"]), int(data["trials"]))
    return kept


def _records(path: Path, data: bytes, strict: bool) -> Iterator[Record]:
    note, sum_ = None, ""
    lines = data.split(b"\n")
    for number, raw in enumerate(lines, 1):
        text = raw.decode(errors="replace")
        if text[:1] in ("", "#", " "):  # as TVM's reader does
            if text or number < len(lines):
                note, sum_ = _note(text) if text.startswith(MARK) else (None, "")
            continue
        try:
            key, target, cost, error_no = parse(text)
            check_steps(foreign.loads(text))
            if sum_ and sum_ != foreign.checksum(raw):
                raise ValueError("its checksum is another: it was damaged or changed")
        except ValueError as error:
            where = f"{path}:{number}"
            if number == len(lines):  # no newline after it
                _warn(
                    where,
                    "the last line is only half there (an interrupted write?)",
                    "left out; the next tuning mends the file",
                )
            elif strict:
                raise RecordError(
                    f"not a record of auto_scheduler: {_start(text)} ({error})",
                    where,
                    "delete this line, or write to another file",
                ) from None
            else:
                _warn(where, f"not a record of auto_scheduler: {_start(text)} ({error})", "left out; delete this line")
            note, sum_ = None, ""
            continue
        yield Record(text, number, key, target, cost, error_no, note)
        note, sum_ = None, ""


def _start(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")


def _warn(where: str, what: str, remedy: str) -> None:
    warnings.warn(f"{where}: {what}\n  remedy: {remedy}", RecordWarning, stacklevel=5)


def best_notes(records: list[Record]) -> dict[tuple[str, str], Note]:
    """Return our note of the winning record for each (workload key, target), if the winner has one.

    Its trials are the most that any record of the task had. A lucky record of fewer trials would otherwise make every
    later tuning with more trials repeat the task.
    """
    best: dict[tuple[str, str], Record] = {}
    trials: dict[tuple[str, str], int] = {}
    for record in records:
        task = (record.workload_key, record.target)
        if record.error_no == 0 and (task not in best or record.cost < best[task].cost):
            best[task] = record
        if record.note is not None:
            trials[task] = max(trials.get(task, 0), record.note.trials)
    return {task: replace(r.note, trials=trials[task]) for task, r in best.items() if r.note is not None}


def record_text(task: Any, state: Any, note: Note, seconds_spent: float = 0.0) -> str:
    """Return the comment and the record of a State, two lines."""
    from tvm.auto_scheduler.measure import MeasureInput, MeasureResult
    from tvm.auto_scheduler.measure_record import dump_record_to_string

    if note.measured_s is not None:
        cost = note.measured_s
    elif note.predicted_s is not None:
        cost = note.predicted_s * UNMEASURED
    else:
        raise ValueError("a record needs a measured or a predicted time")
    spent = seconds_spent if note.measured_s is not None else 0.0  # which tells the two apart where the note is lost
    result = MeasureResult([cost], 0, "", spent, time.time())
    line = str(dump_record_to_string(MeasureInput(task, state), result)).strip()
    return f"{note_line(note, foreign.checksum(line))}\n{line}\n"


class RecordWriter:
    """Appends records to a file; several processes may write to it.

    Examples
    --------
    >>> RecordWriter("records.json").append(record_text(task, state, note))  
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.written = 0
        self._size = -1
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._open() as _:  # so that a bad path is said before an hour of tuning
                pass
        except OSError as error:
            raise self._cannot(error) from error

    def append(self, text: str) -> None:
        """Write whole lines, all or nothing, and sync them.

        Raises
        ------
        DiskFull
            No space is left; the message says how many records are intact.
        """
        data = text.encode()
        try:
            while not self._append(data):  # deleted or replaced just now: the same record goes to the new file
                pass
        except OSError as error:
            raise self._cannot(error) from error
        self.written += 1

    def _append(self, data: bytes) -> bool:
        """Write and sync; return False if the file was deleted or replaced meanwhile."""
        hidden, firsts = _hidden(data)
        with self._open() as handle:
            end = mend(handle)
            try:
                _write_all(handle, hidden)
                os.fsync(handle)
                _set_firsts(handle, os.lseek(handle, 0, os.SEEK_CUR) - len(hidden), firsts)
                os.fsync(handle)
            except BaseException:  # Ctrl-C as well: leave nothing that nobody reads
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, end)
                raise
            written = os.fstat(handle)
            if end == self._size:  # else others have written what `grew` is to tell
                self._size = written.st_size
            with contextlib.suppress(OSError):
                return os.path.samestat(written, os.stat(self.path))
            return False

    def withdraw(self, workload_key: str, target: str) -> int:
        """Turn our records of a task into comments, so that no build uses them; return their number.

        Records of other programs stay.
        """
        try:
            with self._open() as handle:
                mend(handle)
                firsts = _own_records(os.pread(handle, os.fstat(handle).st_size, 0), workload_key, target)
                _set_firsts(handle, 0, dict.fromkeys(firsts, b"#"))
                os.fsync(handle)
        except OSError as error:
            raise self._cannot(error) from error
        return len(firsts)

    def grew(self) -> bool:
        """Return whether another process has written since the last write or the last call."""
        try:
            size = os.stat(self.path).st_size
        except OSError:  # deleted meanwhile: the next record makes it anew
            size = 0
        before, self._size = self._size, size
        return size != before

    def mend(self) -> bool:
        """Remove a half-written last line; return True if there was one."""
        with self._open() as handle:
            before = os.fstat(handle).st_size
            return mend(handle) < before

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            _lock(handle)
            yield handle
        finally:
            os.close(handle)  # and with it the lock

    def _cannot(self, error: OSError) -> Exception:
        full = f"no space left to write a record; the {self.written} records written before are intact"
        return cannot_write(error, self.path, full, "free some space and run the same command again: it resumes")


def _lock(handle: int) -> None:
    try:
        import fcntl
    except ImportError:  # not POSIX: one tuner a file
        return
    with contextlib.suppress(OSError):  # file systems without locks
        fcntl.flock(handle, fcntl.LOCK_EX)


def _hidden(data: bytes) -> tuple[bytes, dict[int, bytes]]:
    """Return the lines with every record as a comment, and by offset the first bytes that make them records again."""
    hidden: bytearray = bytearray(data)
    firsts: dict[int, bytes] = {}
    start = 0
    for line in data.splitlines(keepends=True):
        if line[:1] not in (b"#", b" ", b"\n"):
            firsts[start], hidden[start] = line[:1], ord("#")
        start += len(line)
    return bytes(hidden), firsts


def _own_records(data: bytes, workload_key: str, target: str) -> list[int]:
    """Return the byte offsets of our records of a task: records right below a note of ours."""
    found, start, noted = [], 0, False
    for line in data.splitlines(keepends=True):
        if noted and line[:1] != b"#":
            with contextlib.suppress(ValueError):
                if parse(line.decode(errors="replace"))[:2] == (workload_key, target):
                    found.append(start)
        noted = line.startswith(MARK.encode())
        start += len(line)
    return found


def _set_firsts(handle: int, start: int, firsts: dict[int, bytes]) -> None:
    """Write the given first bytes (by offset from `start`): turns comments into records, or the reverse."""
    import fcntl

    # A file open for appending ignores where one wants to write.
    fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) & ~os.O_APPEND)
    for place, first in firsts.items():
        os.pwrite(handle, first, start + place)


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def _begins_a_line(data: bytes) -> bool:
    """Return whether these bytes can be the start of a comment or record, cut off by a killed process."""
    text = data.replace(b" ", b"").replace(b"\0", b"")  # a file system may have made room and written nothing
    return text[:1] in (b"", b"#") or text.startswith(RECORD[: len(text)])


def mend(handle: int) -> int:
    """Make an open record file end with a whole line; return its size in bytes."""
    size = os.fstat(handle).st_size
    if not size or os.pread(handle, 1, size - 1) == b"\n":
        return size
    data = os.pread(handle, size, 0)
    keep = data.rfind(b"\n") + 1
    try:
        parse(data[keep:].decode())
    except ValueError:
        if not _begins_a_line(data[keep:]):
            told = f"its last line is no part of a record: {_start(data[keep:].decode(errors='replace'))}"
            raise RecordError(told, "record file", "name a record file, or one that is not there yet") from None
        os.ftruncate(handle, keep)
        return keep
    _write_all(handle, b"\n")  # the record is whole, its newline is missing
    return size + 1


def load_for_build(path: str | os.PathLike[str], target: str | None = None) -> list[tuple[Any, Any]]:
    """Return (MeasureInput, MeasureResult) of every readable record, for ``auto_scheduler.ApplyHistoryBest``.

    ApplyHistoryBest given the file itself crashes on one half line; this leaves it out with a warning. If the file has
    records of several CPUs or cards, ApplyHistoryBest takes the fastest. With a `target`, a workload that has a record
    of exactly this target, or was left to TVM for it, loses its records of other targets.
    """
    return load_settled(path, target)[0]


def load_settled(
    path: str | os.PathLike[str], target: str | None
) -> tuple[list[tuple[Any, Any]], dict[str, dict[str, Any]]]:
    """Return ``load_for_build``'s list, and the workloads with a record of exactly this target or left to TVM for it.

    Each workload comes with the State of the best record of each computation that has a note; see
    ``dense_weights.computation_of``.
    """
    from tvm.auto_scheduler.measure_record import load_record_from_string

    if not Path(path).exists():
        raise BadInput("no such record file", str(path), "tune first, or correct the path")
    records = read_records(path, strict=False)
    own = {r.workload_key for r in records if r.target == target and r.error_no == 0}
    own |= {key for key, of in read_kept(path) if of == target}
    wanted = [r for r in records if r.target == target or r.workload_key not in own]
    loaded, noted = [], list[tuple[float, str, str, Any]]()
    for record in wanted:
        try:
            loaded.append(tuple(load_record_from_string(record.line)))
        except Exception as error:  # whatever TVM's reader stumbles over: a target of another version, a step
            _warn(f"{path}:{record.number}", f"TVM cannot read it: {last_line(error)}", "it is left out")
            continue
        if record.workload_key in own and not record.error_no and record.note is not None and record.note.computation:
            noted.append((record.cost, record.workload_key, record.note.computation, loaded[-1][0].state))
    settled: dict[str, dict[str, Any]] = {key: {} for key in own}
    for _, key, computation, state in sorted(noted, key=lambda one: one[0]):
        settled[key].setdefault(computation, state)
    return loaded, settled
