"""MetaSchedule's database files in a folder, with what we know beyond them in a file beside.

``database_workload.json`` and ``database_tuning_record.json`` are MetaSchedule's own: a plain TVM reads them.
``roller_tvm.jsonl`` names the target, which is no part of a database's key, and has a note for each task.

A database returns the record with the lowest time. The time of an unmeasured plan is written in *nanoseconds*, although
the format has seconds (``results.UNMEASURED``). A measured record, ours or MetaSchedule's, then always wins.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import foreign
from ..errors import BadInput, RecordError, cannot_write
from ..folders import beside
from ..tuning import results
from ..tuning.interrupt import deferred_interrupt
from ..version import __version__
from .record_files import NOTES, RECORDS, WORKLOADS, checked, checksums, know_intrinsics, loaded, warn_of
from .record_lines import check_replay, record_of
from .targets import in_full, kernels_of, make_target, target_text

REPORT = "roller_tvm.txt"
OTHER = "give another 'work_dir'"


@dataclass(frozen=True)
class Note(results.Note):
    """The outcome of tuning a task.

    Parameters
    ----------
    key : str
        Key of the task.
    default_s : float or None
        Seconds of TVM's own kernel.
    reason : str
        Why TVM's own schedule stays; there is no plan then.
    """

    flops: float | None = 0.0
    key: str = ""
    default_s: float | None = None
    reason: str = ""


class Store:
    """A database and the notes on it.

    Parameters
    ----------
    work_dir : path or None
        Made if it is missing; without one the database is in memory, or one of the user's.
    target : Target
    database : Database, 'json' or 'memory'
    module_equality : str
        MetaSchedule's.

    Attributes
    ----------
    target : Target
        The given one. If the database was written for the same target with its defaults filled in (by the command
        line),
        the database's.

    Raises
    ------
    RecordError
        Files that are no database, were written for another target, or that another process is writing.
    """

    def __init__(
        self, work_dir: str | os.PathLike[str] | None, target: Any, database: Any = "json",
        module_equality: str = "structural",
    ) -> None:  # fmt: skip
        from tvm.s_tir.meta_schedule.database import Database

        self.target = target
        self.folder = Path(work_dir) if work_dir is not None and database == "json" else None
        self.notes: dict[str, Note] = {}
        self._lock = -1
        try:
            if self.folder is not None:
                self._open_folder(self.folder)
                database = self._open_json(self.folder, module_equality)
            elif not isinstance(database, Database):
                kind = "memory" if work_dir is None else database
                database = Database.create(kind, module_equality=module_equality)
            self.database = database
            self._check_records()
        except BaseException:  # or the folder stays locked as long as this process lives
            self.close()
            raise

    # -- opening ------------------------------------------------------------------------------------------------

    def _open_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"no folder can be made there: {error.strerror}", str(folder), OTHER) from error
        self._take_lock(folder)
        lines = list(_whole_lines(folder / NOTES))
        for number, line in enumerate(lines):
            where = f"{folder / NOTES}, line {number + 1}"
            try:
                data = foreign.loads(line)
            except ValueError:
                raise RecordError("is not a line of JSON", where, "delete that line") from None
            if not isinstance(data, dict) or not {"target", "key", "sum"} & data.keys():
                raise RecordError("is no note of a record", where, "delete that line")
            try:
                if "target" in data:
                    self._check_target(target_text(data["target"]), str(folder))
                elif "key" in data:
                    note = Note.of(data)
                    self.notes[note.key] = note
            except ValueError as error:
                raise RecordError(f"is no note of a record: {error}", where, "delete that line") from None
        if not lines:
            self._append(json.dumps({"target": str(self.target), "version": __version__}, sort_keys=True))

    def _take_lock(self, folder: Path) -> None:
        with contextlib.suppress(ImportError):  # POSIX alone has it
            import fcntl

            self._lock = os.open(folder / NOTES, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                os.close(self._lock)
                self._lock = -1
                raise RecordError(
                    "another process is tuning into this folder", str(folder), "wait for it, or give another 'work_dir'"
                ) from None
            except OSError:  # a file system without locks
                pass

    def _open_json(self, folder: Path, module_equality: str) -> Any:
        """Open the files to write to, after what cannot be read was set aside."""
        from tvm.s_tir.meta_schedule.database import JSONDatabase

        for name in (WORKLOADS, RECORDS):  # half a last line, of a process that was killed, would keep all from loading
            mend(folder / name)
        found = checked(folder, checksums(_whole_lines(folder / NOTES)))
        if not found.lost:
            know_intrinsics(line for _, _, line in found.records)
            with contextlib.suppress(Exception):  # which line TVM stumbles over, is asked one by one
                return JSONDatabase(work_dir=str(folder), module_equality=module_equality)
        loaded(found, folder, module_equality)
        self._set_aside(folder, found)
        return JSONDatabase(work_dir=str(folder), module_equality=module_equality)

    def _set_aside(self, folder: Path, found: Any) -> None:
        """Write the files anew without the lines that cannot be read; the old files stay beside them."""
        warn_of(found.lost)
        if not found.records and not found.workloads:
            raise RecordError(f"MetaSchedule's files cannot be read; {found.lost[0]}", str(folder), OTHER)
        texts = found.texts()
        with self._writing():
            for name, text in texts.items():
                (folder / name).replace(folder / f"{name}.damaged")
                with beside(folder / name) as made:
                    made.write_text(text, encoding="utf-8")
            notes = [line for line in _whole_lines(folder / NOTES) if '"sum"' not in line]
            lines = [(name, *one) for name, text in texts.items() for one in enumerate(text.splitlines(), 1)]
            sums = [_sum_note(*line) for line in lines]
            self._rewrite(folder / NOTES, "".join(f"{line}\n" for line in [*notes, *sums]))

    def _rewrite(self, path: Path, text: str) -> None:
        """Write the notes anew in their place: the file is locked."""
        with path.open("r+", encoding="utf-8") as file:
            file.write(text)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())

    def _check_records(self) -> None:
        where = str(self.folder) if self.folder is not None else "database"
        for record in self.database.get_all_tuning_records():
            if record.target is not None:
                self._check_target(str(record.target), where)

    def _check_target(self, other: str, where: str) -> None:
        if kernels_of(other) == kernels_of(str(self.target)):
            return
        if kernels_of(other) != in_full(self.target):
            raise RecordError(
                f"it was written for the target {other}, not for {self.target}",
                where,
                "a database is for one target, which is no part of its key: give each target a 'work_dir' of its own",
            )
        self.target = make_target(json.loads(other))  # what is added to it is for that one too

    # -- reading and writing ------------------------------------------------------------------------------------

    def has_record(self, task: Any) -> bool:
        """Return whether each of the task's functions has a record."""
        return all(self._found(mod) is not None for mod in task.workloads)

    def _found(self, mod: Any) -> Any:
        if not self.database.has_workload(mod):
            return None
        return self.database.query_tuning_record(mod, self.target, "main")

    def best_seconds(self, task: Any) -> float:
        record = self._found(task.workloads[0])
        times = [float(s) for s in record.run_secs or ()] if record is not None else []
        return sum(times) / len(times) if times else float("nan")

    def commit(self, task: Any, schedule: Any, repeats: Sequence[float], note: Note) -> None:
        """Record a schedule for every function of a task, after its trace was seen to give just that.

        Raises
        ------
        RecordError
            If replaying the trace gives something else.
        """
        for mod in task.workloads:
            check_replay(mod, schedule, self.target, task.name)
        with deferred_interrupt(), self._writing():
            if not note.reason:  # a record without a note counts as MetaSchedule's own
                self.note(note)
            for mod in task.workloads:
                self._record(mod, schedule.trace, repeats)
            if note.reason:  # that of TVM's own schedule, which nobody writes once the note is there
                self.note(note)

    def share(self, task: Any) -> None:
        """Give the first function's best record to the task's other functions, which differ in a mark."""
        record = self._found(task.workloads[0])
        for mod in task.workloads[1:] if record is not None else ():
            with self._writing():
                self._record(mod, record.trace, record.run_secs)

    def _record(self, mod: Any, trace: Any, repeats: Sequence[float]) -> None:
        """Add a function and its record; raise ``OSError`` if the disk is full, as MetaSchedule does not."""
        known = self.database.has_workload(mod)
        with self._one_line_more(WORKLOADS) if not known else contextlib.nullcontext():
            workload = self.database.commit_workload(mod)
        with self._one_line_more(RECORDS):
            self.database.commit_tuning_record(record_of(workload, trace, self.target, repeats))

    @contextlib.contextmanager
    def _one_line_more(self, name: str) -> Iterator[None]:
        path = None if self.folder is None else self.folder / name
        before = path.stat().st_size if path is not None and path.exists() else 0
        yield
        if path is None:
            return
        if not _grew(path, before):
            mend(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data = path.read_bytes()
        self._append(_sum_note(name, data.count(b"\n"), data[before:].rstrip(b"\n")))

    def report(self, text: str) -> None:
        """Write the table of a tuning beside the records."""
        if self.folder is not None:
            with self._writing():
                Path(self.folder, REPORT).write_text(text, encoding="utf-8")

    def note(self, note: Note) -> None:
        """Remember what became of a task."""
        self.notes[note.key] = note
        if self.folder is not None:
            self._append(note.json())

    def _append(self, line: str) -> None:
        assert self.folder is not None
        with self._writing(), open(self.folder / NOTES, "a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = "no space left for records; those written before are intact"
            remedy = "free some space and run the same command again: it resumes"
            raise cannot_write(error, str(self.folder), full, remedy, OTHER) from error

    def close(self) -> None:
        """Let other processes write."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sum_note(name: str, number: int, line: str | bytes) -> str:
    """Return the note with the checksum of a file's line."""
    return json.dumps({"of": name, "line": number, "sum": foreign.checksum(line)})


def _grew(path: Path, before: int) -> bool:
    """Return True if a file is longer than `before` bytes, on the disk, and ends with a whole line."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        if file.seek(0, os.SEEK_END) <= before:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def mend(path: Path) -> None:
    """Cut off half a last line, which a process that was killed left."""
    with contextlib.suppress(FileNotFoundError):
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            keep = data.rfind(b"\n") + 1
            with path.open("r+b") as file:
                file.truncate(keep)


def _whole_lines(path: Path) -> Iterator[str]:
    mend(path)
    with contextlib.suppress(FileNotFoundError):
        yield from path.read_text(encoding="utf-8").splitlines()
