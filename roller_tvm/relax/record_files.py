"""MetaSchedule's files of a database, checked line by line before TVM sees them.

A line that is damaged, nested too deep, or no record of a tuner's is left out, and said with its file and number. A
checksum of each line that we wrote stands in the file of notes beside, so that a plain TVM still reads the database.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import foreign
from ..codegen.intrinsics import register
from ..errors import RecordError, RecordWarning, RollerError
from ..folders import work_folder
from ..tuning.record_rules import NOTES, RECORDS, WORKLOADS, check_workload, parsed_record, renumbered
from ..tuning.supervise import last_line


@dataclass
class Checked:
    """The lines of a database that can be read.

    Attributes
    ----------
    workloads : dict of int to str
        Line by position.
    records : list of (int, int, str)
        Number of the line, position of the workload, line.
    lost : list of str
        What was left out: file, line and reason.
    """

    workloads: dict[int, str] = field(default_factory=dict)
    records: list[tuple[int, int, str]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def texts(self) -> dict[str, str]:
        """Return the content of both files without what was left out, workloads numbered anew."""
        new = {old: number for number, old in enumerate(self.workloads)}
        records = [renumbered(line, new[at]) for _, at, line in self.records]
        parts = {WORKLOADS: self.workloads.values(), RECORDS: records}
        return {name: "".join(f"{line}\n" for line in lines) for name, lines in parts.items()}


def checksums(lines: Iterable[str]) -> dict[tuple[str, int], str]:
    """Return the checksum by file and number of line, of the lines of the notes."""
    found: dict[tuple[str, int], str] = {}
    for line in lines:
        try:
            data = foreign.loads(line)
            if data["of"] in (WORKLOADS, RECORDS):  # whatever it says, it names no other file
                found[data["of"], int(data["line"])] = str(data["sum"])
        except (ValueError, KeyError, TypeError, OverflowError):  # another note, or none; a line 1e400
            continue
    return found


def checked(folder: Path, sums: Mapping[tuple[str, int], str]) -> Checked:
    """Return the lines of a database's files that can be read.

    Raises
    ------
    BadInput
        A file cannot be read at all, or is beyond a limit.
    """
    result, known = Checked(), set(sums.values())

    def lines(name: str) -> Iterable[tuple[int, str]]:
        path = folder / name
        data = foreign.read_bytes(path) if path.exists() else b""
        rows = data.split(b"\n")
        longest = foreign.limit_bytes(foreign.LINE_MIB)
        for number, raw in enumerate(rows, 1):
            if not raw.strip():
                continue
            where = f"{path}:{number}"
            sum_ = sums.get((name, number))
            if len(raw) > longest:
                raise foreign.beyond("the line", longest, where)
            if number == len(rows):
                why = "is only half there (an interrupted write?)"
            elif sum_ not in (None, made := foreign.checksum(raw)) and made not in known:
                why = "its checksum is another: it was damaged or changed"
            else:
                try:
                    yield number, raw.decode()
                    continue
                except UnicodeDecodeError as error:
                    why = f"byte {error.start} is not UTF-8"
            result.lost.append(f"{where}: {why}")

    for number, line in lines(WORKLOADS):
        try:
            check_workload(foreign.loads(line))
            result.workloads[number - 1] = line
        except ValueError as error:
            result.lost.append(f"{folder / WORKLOADS}:{number}: {error}")
    for number, line in lines(RECORDS):
        try:
            at, _ = parsed_record(line)
            if at not in result.workloads:
                raise ValueError(f"its workload, number {at}, is not there")
            result.records.append((number, at, line))
        except ValueError as error:
            result.lost.append(f"{folder / RECORDS}:{number}: {error}")
    for (name, number), sum_ in sums.items():
        if (name, number) not in _seen(folder, name, sum_, number):
            result.lost.append(f"{folder / name}:{number}: the line is gone")
    return result


def _seen(folder: Path, name: str, sum_: str, number: int) -> set[tuple[str, int]]:
    """Return the line's place if the file is long enough to have it."""
    path = folder / name
    data = path.read_bytes() if path.exists() else b""
    count = data.count(b"\n") + (not data.endswith(b"\n"))  # a line without its end is told as such
    return {(name, number)} if number <= count else set()


def warn_of(lost: Iterable[str]) -> None:
    """Warn of each line that was left out."""
    for told in lost:
        warnings.warn(f"{told}\n  remedy: left out; delete that line", RecordWarning, stacklevel=3)


def notes_of(folder: Path) -> list[str]:
    """Return the whole lines of the notes, those that are not UTF-8 left out."""
    path = folder / NOTES
    data = foreign.read_bytes(path) if path.exists() else b""
    rows = data.split(b"\n")[:-1]
    return [row.decode("utf-8", "replace") for row in rows]


def opened(folder: Path, module_equality: str = "structural") -> Any:
    """Return a database with all that can be read of a folder's files, and warn of the rest.

    Raises
    ------
    RecordError
        The folder holds no such files, or not one of its records can be read.
    """
    missing = [name for name in (WORKLOADS, RECORDS) if not (folder / name).is_file()]
    if missing:
        raise RecordError(f"has no {' and no '.join(missing)}", str(folder), "give the folder that tune_relax wrote")
    found = checked(folder, checksums(notes_of(folder)))
    database = loaded(found, folder, module_equality)
    warn_of(found.lost)
    if found.lost and not found.records:
        raise RecordError(f"its records cannot be read: {found.lost[0]}", str(folder), "tune again into a new folder")
    return database


def loaded(found: Checked, folder: Path, module_equality: str) -> Any:
    """Return a database of checked lines; what TVM cannot read of them is left out, too."""
    from tvm.s_tir.meta_schedule.database import JSONDatabase

    know_intrinsics(line for _, _, line in found.records)
    try:
        with work_folder() as copies:
            for name, text in found.texts().items():
                Path(copies, name).write_text(text, encoding="utf-8")
            return JSONDatabase(str(Path(copies, WORKLOADS)), str(Path(copies, RECORDS)),
                                module_equality=module_equality)  # fmt: skip
    except RollerError:
        raise
    except Exception:  # whatever TVM's reader stumbles over: which line, is asked one by one
        return _one_by_one(found, folder, module_equality)


def _one_by_one(found: Checked, folder: Path, module_equality: str) -> Any:
    from tvm.s_tir.meta_schedule.database import MemoryDatabase, TuningRecord, Workload

    database, workloads = MemoryDatabase(module_equality=module_equality), {}
    for at, line in list(found.workloads.items()):
        try:
            workloads[at] = database.commit_workload(Workload.from_json(json.loads(line)).mod)
        except Exception as error:  # as above
            del found.workloads[at]
            found.lost.append(f"{folder / WORKLOADS}:{at + 1}: TVM cannot read it: {last_line(error)}")
    for number, at, line in list(found.records):
        try:
            if at not in workloads:
                raise ValueError(f"its workload, number {at}, cannot be read")
            database.commit_tuning_record(TuningRecord.from_json(json.loads(line)[1], workloads[at]))
        except Exception as error:  # as above
            found.records.remove((number, at, line))
            found.lost.append(f"{folder / RECORDS}:{number}: TVM cannot read it: {last_line(error)}")
    return database


def know_intrinsics(lines: Iterable[str]) -> None:
    """Register the tensor intrinsics named in records' traces: TVM cannot read a trace with an unknown name."""
    for line in lines:
        if '"Tensorize"' in line:
            for name in intrinsics_of(json.dumps(json.loads(line)[1])):
                try:
                    register(name)
                except (KeyError, ImportError):  # TVM's reader says that there is none
                    continue


def intrinsics_of(line: str) -> list[str]:
    """Tensor intrinsics that a record's trace names.

    Examples
    --------
    >>> intrinsics_of('[[[["Tensorize", ["l1"], ["wmma_sync", 1], []], ["Fuse", [], [], []]], []], [1.0]]')
    ['wmma_sync']
    """
    (instructions, _), *_ = json.loads(line)
    return sorted({str(attributes[0]) for kind, _, attributes, _ in instructions if kind == "Tensorize"})
