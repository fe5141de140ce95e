"""Results of a comparison as lines of JSON, appended as they come, so that an interrupted run can resume."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from roller_bench.cases import Case
from roller_bench.files import mend_lines
from roller_tvm.errors import RecordError, cannot_write

#: Version of the lines' format.
VERSION = 1
#: Start of the reason of a kernel that could not be built again.
NOT_AGAIN = "cannot be built again:"
#: Possible outcomes of a tuner on a case.
STATUSES = ("ok", "unsupported", "failed", "timeout", "crash", "wrong answer")


@dataclass(frozen=True)
class Tuned:
    """Result of one tuner on one case.

    Parameters
    ----------
    case, tuner : str
        Digest of the case; the tuner's label, with its trials.
    status : str
        One of ``STATUSES``.
    reason : str
        Reason that the status is not 'ok', or a remark on the kernel.
    seconds : float
        Seconds of tuning that a user waits for, without imports.
    trials : int
        Number of kernels measured.
    claimed_s : float
        Kernel's time in seconds, measured by the tuner itself; nan if it measures nothing.
    predicted_s : float
        Kernel's time in seconds as predicted by Roller's model; nan for other tuners' kernels.
    curve : tuple of (float, float)
        Seconds since tuning began, and seconds of the best kernel so far, measured by the tuner itself.
    kernel : str
        File of the kernel below the comparison's folder; '' if there is none.
    schedule : str
        Winner in the tuner's own format: a record, a plan.
    tiles : str
        Roller's winner as tiles; '' for other tuners' (``roller-tvm schedule`` prints their records as scripts).
    build_s : float
        Seconds of building a whole model after its tuning.
    error : float
        Largest error of a whole model's outputs, relative to the reference's largest magnitude.
    busy : float
        Share of the CPUs used by other work just before tuning; nan unless a quiet machine was asked for.
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
    busy: float = math.nan

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"'status' must be one of {', '.join(STATUSES)} (got {self.status!r})")
        object.__setattr__(self, "curve", tuple((float(t), float(s)) for t, s in self.curve))

    @property
    def ok(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True)
class Timed:
    """Times of one case's kernels, taken in turns in one process.

    Parameters
    ----------
    case : str
    kernels : tuple of (str, str)
        Label of each tuner, and the file of its kernel.
    rounds : tuple of tuple of float
        Typical seconds of a run, for each kernel and round.
    busy : float
        Share of the CPUs used by other work just before timing.
    """

    case: str
    kernels: tuple[tuple[str, str], ...]
    rounds: tuple[tuple[float, ...], ...]
    environment: str = ""
    busy: float = math.nan

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernels", tuple((str(a), str(b)) for a, b in self.kernels))
        object.__setattr__(self, "rounds", tuple(tuple(map(float, r)) for r in self.rounds))
        if len(self.kernels) != len(self.rounds):
            raise ValueError(f"{len(self.kernels)} kernels, and times of {len(self.rounds)}")

    def of(self, tuned: Tuned) -> tuple[float, ...]:
        """Return the rounds of a tuner's kernel, or () if that kernel was not timed."""
        own = (tuned.tuner, tuned.kernel)
        return next((r for kernel, r in zip(self.kernels, self.rounds, strict=True) if kernel == own), ())


@dataclass(frozen=True)
class Prepared:
    """A case as prepared by a line of TVM.

    Parameters
    ----------
    case : Case
    file : str
        File of the task, below the comparison's folder.
    flops, io_bytes : float
        FLOPs of one run, and bytes of its inputs and outputs.
    reason : str
        Reason that the case cannot be compared at all, or ''.
    """

    case: Case
    file: str = ""
    flops: float = 0.0
    io_bytes: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Forgotten:
    """A line that cancels earlier results of a case.

    Parameters
    ----------
    case : str
    tuners : tuple of str
        Labels of the tuners whose results are cancelled.
    times : bool
        True to cancel the times of the case's kernels too.
    """

    case: str
    tuners: tuple[str, ...] = ()
    times: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tuners", tuple(map(str, self.tuners)))


class Results:
    """Results read from a file of lines; of several lines about the same thing the last one counts.

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
                remedy = "delete that line; its work is then repeated"
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
        """Return the results with a kernel for a case, by tuner's label."""
        return {tuned.tuner: tuned for tuned in self.tuned_of(digest) if tuned.ok and tuned.kernel}

    def tuned_of(self, digest: str) -> list[Tuned]:
        """Return all tuners' results of a case."""
        return [tuned for (of, _), tuned in self.tuned.items() if of == digest]

    def timed_all(self, digest: str) -> bool:
        """Return True if all kernels of a case that can be built were timed together."""
        have = {(n, t.kernel) for n, t in self.working(digest).items() if not t.reason.startswith(NOT_AGAIN)}
        timed = self.timed.get(digest)
        return not have or (timed is not None and have <= set(timed.kernels))

    def finished(self, digest: str, labels: Iterable[str]) -> bool:
        """Return True if nothing is left to do on a case."""
        return all((digest, label) in self.tuned for label in labels) and self.timed_all(digest)

    def add(self, value: Tuned | Timed | Prepared | Forgotten | Mapping[str, Any]) -> None:
        """Append one result to the file and take it over."""
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
            raise cannot_write(error, self.path, other="give another folder") from error


def _plain(value: Any) -> Any:
    """Return a value with nan and infinity replaced by None."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _own(cls: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a class in a line, ignoring fields of later versions; null is nan for floats."""
    floats = {f.name for f in fields(cls) if f.type == "float"}
    return {
        f.name: math.nan if data[f.name] is None and f.name in floats else data[f.name]
        for f in fields(cls) if f.name in data
    }  # fmt: skip


def _lines(path: Path) -> Iterator[str]:
    """Yield the whole lines; half a last line is left by a killed process, or is just being written."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    yield from text[: text.rfind("\n") + 1].splitlines()
