"""Damages files by seed and counts what readers make of them: an error, or what was written, within ten seconds."""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from roller_tvm.errors import RollerError
from roller_tvm.folders import beside

from .readers import READERS, Reader, Wrong
from .rules import damaged

#: Seconds after which a reader hangs.
LIMIT_S = 10.0


class Hang(BaseException):
    """A reader took longer than its limit; no reader may catch this."""


@dataclass
class Tally:
    """Counts of one reader.

    Attributes
    ----------
    inputs, refused, read : int
        Damaged inputs; those refused by a typed error; those read, as far as they could be.
    faults : list of dict
        Tracebacks, hangs, wrong answers and silent losses: kind, seed, rule, text.
    """

    reader: str
    inputs: int = 0
    refused: int = 0
    read: int = 0
    faults: list[dict[str, Any]] = field(default_factory=list)

    def count(self, seed: int, rule: str, kind: str, text: str) -> None:
        """Count what became of an input."""
        self.inputs += 1
        if kind == "read":
            self.read += 1
        elif kind == "refused":
            self.refused += 1
        else:
            self.faults.append({"kind": kind, "seed": seed, "rule": rule, "text": text})

    def __str__(self) -> str:
        kinds = Counter(fault["kind"] for fault in self.faults)
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "no fault"
        return f"{self.reader:<14} {self.inputs:>7} inputs, {self.refused:>7} refused, {self.read:>7} read: {told}"


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `Hang` after so many seconds."""

    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def tried(reader: Reader, path: Path, data: bytes) -> tuple[str, str]:
    """Return what became of one input ('read', 'refused', 'traceback', 'hang', 'wrong') and its text."""
    path.write_bytes(data)
    try:
        with limited(LIMIT_S), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(path)
    except RollerError as error:
        line = error.one_line()
        if "\n" in line or not line.replace("\t", "").isprintable():
            return "wrong", f"an error that is no line: {line!r}"
        return "refused", line
    except Wrong as error:
        return "wrong", str(error)
    except Hang:
        return "hang", f"more than {LIMIT_S:g} s"
    except Exception:  # which is what this looks for
        return "traceback", traceback.format_exc()
    return "read", ""


def run(name: str, seeds: range, tally: Tally | None = None, until: float = float("inf")) -> Tally:
    """Damage a reader's file by each seed, until a time of the monotonic clock; return the counts.

    Examples
    --------
    >>> print(run("shapes", range(3)).inputs)
    3
    """
    reader, tally = READERS[name], tally or Tally(name)
    whole = reader.whole()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"damaged{reader.suffix}")
        kind, text = tried(reader, path, whole)
        if kind not in ("read", "refused"):
            raise AssertionError(f"{name}: the whole file: {kind}: {text}")
        for told in outcomes(reader, whole, path, seeds, until):
            tally.count(*told)
    return tally


def outcomes(
    reader: Reader, whole: bytes, path: Path, seeds: Iterable[int], until: float
) -> Iterator[tuple[int, str, str, str]]:
    """Damage a reader's file by each seed until a time of the monotonic clock; yield seed, rule, kind and text."""
    for seed in seeds:
        if time.monotonic() > until:
            return
        rule, data = damaged(whole, seed, reader.more)
        kind, text = tried(reader, path, data)
        if kind == "hang":  # or the machine was busy, or this process stopped
            kind, text = tried(reader, path, data)
        yield seed, rule, kind, text


def load(path: Path) -> dict[str, Tally]:
    """Return the counts that a file has; none if there is no file."""
    if not path.exists():
        return {}
    return {row["reader"]: Tally(**row) for row in json.loads(path.read_text(encoding="utf-8"))}


def save(path: Path, tallies: dict[str, Tally]) -> None:
    """Write the counts, whole or not at all."""
    with beside(path) as made:
        made.write_text(json.dumps([asdict(t) for t in tallies.values()], indent=1), encoding="utf-8")
