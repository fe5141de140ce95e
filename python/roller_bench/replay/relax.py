"""MetaSchedule's databases held against the model: traces applied to their workloads, and kernels read from the result.

Needs the TVM of the Relax line, but no GPU: a trace is applied, nothing is built.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roller_tvm import foreign
from roller_tvm.errors import BadInput, UnsupportedOperator
from roller_tvm.relax.record_lines import replay
from roller_tvm.relax.targets import kernels_of
from roller_tvm.tir.read import TirReading, read_prim_func
from roller_tvm.tuning.supervise import last_line

from .databases import RECORDS, WORKLOADS, file_of
from .described import kernels_of_function
from .records import Recorded, Skipped
from .replay import Entry, Replayed
from .state import Unreadable
from .workload import Workload, kind_of

#: Seconds from which a time is no measurement: what failed has 1e10, and a plan that nobody measured its prediction in
#: nanoseconds (``tuning.results.UNMEASURED``), which is more than a launch's microsecond.
NO_TIME = 1e3
#: Kinds of target whose kernels run in blocks of threads.
GPUS = ("cuda", "rocm", "opencl", "vulkan", "metal", "webgpu")


@dataclass
class _Task:
    """A workload of a database and its records, in their order."""

    name: str
    key: str
    mod: Any
    reading: TirReading
    entries: list[Entry] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    records: int = 0
    ran: int = 0

    def replayed(self, path: Path) -> Replayed:
        expression = self.reading.expression
        workload = Workload(kind_of(expression), expression, (), expression.anchor.name)
        entries, skipped = tuple(self.entries), tuple(self.skipped)
        return Replayed(path, workload, entries, self.ran, self.records, skipped, self.name)


def replay_database(folder: Path, most: int | None = None) -> list[Replayed]:
    """Read a database and describe its records' kernels, workload by workload.

    Parameters
    ----------
    folder : Path
        With ``database_workload.json`` and ``database_tuning_record.json``; either may be gzipped.
    most : int, optional
        Records of a workload that ran that are read back; all by default.

    Raises
    ------
    BadInput
        The files cannot be read.
    """
    from tvm.s_tir import tensor_intrin  # noqa: F401 - traces name TVM's intrinsics

    tasks, lost = _workloads(file_of(folder, WORKLOADS))
    path = file_of(folder, RECORDS)
    strangers: list[Skipped] = []
    for number, line in _lines(path):
        try:
            workload, rest = _parse(line)
        except ValueError as error:
            strangers.append(Skipped(number, str(error)))
            continue
        task = tasks.get(workload)
        if task is None:
            told = lost.get(workload, f"there is no workload {workload}")
            strangers.append(Skipped(number, told, workload not in lost))
            continue
        _record(task, number, rest, most)
    result = [task.replayed(path) for task in tasks.values() if task.records]
    if strangers or not result:
        unread = sum(1 for s in strangers if not s.foreign)
        result.append(Replayed(path, None, (), unread, unread, tuple(strangers), path.parent.name))
    return result


def traces(folder: Path) -> Iterator[tuple[str, Any, TirReading, int, str, float]]:
    """Yield (operator, module, its reading, line number, record, seconds) of a database's records that can be read."""
    from tvm.s_tir import tensor_intrin  # noqa: F401 - traces name TVM's intrinsics

    tasks, _ = _workloads(file_of(folder, WORKLOADS))
    for number, line in _lines(file_of(folder, RECORDS)):
        try:
            workload, data = _parse(line)
        except ValueError:
            continue
        times = data[1] if isinstance(data[1], list) and data[1] else [NO_TIME]
        if (task := tasks.get(workload)) is not None:
            seconds = sum(map(float, times)) / len(times)
            yield task.name, task.mod, task.reading, number, json.dumps(data), seconds


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        text = [line.decode("utf-8", "replace") for line in foreign.lines(path)]
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadInput(f"cannot be read: {error}", str(path), "give another database") from error
    return [(n, line) for n, line in enumerate(text, 1) if line.strip()]


def _workloads(path: Path) -> tuple[dict[int, _Task], dict[int, str]]:
    """By position, workloads that can be read, and why others cannot."""
    from tvm.s_tir.meta_schedule.database import Workload as Stored

    tasks: dict[int, _Task] = {}
    lost: dict[int, str] = {}
    used: dict[str, int] = {}
    for position, (number, line) in enumerate(_lines(path)):
        try:
            data = json.loads(line)
            mod = Stored.from_json(data).mod
            reading = read_prim_func(mod["main"])
        except UnsupportedOperator as error:
            lost[position] = f"workload {position} cannot be planned: {str(error).splitlines()[0]}"
            continue
        except Exception as error:  # TVM raises many kinds for a line that is no workload
            lost[position] = f"workload {position} ({path.name} line {number}) is none: {last_line(error)}"
            continue
        name = reading.expression.name
        used[name] = used.get(name, 0) + 1
        told = name if used[name] == 1 else f"{name}_{used[name]}"
        tasks[position] = _Task(told, str(data[0]), mod, reading)
    return tasks, lost


def _parse(line: str) -> tuple[int, list[Any]]:
    try:
        data = foreign.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON, or cut off ({error})") from None
    if not isinstance(data, list) or len(data) != 2 or type(data[0]) is not int or not isinstance(data[1], list):
        raise ValueError("JSON, but no record of MetaSchedule (a workload's position, and a record)")
    if len(data[1]) < 3 or not isinstance(data[1][0], list):
        raise ValueError("a record without trace, times and target")
    return data[0], data[1]


def _record(task: _Task, number: int, data: list[Any], most: int | None) -> None:
    """Read one record of a workload back."""
    times, target = data[1], data[2]
    task.records += 1
    if not isinstance(times, list) or not times or not all(isinstance(t, (int, float)) and t > 0 for t in times):
        task.skipped.append(Skipped(number, "measured times are not a list of numbers"))
        return
    seconds = sum(times) / len(times)
    if seconds >= NO_TIME:
        return
    task.ran += 1
    if most is not None and task.ran > most:
        return
    kind = str(kernels_of(target if isinstance(target, str) else json.dumps(target)).get("kind"))
    try:
        if kind not in GPUS:
            raise Unreadable(f"its target is {kind}: kernels of GPUs alone are predicted ({', '.join(GPUS)})")
        schedule = _schedule(task.mod, json.dumps(data))
        kernels = kernels_of_function(schedule.mod["main"], task.mod["main"], task.reading)
        entry = Recorded(number, task.key, kind, (), seconds)
        task.entries.append(Entry(entry, kernels, task.ran - 1))
    except Unreadable as error:
        task.skipped.append(Skipped(number, str(error), False))


def _schedule(mod: Any, line: str) -> Any:
    try:
        return replay(mod, line)
    except Exception as error:  # whatever TVM says of a trace that is not one of this workload
        raise Unreadable(f"its trace cannot be applied: {last_line(error)}") from None
