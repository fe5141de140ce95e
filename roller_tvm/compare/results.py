"""What a comparison has found so far: lines of JSON, appended as they come, so that an interrupted run goes on."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from roller_tvm.compare.keeping import mend_lines
from roller_tvm.compare.suite import Case
from roller_tvm.errors import BadInput, RecordError

#: Of the lines; a later one that means something else has another.
VERSION = 1
#: Of a kernel that could not be had again: how its reason begins.
NOT_AGAIN = "cannot be built again:"
#: What may become of a tuner on a case.
STATUSES = ("ok", "unsupported", "failed", "timeout", "crash", "wrong answer")


@dataclass(frozen=True)
class Tuned:
    """One tuner on one case.

    Parameters
    ----------
    case, tuner : str
        Digest of the case; the tuner's label, with its trials.
    status : str
        One of ``STATUSES``.
    reason : str
        Why it is not 'ok', or what to know about it.
    seconds : float
        Of tuning: what its user waits for, imports left out.
    trials : int
        Kernels that it measured.
    claimed_s : float
        Seconds of the kernel, as the tuner itself measured it; nan where it measures nothing.
    predicted_s : float
        Seconds of the kernel as Roller's model has it; of others' kernels where it knows their tiles.
    curve : tuple of (float, float)
        Seconds since tuning began, and seconds of the best kernel so far by the tuner's own measuring.
    kernel : str
        File of the kernel below the folder of the comparison; '' where there is none.
    schedule : str
        The winner in the tuner's own words: a record, a plan.
    tiles : str
        The winner as tiles, where they can be read.
    build_s : float
        Of building a whole model after its tuning.
    error : float
        Of a whole model's outputs, relative to the largest magnitude of the reference's.
    thought : str
        What Roller's model took another tuner's tiles for (see ``theirs``).
    busy : float
        Share of the CPUs that something else used just before, where a machine at rest was waited for.
    pace : float
        Of the CPU before and after, over its fastest (see ``pace``), where that was waited for.
    """

    case: str
    tuner: str
    status: str
    reason: str = ""
    seconds: float = math.nan
    trials: int = 0
    claimed_s: float = math.nan
    predicted_s: float = math.nan
    curve: tuple[tuple[float, float], ...] = ()
    kernel: str = ""
    schedule: str = ""
    tiles: str = ""
    environment: str = ""
    build_s: float = math.nan
    error: float = math.nan
    thought: str = ""
    busy: float = math.nan
    pace: float = math.nan

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"'status' must be one of {', '.join(STATUSES)} (got {self.status!r})")
        object.__setattr__(self, "curve", tuple((float(t), float(s)) for t, s in self.curve))

    @property
    def ok(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True)
class Timed:
    """The kernels of one case, timed in turns in one process.

    Parameters
    ----------
    case : str
    kernels : tuple of (str, str)
        Label of a tuner, and the file of its kernel.
    rounds : tuple of tuple of float
        For each kernel the typical seconds of a run, round by round.
    busy : float
        Share of the CPUs that something else used just before.
    pace : float
        Of the CPU before and after, over its fastest.
    """

    case: str
    kernels: tuple[tuple[str, str], ...]
    rounds: tuple[tuple[float, ...], ...]
    environment: str = ""
    busy: float = math.nan
    pace: float = math.nan

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernels", tuple((str(a), str(b)) for a, b in self.kernels))
        object.__setattr__(self, "rounds", tuple(tuple(map(float, r)) for r in self.rounds))
        if len(self.kernels) != len(self.rounds):
            raise ValueError(f"{len(self.kernels)} kernels, and times of {len(self.rounds)}")

    def of(self, tuned: Tuned) -> tuple[float, ...]:
        """The rounds of what was tuned; none where that kernel was not timed, or another of the tuner's was."""
        own = (tuned.tuner, tuned.kernel)
        return next((r for kernel, r in zip(self.kernels, self.rounds, strict=True) if kernel == own), ())


@dataclass(frozen=True)
class Prepared:
    """A case as a line of TVM has it.

    Parameters
    ----------
    case : Case
    file : str
        The task, below the folder of the comparison.
    flops, io_bytes : float
        Of one run.
    reason : str
        Why it cannot be compared at all, or ''.
    """

    case: Case
    file: str = ""
    flops: float = 0.0
    io_bytes: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Forgotten:
    """What earlier lines tell of a case and does not count any more.

    Parameters
    ----------
    case : str
    tuners : tuple of str
        Labels whose results it was.
    times : bool
        Whether what its kernels took is forgotten too.
    """

    case: str
    tuners: tuple[str, ...] = ()
    times: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tuners", tuple(map(str, self.tuners)))


class Results:
    """A file of lines, and what it says: of each thing the last line counts.

    Parameters
    ----------
    path : Path

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> results = Results(Path(folder.name, "results.jsonl"))
    >>> results.add(Tuned("c0ffee", "ansor:64", "ok", seconds=93.0))
    >>> Results(results.path).tuned["c0ffee", "ansor:64"].seconds
    93.0
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.prepared: dict[str, Prepared] = {}
        self.tuned: dict[tuple[str, str], Tuned] = {}
        self.timed: dict[str, Timed] = {}
        self.environments: dict[str, dict[str, Any]] = {}
        for number, line in enumerate(_lines(path), 1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                remedy = "delete that line: what it told is done again"
                raise RecordError(f"is no line of results ({error})", f"{path}, line {number}", remedy) from error

    def _take(self, data: Mapping[str, Any]) -> None:
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']}, this is {VERSION}")
        kind, value = data["kind"], data["value"]
        if kind == "tuned":
            tuned = Tuned(**_own(Tuned, value))
            self.tuned[tuned.case, tuned.tuner] = tuned
        elif kind == "timed":
            timed = Timed(**_own(Timed, value))
            self.timed[timed.case] = timed
        elif kind == "forgotten":
            forgotten = Forgotten(**_own(Forgotten, value))
            for label in forgotten.tuners:
                self.tuned.pop((forgotten.case, label), None)
            if forgotten.times:
                self.timed.pop(forgotten.case, None)
        elif kind == "prepared":
            prepared = Prepared(**{**_own(Prepared, value), "case": Case.from_json(value["case"])})
            self.prepared[prepared.case.digest] = prepared
        elif kind == "environment":
            self.environments[value["id"]] = dict(value)
        else:
            raise ValueError(f"kind {kind!r}")

    def working(self, digest: str) -> dict[str, Tuned]:
        """Tuners that have a kernel for a case, by label."""
        return {tuned.tuner: tuned for tuned in self.tuned_of(digest) if tuned.ok and tuned.kernel}

    def tuned_of(self, digest: str) -> list[Tuned]:
        """What tuners have done on a case."""
        return [tuned for (of, _), tuned in self.tuned.items() if of == digest]

    def timed_all(self, digest: str) -> bool:
        """Whether the kernels of a case that can be had were timed beside one another."""
        have = {(n, t.kernel) for n, t in self.working(digest).items() if not t.reason.startswith(NOT_AGAIN)}
        timed = self.timed.get(digest)
        return not have or (timed is not None and have <= set(timed.kernels))

    def finished(self, digest: str, labels: Iterable[str]) -> bool:
        """Whether nothing is left to do on a case."""
        return all((digest, label) in self.tuned for label in labels) and self.timed_all(digest)

    def add(self, value: Tuned | Timed | Prepared | Forgotten | Mapping[str, Any]) -> None:
        """Write one thing, and know it."""
        kind = "environment" if isinstance(value, Mapping) else type(value).__name__.lower()
        data = dict(value) if isinstance(value, Mapping) else asdict(value)
        line = {"version": VERSION, "kind": kind, "value": data}
        text = json.dumps(_plain(line))
        self._take(json.loads(text))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            mend_lines(self.path)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise BadInput(f"cannot be written: {error.strerror}", str(self.path), "give another folder") from error


def _plain(value: Any) -> Any:
    """A value without numbers that JSON has no word for."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _own(cls: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a class in a line that a later version may have written more to; null is nan."""
    floats = {f.name for f in fields(cls) if f.type == "float"}
    return {
        f.name: math.nan if data[f.name] is None and f.name in floats else data[f.name]
        for f in fields(cls) if f.name in data
    }  # fmt: skip


def _lines(path: Path) -> Iterator[str]:
    """Whole lines: half of one is what a killed process left, or another is just writing."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    yield from text[: text.rfind("\n") + 1].splitlines()
