"""Read Ansor's record files (JSON lines, log version v0.6), plain or gzipped, without a TVM."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roller_tvm import foreign
from roller_tvm.errors import BadInput

SUFFIXES = (".json", ".json.gz", ".log", ".log.gz", ".jsonl", ".jsonl.gz")
#: Log versions whose steps can be read; they have not changed since v0.3.
VERSIONS = ("v0.3", "v0.4", "v0.5", "v0.6")


@dataclass(frozen=True)
class Recorded:
    """One line of a record file."""

    number: int  # line number, from 1
    key: str  # Ansor's workload key
    target: str
    steps: tuple[tuple[Any, ...], ...]  # transform steps, each a name and its arguments
    seconds: float  # mean measured time in seconds, infinity for a record that did not run

    @property
    def ran(self) -> bool:
        return math.isfinite(self.seconds)

    @property
    def target_kind(self) -> str:
        """First word of the target, such as 'cuda'; '' if the target is empty."""
        return (self.target.split() or [""])[0]


@dataclass(frozen=True)
class Skipped:
    """A line, or the rest of a file, that could not be read; `foreign` is True if it is no record of Ansor."""

    number: int
    reason: str
    foreign: bool = True

    def __str__(self) -> str:
        return f"line {self.number}: {self.reason}"


@dataclass(frozen=True)
class RecordFile:
    """Contents of a record file."""

    path: Path
    records: tuple[Recorded, ...]
    skipped: tuple[Skipped, ...]

    @property
    def ran(self) -> tuple[Recorded, ...]:
        return tuple(r for r in self.records if r.ran)


def parse_line(number: int, line: str) -> Recorded:
    """Parse one record; raises ``ValueError`` with the reason if the line is none.

    Examples
    --------
    >>> line = '{"i": [["[\\\\"matmul\\\\", 8]", "cuda"], [[], [["CI", 1]]]], "r": [[0.5], 0, 1.0, 1], "v": "v0.6"}'
    >>> parse_line(1, line).steps, parse_line(1, line).seconds
    ((('CI', 1),), 0.5)
    """
    try:
        data = foreign.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON, or cut off ({error})") from None
    if isinstance(data, list) and len(data) == 2 and isinstance(data[0], int):
        raise ValueError("a record of MetaSchedule: give the folder, where its workload is too")
    if isinstance(data, dict) and {"key", "record"} <= data.keys():
        raise ValueError("a record of MetaSchedule without its workload: give a folder of its database")
    try:
        key, target = data["i"][0][:2]
        steps = data["i"][1][1]
        costs, error_no, spent = data["r"][:3]
        version = data["v"]
    except (KeyError, IndexError, TypeError, ValueError):
        raise ValueError("JSON, but no record of auto_scheduler (fields 'i', 'r' and 'v')") from None
    if version not in VERSIONS:
        raise ValueError(f"log version {version!r}, not one of {', '.join(VERSIONS)}")
    if not isinstance(key, str) or not isinstance(target, str):
        raise ValueError("workload key or target is not a string")
    if not isinstance(steps, list) or not all(isinstance(s, list) and s and isinstance(s[0], str) for s in steps):
        raise ValueError("steps are not a list of named steps")
    if not isinstance(costs, list) or not costs or not all(isinstance(c, (int, float)) for c in costs):
        raise ValueError("measured times are not a list of numbers")
    ran = error_no == 0 and spent != 0  # measuring takes time; what is predicted is written as taking none
    seconds = math.fsum(costs) / len(costs) if ran else math.inf
    if not seconds > 0:
        raise ValueError(f"a time of {seconds:g} s")
    return Recorded(number, key, target, tuple(_frozen(s) for s in steps), seconds)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value


def read_file(path: Path) -> RecordFile:
    """Read every record of a file; other lines are listed as skipped, comments (``#``) are ignored.

    Raises
    ------
    BadInput
        The file cannot be read at all.
    """
    records: list[Recorded] = []
    skipped: list[Skipped] = []
    number = 0
    try:
        for number, raw in enumerate(foreign.lines(path), 1):
            line = raw.decode("utf-8", errors="replace")
            if not line.strip() or line.startswith("#"):
                continue
            try:
                records.append(parse_line(number, line))
            except (ValueError, OverflowError, RecursionError) as error:
                skipped.append(Skipped(number, str(error)))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        if not number:
            raise BadInput(f"cannot be unpacked: {error}", str(path), "give a whole gzip file") from error
        skipped.append(Skipped(number + 1, f"the file is cut off or damaged from here on ({error})"))
    return RecordFile(path, tuple(records), tuple(skipped))


def find_files(paths: list[Path]) -> list[Path]:
    """Return the files among `paths`, and the record files below its folders.

    Raises
    ------
    BadInput
        A path does not exist, or a folder has no record file.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise BadInput("no such file or folder", str(path), "give record files of Ansor, or folders of them")
        inside = sorted(p for p in path.rglob("*") if p.name.endswith(SUFFIXES)) if path.is_dir() else [path]
        if not inside:
            raise BadInput("holds no record file", str(path), f"record files end in {', '.join(SUFFIXES)}")
        found += inside
    return found
