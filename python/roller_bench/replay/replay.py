"""Replay record files: read each record, describe its kernels, predict its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, log
from pathlib import Path

from roller_tvm.device import DeviceSpec
from roller_tvm.micro_perf.effects import ALL, Effects
from roller_tvm.micro_perf.kernel import Kernel
from roller_tvm.planner.predict import Prediction, predict

from .describe import kernels_of
from .judge import Figures, judge
from .records import Recorded, Skipped, read_file
from .state import Unreadable
from .workload import Workload, workload_of

#: Number of judged records of a file: the tuner's first rounds, before it crowds near its optimum.
FIRST = 128


@dataclass(frozen=True)
class Entry:
    """A record that ran, with its kernels."""

    record: Recorded
    kernels: tuple[Kernel, ...]
    order: int  # among those of the file that ran, from 0

    @property
    def measured(self) -> float:
        return self.record.seconds


@dataclass(frozen=True)
class Replayed:
    """One workload of a record file: its entries, and the lines that could not be read."""

    path: Path
    workload: Workload | None
    entries: tuple[Entry, ...]
    ran: int
    records: int
    skipped: tuple[Skipped, ...]
    title: str = ""  # where a path holds several

    @property
    def kind(self) -> str:
        return self.workload.kind if self.workload else "unknown"

    @property
    def name(self) -> str:
        return self.title or self.path.name.split(".")[0]

    @property
    def share(self) -> float:
        """Fraction of the file's lines that were read (records that did not run count as read)."""
        lines = self.records + sum(1 for s in self.skipped if s.foreign)
        return 1 - len(self.skipped) / lines if lines else 0.0

    def first(self, count: int | None) -> tuple[Entry, ...]:
        return self.entries if count is None else tuple(e for e in self.entries if e.order < count)


#: Function from (record, file) to its workload; raises ``Unreadable`` if the workload is unknown.
WorkloadOf = Callable[[Recorded, Path], Workload]


def named_workload(record: Recorded, path: Path) -> Workload:
    """Return the workload named by a record's key, or else by its file's name."""
    return workload_of(record.key, path.name)


def replay_file(path: Path, most: int | None = None, workload_of: WorkloadOf = named_workload) -> list[Replayed]:
    """Read a file and describe its records' kernels, workload by workload.

    Parameters
    ----------
    most : int, optional
        Most records to describe per workload, of those that ran. Default: all.
    workload_of : callable, optional
        Returns the workload of (record, file); raises ``Unreadable`` if it is unknown.

    Returns
    -------
    list of Replayed
        One for each workload. Unread lines belong to a file's only workload, or to an item of their own.

    Raises
    ------
    BadInput
        The file cannot be read.
    """
    file = read_file(path)
    alike: dict[tuple[str, str], list[Recorded]] = {}
    for record in file.records:
        alike.setdefault((record.key, record.target_kind), []).append(record)
    found: list[Replayed] = []
    lost = list(file.skipped)
    lost_records = lost_ran = 0
    for records in alike.values():
        try:
            workload = workload_of(records[0], path)
        except Unreadable as error:
            ran = [r for r in records if r.ran]
            lost += [Skipped(r.number, str(error), False) for r in (ran if most is None else ran[:most])]
            lost_records, lost_ran = lost_records + len(records), lost_ran + len(ran)
        else:
            found.append(_replayed(path, workload, records, most))
    if len(found) > 1:  # a file of one workload is named after itself
        used: Counter[str] = Counter()
        for number, replayed in enumerate(found):
            name = replayed.workload.name or replayed.kind if replayed.workload else replayed.kind
            used[name] += 1
            found[number] = replace(replayed, title=name if used[name] == 1 else f"{name}_{used[name]}")
    lost.sort(key=lambda s: s.number)
    if len(found) == 1 and not lost_records:
        skipped = tuple(sorted((*found[0].skipped, *lost), key=lambda s: s.number))
        return [replace(found[0], skipped=skipped)]
    if lost or not found:
        found.append(Replayed(path, None, (), lost_ran, lost_records, tuple(lost)))
    return found


def _replayed(path: Path, workload: Workload, records: Sequence[Recorded], most: int | None) -> Replayed:
    """Describe the records of one workload."""
    entries: list[Entry] = []
    skipped: list[Skipped] = []
    ran = [record for record in records if record.ran]
    for order, record in enumerate(ran if most is None else ran[:most]):
        try:
            entries.append(Entry(record, kernels_of(record, workload), order))
        except Unreadable as error:
            skipped.append(Skipped(record.number, str(error), False))
    return Replayed(path, workload, tuple(entries), len(ran), len(records), tuple(skipped))


class Predictions:
    """Predicted times of replayed files on a device."""

    def __init__(self, device: DeviceSpec, effects: Effects = ALL):
        self.device, self.effects = device, effects

    def of(self, entry: Entry) -> tuple[Prediction, ...]:
        return tuple(predict(kernel, self.device, self.effects) for kernel in entry.kernels)

    def seconds(self, entries: Iterable[Entry]) -> list[float]:
        return [sum(p.seconds for p in self.of(entry)) for entry in entries]

    def judge(self, entries: Sequence[Entry]) -> Figures:
        return judge(self.seconds(entries), [e.measured for e in entries])


@dataclass(frozen=True)
class Miss:
    """A record whose prediction is far off, or that the model wrongly ranks first."""

    name: str
    entry: Entry
    predictions: tuple[Prediction, ...]
    best: Entry

    @cached_property
    def predicted(self) -> float:
        return sum(p.seconds for p in self.predictions)

    @property
    def off(self) -> float:
        """Logarithm of measured over predicted time; 0 if there is no prediction."""
        return log(self.entry.measured / self.predicted) if isfinite(self.predicted) else 0.0


def misses(file: Replayed, entries: Sequence[Entry], predictions: Predictions) -> tuple[Miss, Miss]:
    """Return a file's miss that the model ranks first, and its miss with the largest error."""
    best = min(entries, key=lambda e: e.measured)
    told = [Miss(file.name, e, predictions.of(e), best) for e in entries]
    return min(told, key=lambda m: m.predicted), max(told, key=lambda m: abs(m.off))
