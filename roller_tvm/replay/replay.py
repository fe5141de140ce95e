"""Record files held against the model: each record read back, described, predicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, log
from pathlib import Path

from ..device import DeviceSpec
from ..model.effects import ALL, Effects
from ..model.kernel import Kernel
from ..model.predict import Prediction, predict
from .describe import kernels_of
from .judge import Figures, judge
from .records import Recorded, Skipped, read_file
from .state import Unreadable
from .workload import Workload, workload_of

#: Records of a file that are judged: the tuner's first rounds, before it crowds near its optimum.
FIRST = 128


@dataclass(frozen=True)
class Entry:
    """A record that ran and was read back."""

    record: Recorded
    kernels: tuple[Kernel, ...]
    order: int  # among those of the file that ran, from 0

    @property
    def measured(self) -> float:
        return self.record.seconds


@dataclass(frozen=True)
class Replayed:
    """One file: what could be read of it, and what could not."""

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
        """Lines of the file that were read back (records that did not run count as read)."""
        lines = self.records + sum(1 for s in self.skipped if s.foreign)
        return 1 - len(self.skipped) / lines if lines else 0.0

    def first(self, count: int | None) -> tuple[Entry, ...]:
        return self.entries if count is None else tuple(e for e in self.entries if e.order < count)


def replay_file(path: Path, most: int | None = None) -> Replayed:
    """Read a file and describe its records' kernels.

    Parameters
    ----------
    path : Path
    most : int, optional
        Records that ran that are read back; all by default.

    Raises
    ------
    BadInput
        The file cannot be read.
    """
    file = read_file(path)
    entries: list[Entry] = []
    skipped = list(file.skipped)
    workload: Workload | None = None
    order = -1
    for record in file.records:
        if not record.ran:
            continue
        order += 1
        if most is not None and order >= most:
            continue
        try:
            workload = workload_of(record.key, path.name)
            entries.append(Entry(record, kernels_of(record, workload), order))
        except Unreadable as error:
            skipped.append(Skipped(record.number, str(error), False))
    skipped.sort(key=lambda s: s.number)
    return Replayed(path, workload, tuple(entries), order + 1, len(file.records), tuple(skipped))


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
    """A record whose prediction is far off, or that the model puts first and should not."""

    name: str
    entry: Entry
    predictions: tuple[Prediction, ...]
    best: Entry

    @cached_property
    def predicted(self) -> float:
        return sum(p.seconds for p in self.predictions)

    @property
    def off(self) -> float:
        """How far off, as the logarithm of measured over predicted."""
        return log(self.entry.measured / self.predicted) if isfinite(self.predicted) else 0.0


def misses(file: Replayed, entries: Sequence[Entry], predictions: Predictions) -> tuple[Miss, Miss]:
    """Of a file: what the model would choose, and the record that it is farthest off for."""
    best = min(entries, key=lambda e: e.measured)
    told = [Miss(file.name, e, predictions.of(e), best) for e in entries]
    return min(told, key=lambda m: m.predicted), max(told, key=lambda m: abs(m.off))
