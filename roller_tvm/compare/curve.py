"""Progress of a tuning over time, written as it goes: an interrupted tuning resumes with the seconds already spent."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

from roller_tvm.compare.keeping import mend_lines
from roller_tvm.errors import last_line


class CurveFile:
    """Progress of one tuning: a line each time kernels were measured.

    Parameters
    ----------
    path : Path
        File of the curve. Lines of an earlier run are read, and their seconds counted.

    Attributes
    ----------
    trials : int
        Number of kernels measured.
    noted : float
        Seconds of tuning until kernels were last measured.
    failure : str
        Error of the last kernel that failed in this process, or ''.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> curve = CurveFile(Path(folder.name, "curve"))
    >>> curve.note([0.5, 0.2])
    >>> curve.trials, curve.best, len(curve.points)
    (2, 0.2, 1)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trials = 0
        self.best = math.inf
        self.failure = ""
        self.points: list[tuple[float, float]] = []
        self.before = 0.0
        mend_lines(path)
        for line in path.read_text().splitlines() if path.exists() else []:
            self.before, self.trials, best = json.loads(line)
            self.best = math.inf if best is None else best
            self._point(self.before)
        self.noted = self.before
        self.start = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds spent on this tuning, including earlier runs."""
        return self.before + time.perf_counter() - self.start

    def _point(self, when: float) -> None:
        if math.isfinite(self.best):
            self.points.append((when, self.best))

    def leave_out(self, seconds: float) -> None:
        """Do not count `seconds` that were spent on something other than tuning."""
        self.start += seconds

    def none_worked(self) -> str:
        """Return a message for the case that no kernel worked, with the last failure."""
        return f"none of {self.trials} kernels worked{f': {self.failure}' if self.failure else ''}"

    def note(self, measured: list[float], failure: str = "") -> None:
        """Add measured kernels: their times in seconds, infinity for a failed one, whose error is `failure`."""
        self.trials += len(measured)
        self.failure = last_line(failure) if failure.strip() else self.failure
        self.best = min([self.best, *measured])
        when = self.noted = self.elapsed
        self._point(when)
        with self.path.open("a") as file:
            file.write(json.dumps([when, self.trials, self.best if math.isfinite(self.best) else None]) + "\n")
